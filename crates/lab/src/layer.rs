//! What a load runs over, so that there is one program for every world: the virtual file layer, or
//! a file system that is mounted on this machine.
//!
//! A load knows files by number and devices by blocks of 4 KiB; it must never know which world it
//! is in.

use std::io;

use crate::files::{FileId, Files, NoSpace, OpenFile, Program};

/// Why a load did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The device has no room for it.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// The kernel or the device refused.
    #[error("{what}: {error}")]
    Io {
        /// What was asked.
        what: String,
        /// The answer.
        error: io::Error,
    },
    /// A trace cannot be read, or is another one.
    #[error("{0}")]
    Trace(String),
    /// Somebody wants the program to end.
    #[error("interrupted")]
    Interrupted,
}

/// The calls of programs. Clones are the same files. Directories and files are known by numbers
/// that the layer gives.
#[expect(
    async_fn_in_trait,
    reason = "a layer and its loads live in one thread, so nothing need be Send"
)]
pub trait FileLayer: Clone + 'static {
    /// A file that is open for one reader.
    type Open;

    /// Blocks of 4 KiB of the device.
    fn device_blocks(&self) -> u32;

    /// Reads the device itself, beside any file system.
    async fn read_device(
        &self,
        block: u32,
        blocks: u32,
        program: &mut Program,
    ) -> Result<(), LoadError>;

    /// Writes the device itself, over what a file system may have there.
    async fn write_device(
        &self,
        block: u32,
        blocks: u32,
        program: &mut Program,
    ) -> Result<(), LoadError>;

    /// The program itself looks at so many characters, one after another.
    async fn use_characters(&self, count: u64, program: &mut Program);

    /// Waits until the clock says what the program has taken.
    async fn pay(&self, program: &mut Program);

    /// Makes a directory.
    async fn make_directory(&self, program: &mut Program) -> Result<u32, LoadError>;

    /// Makes an empty file in a directory.
    async fn create(&self, directory: u32, program: &mut Program) -> Result<Self::Open, LoadError>;

    /// Opens a file for a reader of whom nothing is known yet.
    async fn open(&self, file: FileId, program: &mut Program) -> Result<Self::Open, LoadError>;

    /// The number of an open file.
    fn file_of(&self, open: &Self::Open) -> FileId;

    /// Length of a file in bytes; 0 for one that is gone.
    fn size_bytes(&self, file: FileId) -> u64;

    /// Reads a range of a file, in one call; what is behind its end is not read.
    async fn read(
        &self,
        open: &mut Self::Open,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), LoadError>;

    /// Writes a range of a file, in one call.
    async fn write(
        &self,
        file: FileId,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), LoadError>;

    /// Makes a file durable.
    async fn sync_file(&self, file: FileId, program: &mut Program) -> Result<(), LoadError>;

    /// Makes everything durable.
    async fn sync(&self, program: &mut Program) -> Result<(), LoadError>;

    /// Takes a file away.
    async fn remove(&self, file: FileId, program: &mut Program) -> Result<(), LoadError>;

    /// Forgets every page of a file that is as on the device, as between two passes of a benchmark.
    fn drop_caches(&self) -> Result<(), LoadError>;
}

/// In virtual time nothing fails but for room. The calls go to the methods of the same names.
impl FileLayer for Files {
    type Open = OpenFile;

    fn device_blocks(&self) -> u32 {
        Files::device_blocks(self)
    }

    async fn read_device(
        &self,
        block: u32,
        blocks: u32,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        Files::read_device(self, block, blocks, program).await;
        Ok(())
    }

    async fn write_device(
        &self,
        block: u32,
        blocks: u32,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        Files::write_device(self, block, blocks, program).await;
        Ok(())
    }

    async fn use_characters(&self, count: u64, program: &mut Program) {
        self.spend(program, self.character_ns() * count).await;
    }

    async fn pay(&self, program: &mut Program) {
        Files::pay(self, program).await;
    }

    async fn make_directory(&self, program: &mut Program) -> Result<u32, LoadError> {
        Ok(Files::make_directory(self, program).await?)
    }

    async fn create(&self, directory: u32, program: &mut Program) -> Result<OpenFile, LoadError> {
        Ok(Files::create(self, directory, program).await?)
    }

    async fn open(&self, file: FileId, program: &mut Program) -> Result<OpenFile, LoadError> {
        Ok(Files::open(self, file, program).await)
    }

    fn file_of(&self, open: &OpenFile) -> FileId {
        open.file()
    }

    fn size_bytes(&self, file: FileId) -> u64 {
        Files::size_bytes(self, file)
    }

    async fn read(
        &self,
        open: &mut OpenFile,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        Files::read(self, open, offset, bytes, program).await;
        Ok(())
    }

    async fn write(
        &self,
        file: FileId,
        offset: u64,
        bytes: u64,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        Ok(Files::write(self, file, offset, bytes, program).await?)
    }

    async fn sync_file(&self, file: FileId, program: &mut Program) -> Result<(), LoadError> {
        Files::sync_file(self, file, program).await;
        Ok(())
    }

    async fn sync(&self, program: &mut Program) -> Result<(), LoadError> {
        Files::sync(self, program).await;
        Ok(())
    }

    async fn remove(&self, file: FileId, program: &mut Program) -> Result<(), LoadError> {
        Files::remove(self, file, program).await;
        Ok(())
    }

    fn drop_caches(&self) -> Result<(), LoadError> {
        Files::drop_caches(self);
        Ok(())
    }
}
