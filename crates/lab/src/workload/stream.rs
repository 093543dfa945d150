//! One large file, as in Bonnie: written character by character and in blocks, rewritten, read
//! character by character and in blocks, and read at random offsets.

use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

use super::{Measured, OPERATIONS_MAX, World, mb_per_s};
use crate::files::Program;
use crate::layer::{FileLayer, LoadError};

/// Number of bytes of a read or write call.
const CHUNK_BYTES: u64 = 8192;

/// Parameters of a load on one large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Number of chunks read at random offsets.
    pub seeks: u64,
}

impl Stream {
    /// Checks that the parameters are valid.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn check(&self) -> Result<(), String> {
        if !(1 << 20..=1 << 42).contains(&self.bytes) {
            return Err("`size` must be 1 MiB to 4 TiB".to_owned());
        }
        match (1..=OPERATIONS_MAX).contains(&self.seeks) {
            true => Ok(()),
            false => Err("`seeks` must be 1 to 1,000,000,000".to_owned()),
        }
    }

    /// Returns the load with its length and its number of seeks multiplied by `scale`. The length
    /// is rounded down to whole chunks. The minimum is 1 MiB and ten seeks, or the original value
    /// if it is smaller.
    pub(super) fn scaled(self, scale: f64) -> Stream {
        let bytes = (self.bytes as f64 * scale) as u64 / CHUNK_BYTES * CHUNK_BYTES;
        let seeks = (self.seeks as f64 * scale) as u64;
        Stream {
            bytes: bytes.max(self.bytes.min(1 << 20)),
            seeks: seeks.max(self.seeks.min(10)),
        }
    }

    /// Returns the number of pages that are read and written. Each page of the file is written
    /// twice, then read and written once more by the rewrite, and then read twice. Each seek reads
    /// two pages.
    pub(super) fn estimated_pages(&self) -> u64 {
        self.bytes / 4096 * 6 + self.seeks * 2
    }

    /// Runs the load and returns its metrics.
    ///
    /// # Errors
    /// If the device is full, or the layer fails.
    pub(super) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        let mut program = Program::new(0);
        let directory = world.files.make_directory(&mut program).await?;
        let mut measured = Measured {
            unit: "MB/s".to_owned(),
            ..Measured::default()
        };
        for (name, by_characters) in [("write_characters", true), ("write_blocks", false)] {
            let file = world.files.create(directory, &mut program).await?;
            let rate = self
                .write(world, &file, by_characters, &mut program)
                .await?;
            measured.figures.insert(format!("{name}_mb_per_s"), rate);
            if by_characters {
                let file = world.files.file_of(&file);
                world.files.remove(file, &mut program).await?;
                continue;
            }
            self.read_back(world, &file, &mut program, &mut measured)
                .await?;
        }
        Ok(measured)
    }

    async fn read_back<F: FileLayer>(
        &self,
        world: &World<F>,
        file: &F::Open,
        program: &mut Program,
        measured: &mut Measured,
    ) -> Result<(), LoadError> {
        let rewrite = self.rewrite(world, file, program).await?;
        measured
            .figures
            .insert("rewrite_mb_per_s".to_owned(), rewrite);
        for (name, by_characters) in [("read_characters", true), ("read_blocks", false)] {
            let rate = self.read(world, file, by_characters, program).await?;
            measured.figures.insert(format!("{name}_mb_per_s"), rate);
            measured.value = rate;
        }
        let seeks = self.seek(world, file, program).await?;
        measured.figures.insert("seeks_per_s".to_owned(), seeks);
        let file = world.files.file_of(file);
        world.files.remove(file, program).await?;
        world.files.sync(program).await?;
        Ok(())
    }

    fn chunks(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.bytes).step_by(CHUNK_BYTES as usize)
    }

    async fn write<F: FileLayer>(
        &self,
        world: &World<F>,
        file: &F::Open,
        by_characters: bool,
        program: &mut Program,
    ) -> Result<f64, LoadError> {
        let begun = world.rt.now();
        for offset in self.chunks() {
            if by_characters {
                world.files.use_characters(CHUNK_BYTES, program).await;
            }
            world
                .files
                .write(world.files.file_of(file), offset, CHUNK_BYTES, program)
                .await?;
        }
        world.files.sync(program).await?;
        Ok(mb_per_s(self.bytes, world.rt.now().ns_since(begun)))
    }

    async fn rewrite<F: FileLayer>(
        &self,
        world: &World<F>,
        file: &F::Open,
        program: &mut Program,
    ) -> Result<f64, LoadError> {
        world.files.drop_caches()?;
        let begun = world.rt.now();
        let mut open = world.files.open(world.files.file_of(file), program).await?;
        for offset in self.chunks() {
            world
                .files
                .read(&mut open, offset, CHUNK_BYTES, program)
                .await?;
            world
                .files
                .write(world.files.file_of(file), offset, CHUNK_BYTES, program)
                .await?;
        }
        world.files.sync(program).await?;
        Ok(mb_per_s(self.bytes, world.rt.now().ns_since(begun)))
    }

    async fn read<F: FileLayer>(
        &self,
        world: &World<F>,
        file: &F::Open,
        by_characters: bool,
        program: &mut Program,
    ) -> Result<f64, LoadError> {
        world.files.drop_caches()?;
        let begun = world.rt.now();
        let mut open = world.files.open(world.files.file_of(file), program).await?;
        for offset in self.chunks() {
            world
                .files
                .read(&mut open, offset, CHUNK_BYTES, program)
                .await?;
            if by_characters {
                world.files.use_characters(CHUNK_BYTES, program).await;
            }
        }
        world.files.pay(program).await;
        Ok(mb_per_s(self.bytes, world.rt.now().ns_since(begun)))
    }

    /// Reads chunks at random offsets, and returns the number of chunks per second.
    async fn seek<F: FileLayer>(
        &self,
        world: &World<F>,
        file: &F::Open,
        program: &mut Program,
    ) -> Result<f64, LoadError> {
        world.files.drop_caches()?;
        let mut rng = Rng::labelled(world.seed, "stream");
        let begun = world.rt.now();
        let mut open = world.files.open(world.files.file_of(file), program).await?;
        for _ in 0..self.seeks {
            let offset = rng.below(self.bytes / CHUNK_BYTES) * CHUNK_BYTES;
            world
                .files
                .read(&mut open, offset, CHUNK_BYTES, program)
                .await?;
        }
        world.files.pay(program).await;
        let seconds = world.rt.now().ns_since(begun) as f64 / 1e9;
        Ok(self.seeks as f64 / seconds.max(f64::MIN_POSITIVE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_leaves_a_load_and_does_not_lengthen_a_short_one() {
        let long = Stream {
            bytes: 64 << 20,
            seeks: 4000,
        };
        let half = Stream {
            bytes: 32 << 20,
            seeks: 2000,
        };
        let least = Stream {
            bytes: 1 << 20,
            seeks: 10,
        };
        assert_eq!(long.scaled(0.5), half);
        assert_eq!(long.scaled(0.0001), least);
        let short = Stream { seeks: 1, ..least };
        assert_eq!((short.scaled(1.0), short.scaled(0.1)), (short, short));
    }
}
