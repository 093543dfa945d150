//! The queue of a block device. Each tag fetches a request, submits it to the device below, and
//! returns the result in the command that fetches the next request.
//!
//! Each tag has one buffer. The driver fills the buffer with the data of a write before the fetch
//! command completes, and reads the data of a read from the buffer when the result is committed.
//! The device below gets a copy of the data of a write, because layers keep this data beyond the
//! completion of the write.
//!
//! This module must never drop a request of the driver without a result: the kernel would wait for
//! the result forever.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use bimetal_block::{Device, Flags, Op, Origin, Reply, Request};
use bimetal_rt::real_time::{DriverPages, File, OpenOptions};
use bimetal_rt::sync::{Event, TaskGroup};
use bimetal_rt::{BufMut, Rt};

use crate::counters::{RequestCounters, add};

use super::abi::{DESCRIPTOR_BYTES, Descriptor, IoCommand, SECTOR_BYTES};

/// Page size with which the kernel maps the descriptors.
const PAGE_BYTES: usize = 4096;
/// The driver's completion code for a command when the device ends (`UBLK_IO_RES_ABORT`). No
/// further request follows.
const ENODEV: i32 = 19;
/// Result of an invalid request.
const EINVAL: i32 = 22;

/// The queue of a block device; see the module documentation.
pub(super) struct UblkQueue {
    rt: Rt,
    file: File,
    descriptors: DriverPages,
    device: Rc<dyn Device>,
    /// Length of the buffer of a tag in bytes.
    buffer_bytes: usize,
    pub(super) counters: RequestCounters,
    tags: TaskGroup,
    /// First error that stopped a tag.
    failure: RefCell<Option<io::Error>>,
    /// Signals that a tag has ended.
    changed: Event,
}

impl UblkQueue {
    /// Opens the file through which a block device is served. Starts a task for each tag (a request
    /// slot of the queue), and each task fetches a request.
    ///
    /// # Errors
    /// The errors of `open(2)` and `mmap(2)`.
    pub(super) fn start(
        rt: &Rt,
        path: &Path,
        device: Rc<dyn Device>,
        depth: u16,
        buffer_bytes: usize,
    ) -> io::Result<Rc<UblkQueue>> {
        let options = OpenOptions {
            write: true,
            direct: false,
        };
        let file = File::open(rt, path, options)?;
        let bytes = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES);
        let descriptors = file.map_pages(0, bytes)?;
        let queue = Rc::new(UblkQueue {
            rt: rt.clone(),
            file,
            descriptors,
            device,
            buffer_bytes,
            counters: RequestCounters::new(rt),
            tags: TaskGroup::new(rt),
            failure: RefCell::new(None),
            changed: Event::new(),
        });
        for tag in 0..depth {
            let this = Rc::clone(&queue);
            queue.tags.spawn(async move {
                this.serve(tag).await;
                this.changed.notify();
            });
        }
        Ok(queue)
    }

    /// Waits until the task of at least one tag (a request slot of the queue) has ended, because
    /// the block device was stopped or an error occurred. `depth` is the number of tags.
    pub(super) async fn ended(&self, depth: u16) {
        let depth = usize::from(depth);
        self.changed.until(|| self.tags.len() < depth).await;
    }

    /// Waits until every tag has ended.
    pub(super) async fn join(&self) {
        self.tags.join().await;
    }

    /// Takes the first error that ended the service of a tag (a request slot of the queue), if
    /// there was one.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.failure.borrow_mut().take()
    }

    /// Serves the requests of one tag until the block device ends.
    async fn serve(&self, tag: u16) {
        // The allocation never waits: the number of tag buffers is bounded, and they live as long
        // as the block device.
        let mut buffer = self.rt.pool().alloc_now(self.buffer_bytes);
        let mut command = IoCommand::Fetch;
        loop {
            // SAFETY: the address of the buffer is the only address of this process that the driver
            // knows. The driver was told the length of the buffer, and does not access bytes beyond
            // this length. After the command has completed, the driver does not access the buffer
            // until the next command passes it again.
            let (result, back) = unsafe {
                self.file
                    .command(command.op(), command.head(tag), buffer)
                    .await
            };
            buffer = back;
            match result {
                Ok(0) => {}
                Ok(other) => return self.fail(unexpected(other)),
                Err(error) if error.raw_os_error() == Some(ENODEV) => return,
                Err(error) => return self.fail(error),
            }
            let at = usize::from(tag) * DESCRIPTOR_BYTES;
            let descriptor = Descriptor::decode(&self.descriptors.read(at));
            command = IoCommand::Commit(self.carry_out(&descriptor, &mut buffer).await);
        }
    }

    fn fail(&self, error: io::Error) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    /// Executes a request. Returns the result in the driver's format: the number of bytes for a
    /// read or a write, 0 for any other operation, or a negative error number.
    async fn carry_out(&self, descriptor: &Descriptor, buffer: &mut BufMut) -> i32 {
        let size_bytes = self.device.geometry().size_bytes;
        let Some(place) = checked(descriptor, size_bytes, buffer.len()) else {
            add(&self.counters.refused, 1);
            return -EINVAL;
        };
        let (op, len) = (place.op, place.len);
        let request = self.request(place, descriptor, buffer).await;
        match self.counters.submit(self.device.as_ref(), request).await {
            Ok(Reply::Data(data)) => {
                data.copy_to(&mut buffer[..len as usize]);
                len as i32
            }
            Ok(Reply::Done) if op == Op::Write => len as i32,
            Ok(Reply::Done | Reply::Extents(_)) => 0,
            Err(error) => -error.to_errno(),
        }
    }

    async fn request(&self, place: Access, from: &Descriptor, buffer: &BufMut) -> Request {
        let Access { op, offset, len } = place;
        let flags = Flags {
            fua: from.fua,
            keep_allocated: from.keep_allocated,
            ..Flags::NONE
        };
        let request = match op {
            Op::Read => Request::read(offset, len),
            Op::Write => {
                let mut data = self.rt.pool().alloc(len as usize).await;
                data.copy_from_slice(&buffer[..len as usize]);
                Request::write(offset, data.freeze(), flags)
            }
            Op::Flush => Request::flush(),
            Op::Discard | Op::WriteZeroes | Op::Extents => {
                Request::without_data(op, offset, len, flags)
            }
        };
        request.from_origin(Origin::of_task(1))
    }
}

/// The operation and byte range of a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    op: Op,
    offset: u64,
    len: u64,
}

/// Returns the operation and the byte range of a request. Returns `None` if the operation is
/// unknown, if the range is empty or exceeds the device, or if the data exceeds a buffer of
/// `buffer_bytes` bytes.
fn checked(descriptor: &Descriptor, size_bytes: u64, buffer_bytes: usize) -> Option<Access> {
    let op = descriptor.op?;
    if op == Op::Flush {
        // A flush has no range. In a flush request, the driver sets the start sector to the highest
        // number.
        let (offset, len) = (0, 0);
        return Some(Access { op, offset, len });
    }
    let len = u64::from(descriptor.sectors) * SECTOR_BYTES;
    let offset = descriptor.start_sector.checked_mul(SECTOR_BYTES)?;
    let fits = offset.checked_add(len)? <= size_bytes;
    let has_room = !matches!(op, Op::Read | Op::Write) || len <= buffer_bytes as u64;
    (len > 0 && fits && has_room).then_some(Access { op, offset, len })
}

fn unexpected(answer: usize) -> io::Error {
    io::Error::other(format!(
        "the driver returned the unexpected result {answer}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE_BYTES: u64 = 1 << 20;
    const BUFFER_BYTES: usize = 8192;

    fn asked(op: Option<Op>, start_sector: u64, sectors: u32) -> Option<Access> {
        let descriptor = Descriptor {
            op,
            fua: false,
            keep_allocated: false,
            start_sector,
            sectors,
        };
        checked(&descriptor, SIZE_BYTES, BUFFER_BYTES)
    }

    #[test]
    fn what_lies_on_the_device_is_taken() {
        let place = |op, offset, len| Some(Access { op, offset, len });
        let write = asked(Some(Op::Write), 3, 16);
        assert_eq!(write, place(Op::Write, 1536, 8192));
        let read = asked(Some(Op::Read), 2047, 1);
        assert_eq!(read, place(Op::Read, SIZE_BYTES - 512, 512));
        // A request without data can have a range that is longer than a buffer.
        let discard = asked(Some(Op::Discard), 0, 2048);
        assert_eq!(discard, place(Op::Discard, 0, SIZE_BYTES));
    }

    #[test]
    fn a_flush_has_no_place() {
        let flush = asked(Some(Op::Flush), u64::MAX, 0).expect("a flush is taken");
        assert_eq!((flush.offset, flush.len), (0, 0));
    }

    #[test]
    fn what_should_not_come_is_refused() {
        for (op, start_sector, sectors) in [
            (None, 0, 8),
            (Some(Op::Read), 0, 0),
            (Some(Op::Write), 0, 17),
            (Some(Op::Read), 2048, 1),
            (Some(Op::Discard), 2047, 2),
            (Some(Op::WriteZeroes), u64::MAX, 8),
            (Some(Op::Read), u64::MAX / SECTOR_BYTES, u32::MAX),
        ] {
            assert_eq!(
                asked(op, start_sector, sectors),
                None,
                "{op:?} {start_sector}"
            );
        }
    }
}
