//! The file layer below a load, as a trait, so that the same load runs over the virtual file layer
//! and over a file system that is mounted on this machine.
//!
//! A load identifies files by numbers, and addresses the device in blocks of 4 KiB. A load must
//! never know on which layer it runs.

use std::io;

use crate::files::{FileId, Files, NoSpace, OpenFile, Program};

/// Error of a load that did not finish.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The device is too small for the load.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// The kernel or the device returned an error.
    #[error("{what}: {error}")]
    Io {
        /// Operation that was requested.
        what: String,
        /// Error returned by the kernel or the device.
        error: io::Error,
    },
    /// A trace or a load file cannot be read, or has unexpected content.
    #[error("{0}")]
    Trace(String),
    /// The run was stopped before its end.
    #[error("interrupted")]
    Interrupted,
}

/// Calls of programs on files and on the device. The layer assigns the numbers that identify
/// directories and files. Clones refer to the same files.
#[expect(
    async_fn_in_trait,
    reason = "a layer and its loads live in one thread, so nothing need be Send"
)]
pub trait FileLayer: Clone + 'static {
    /// A file that is open for one reader.
    type Open;

    /// Returns the size of the device in blocks of 4 KiB.
    fn device_blocks(&self) -> u32;

    /// Reads blocks of the device directly, bypassing any file system.
    async fn read_device(
        &self,
        block: u32,
        blocks: u32,
        program: &mut Program,
    ) -> Result<(), LoadError>;

    /// Writes blocks of the device directly, which overwrites any content of a file system.
    async fn write_device(
        &self,
        block: u32,
        blocks: u32,
        program: &mut Program,
    ) -> Result<(), LoadError>;

    /// Spends the CPU time of a program that processes `count` characters individually.
    async fn use_characters(&self, count: u64, program: &mut Program);

    /// Waits until the clock has advanced by the CPU time that the program has accumulated.
    async fn pay(&self, program: &mut Program);

    /// Creates a directory.
    async fn make_directory(&self, program: &mut Program) -> Result<u32, LoadError>;

    /// Creates an empty file in a directory.
    async fn create(&self, directory: u32, program: &mut Program) -> Result<Self::Open, LoadError>;

    /// Opens a file for a reader whose access pattern is not known yet.
    async fn open(&self, file: FileId, program: &mut Program) -> Result<Self::Open, LoadError>;

    /// Returns the number of an open file.
    fn file_of(&self, open: &Self::Open) -> FileId;

    /// Returns the length in bytes of a file that has not been removed.
    fn size_bytes(&self, file: FileId) -> u64;

    /// Reads a range of a file in one call. The range is truncated at the end of the file.
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

    /// Makes all written data and metadata durable.
    async fn sync(&self, program: &mut Program) -> Result<(), LoadError>;

    /// Removes a file.
    async fn remove(&self, file: FileId, program: &mut Program) -> Result<(), LoadError>;

    /// Drops every clean page of the cache, as between two passes of a benchmark.
    fn drop_caches(&self) -> Result<(), LoadError>;
}

/// Each call uses the method of [`Files`] with the same name. In virtual time, a call fails only if
/// the device is full.
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
