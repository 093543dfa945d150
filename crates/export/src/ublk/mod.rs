//! Attaches a device as a block device of the local machine, `/dev/ublkbN`, through the kernel's
//! driver `ublk_drv`.
//!
//! The kernel passes every request on the block device to this process through `io_uring`, on the
//! ring that also serves all other I/O. Each device has one queue, which one thread serves. The
//! interface is specified by the kernel's `Documentation/block/ublk.rst` and `linux/ublk_cmd.h`.
//! The driver copies the data between the request and a buffer that belongs to the request's tag.
//!
//! The driver accesses buffers of this process, so this module is allowed to use `unsafe`. It
//! vouches for these accesses. It must never answer a request before the device below has answered.
//! It must never leave a block device behind without a report.

mod abi;
mod control;
mod queue;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::{BLOCK_BYTES, Device, Geometry, Op, StatisticVisitor};
use bimetal_rt::Rt;

use abi::{ANY_NUMBER, DeviceInfo, Parameters, QUEUE_DEPTH_MAX, SECTOR_BYTES};
pub use control::AttachError;
use control::{ControlFile, block_path, queue_path};
use queue::UblkQueue;

/// Maximum number of requests in flight. Each has a buffer that exists until the block device ends:
/// 16 MiB in total.
const QUEUE_DEPTH: u16 = 64;
/// Maximum length of a transfer in bytes. The kernel splits longer transfers.
const BUFFER_BYTES: u32 = 256 << 10;
/// Maximum length of a discard or write-zeroes in bytes.
const RANGE_BYTES_MAX: u64 = 1 << 31;
const _: () = assert!(QUEUE_DEPTH <= QUEUE_DEPTH_MAX);

/// Options of an attachment.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttachOptions {
    /// The number N of `/dev/ublkbN`; `None` selects the lowest free number.
    pub number: Option<u32>,
    /// Whether the block device refuses changes, even if the device below is writable.
    pub read_only: bool,
}

/// A block device of the local machine. It must be removed with [`detach`](Attachment::detach)
/// before the runtime ends.
pub struct Attachment {
    control: ControlFile,
    number: u32,
    /// Queue of the device; `None` after `detach` has been called.
    queue: RefCell<Option<Rc<UblkQueue>>>,
}

impl Attachment {
    /// Attaches a device as a block device. The device is wrapped in an atomic unit, a layer that
    /// makes requests for single sectors possible.
    ///
    /// # Errors
    /// A failure as an [`AttachError`]; no block device then remains.
    pub async fn attach(
        rt: &Rt,
        device: Rc<dyn Device>,
        options: AttachOptions,
    ) -> Result<Attachment, AttachError> {
        let geometry = *device.geometry();
        let parameters = parameters(&geometry, options.read_only)?;
        let control = ControlFile::open(rt)?;
        let info = DeviceInfo {
            queues: 1,
            queue_depth: QUEUE_DEPTH,
            buffer_bytes: parameters.transfer_bytes_max,
            number: options.number.unwrap_or(ANY_NUMBER),
            server: 0,
        };
        let number = control.add(&info).await?.number;
        match serve(rt, &control, number, &parameters, device).await {
            Ok(queue) => Ok(Attachment {
                control,
                number,
                queue: RefCell::new(Some(queue)),
            }),
            Err(error) => {
                // If the deletion fails as well, only the original failure is reported.
                let _ = control.delete(number).await;
                Err(error)
            }
        }
    }

    /// Returns the path of the block device.
    pub fn path(&self) -> String {
        block_path(self.number)
    }

    /// Waits until the block device has ended without a call of [`detach`](Attachment::detach).
    /// This happens if another process stops the device, or if the driver fails.
    pub async fn ended(&self) {
        let queue = self.queue.borrow().clone();
        if let Some(queue) = queue {
            queue.ended(QUEUE_DEPTH).await;
        }
    }

    /// Removes the block device. A file system that is mounted on it writes its data first, and
    /// fails from then on. Requests in flight are answered.
    ///
    /// # Errors
    /// The driver's failure to remove the device, or the earlier error that had stopped the
    /// service.
    pub async fn detach(&self) -> Result<(), AttachError> {
        let Some(queue) = self.queue.take() else {
            return Ok(());
        };
        let stopped = gone_is_done(self.control.stop(self.number).await);
        if stopped.is_ok() {
            queue.join().await;
        }
        let failure = queue.failure().map(|error| AttachError::Refused {
            device: self.path(),
            step: "serving the device",
            error,
        });
        // An old driver waits during the deletion until all open files of the device are closed.
        // The queue holds one of these files, so it is dropped first.
        drop(queue);
        let deleted = gone_is_done(self.control.delete(self.number).await);
        failure.map_or(Ok(()), Err).and(stopped).and(deleted)
    }

    /// Reports the live counters of the block device.
    pub fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let queue = self.queue.borrow();
        let Some(counters) = queue.as_ref().map(|queue| &queue.counters) else {
            return;
        };
        let ops = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
        counters.statistics(&self.path(), &ops, out);
    }
}

/// Removes a block device that another process serves, or whose server no longer runs.
///
/// # Errors
/// A failure as an [`AttachError`]; `Missing` if no device has this number.
pub async fn detach(rt: &Rt, number: u32) -> Result<(), AttachError> {
    let control = ControlFile::open(rt)?;
    control.info(number).await?;
    gone_is_done(control.stop(number).await)?;
    gone_is_done(control.delete(number).await)
}

/// Configures and starts a device that has been added. After a failure no request is in flight,
/// unless the driver was also unable to stop the device.
async fn serve(
    rt: &Rt,
    control: &ControlFile,
    number: u32,
    parameters: &Parameters,
    device: Rc<dyn Device>,
) -> Result<Rc<UblkQueue>, AttachError> {
    control.set_parameters(number, parameters).await?;
    let path = queue_path(number);
    let unit: Rc<dyn Device> = Rc::new(AtomicUnit::new(rt, device));
    let buffer_bytes = parameters.transfer_bytes_max as usize;
    let queue = UblkQueue::start(rt, Path::new(&path), unit, QUEUE_DEPTH, buffer_bytes);
    let queue = queue.map_err(|error| AttachError::File {
        path: path.into(),
        error,
    })?;
    match control.start(number).await {
        Ok(()) => Ok(queue),
        Err(error) => {
            // Stopping the device makes the driver complete the pending commands of the tags.
            // Without this, `join` would wait forever.
            if control.stop(number).await.is_ok() {
                queue.join().await;
            }
            Err(error)
        }
    }
}

/// Treats a missing device as success: another process may have removed it already.
fn gone_is_done(done: Result<(), AttachError>) -> Result<(), AttachError> {
    match done {
        Err(AttachError::Missing(_)) => Ok(()),
        done => done,
    }
}

/// Returns the parameters of the block device for the kernel. The logical sector size is 512 bytes,
/// as in all other interfaces to a volume, so that a partition table has the same meaning in all of
/// them. In addition, the kernel is told a physical block size: 4 KiB, or the size that the device
/// writes as one unit internally.
fn parameters(geometry: &Geometry, read_only: bool) -> Result<Parameters, AttachError> {
    if geometry.size_bytes == 0 || !geometry.size_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(AttachError::Size(geometry.size_bytes));
    }
    let block_bytes = BLOCK_BYTES as u32;
    let transfer_bytes_max = BUFFER_BYTES.min(geometry.transfer_bytes_max);
    Ok(Parameters {
        size_bytes: geometry.size_bytes,
        read_only: read_only || !geometry.writable,
        rotational: geometry.rotational,
        logical_block_bytes: SECTOR_BYTES as u32,
        physical_block_bytes: geometry.physical_bytes.max(block_bytes),
        preferred_bytes: geometry.preferred_bytes.max(block_bytes),
        // The driver requires a whole number of pages, at least one.
        transfer_bytes_max: (transfer_bytes_max & !(block_bytes - 1)).max(block_bytes),
        range_bytes_max: RANGE_BYTES_MAX,
    })
}
