//! The driver over one `io_uring`, entered once a turn.
//!
//! Operations are named by the `user_data` of the submission; completions are matched by it and by
//! nothing else. It must never hand the kernel an entry that points at memory which no slot owns.

mod entry;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::driver::{Completion, Descriptor, Driver, Request};
use super::{IN_FLIGHT_MAX, UringOptions};
use crate::buf::BufPool;

/// Submission queue entries; more operations than this simply enter the ring more often.
const SUBMISSIONS: u32 = 1024;
/// Operations queued before they go to the kernel without waiting for the end of the turn. The
/// kernel holds a long batch back until all of it is prepared, and a device that works on many
/// requests at once stands still meanwhile: random reads of 4 KiB at depth 32 from a virtual disk
/// got a fifth faster, at less CPU each, than with one batch a turn (medians of 369 and 273 us).
const SUBMIT_AT: usize = 4;
/// Files that can be registered.
const FIXED_FILES: u32 = 256;
/// `user_data` of requests to cancel, whose own completion nobody waits for.
const CANCEL: u64 = u64::MAX;

/// The ring.
pub(super) struct Ring {
    ring: RefCell<IoUring>,
    /// Addresses of the region that the kernel knows. Buffers of other pools and of the heap lie
    /// outside, and an operation that named them as registered would fail (`EFAULT`).
    registered: Range<usize>,
    /// Which places of the registered file table are free; none when registering failed.
    free_places: RefCell<Vec<u32>>,
    /// Entries were pushed since the ring was last entered.
    pushed: Cell<bool>,
}

impl Ring {
    /// A ring, with the region of `pool` registered where that is wanted and allowed. The second
    /// value says why it could not be registered, if so.
    ///
    /// # Errors
    /// Those of `io_uring_setup(2)`, and of the first operation; `Unsupported` when the kernel
    /// lacks an operation that is needed.
    pub(super) fn new(
        options: &UringOptions,
        pool: &BufPool,
    ) -> io::Result<(Ring, Option<io::Error>)> {
        let mut ring = new_ring()?;
        must_work(&mut ring)?;
        let mut ring = Ring {
            ring: RefCell::new(ring),
            registered: 0..0,
            free_places: RefCell::default(),
            pushed: Cell::new(false),
        };
        let refused = match options.register {
            true => ring.register_all(pool)?,
            false => None,
        };
        Ok((ring, refused))
    }

    /// Registers the region of the pool and a table of files, or says why one of them is refused.
    fn register_all(&mut self, pool: &BufPool) -> io::Result<Option<io::Error>> {
        let mut refused = None;
        let ring = self.ring.borrow();
        if let Some(region) = pool.region_iovec() {
            // SAFETY: the region outlives the ring's use of it: the runtime waits for every
            // operation when it ends, and the pool unmaps only after its last handle is gone.
            let result = unsafe { ring.submitter().register_buffers(&[region]) };
            match accept_limits(result)? {
                None => {
                    let start = region.iov_base as usize;
                    self.registered = start..start + region.iov_len;
                }
                limit => refused = limit,
            }
        }
        match accept_limits(ring.submitter().register_files_sparse(FIXED_FILES))? {
            None => *self.free_places.borrow_mut() = (0..FIXED_FILES).rev().collect(),
            limit => refused = refused.or(limit),
        }
        drop(ring);
        // What an old kernel does not know is nothing that anybody could allow.
        Ok(refused.filter(|limit| limit.raw_os_error() != Some(libc::EINVAL)))
    }

    /// True when all of these bytes lie in the region that is registered with this ring.
    fn has_registered(&self, start: *const u8, len: usize) -> bool {
        let start = start as usize;
        self.registered.start <= start && start + len <= self.registered.end
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            let mut ring = self.ring.borrow_mut();
            // SAFETY: the entry points only at memory owned by its slot, which lives until the
            // completion; see the ownership contract.
            let pushed = unsafe { ring.submission().push(entry) };
            let queued = ring.submission().len();
            drop(ring);
            self.pushed.set(true);
            match pushed {
                Ok(()) if queued >= SUBMIT_AT => return self.submit_queued(),
                Ok(()) => return,
                Err(_full) => self.enter(false, None),
            }
        }
    }

    /// Hands what has been queued to the kernel; completions are left for the end of the turn.
    fn submit_queued(&self) {
        self.pushed.set(false);
        let result = self.ring.borrow().submitter().submit();
        self.entered(result);
    }

    fn entered(&self, result: io::Result<usize>) {
        match result {
            Ok(_) => {}
            // ETIME: the deadline came first. EINTR: a signal. EBUSY and EAGAIN: the kernel wants
            // completions reaped or lacks memory for now; the entries stay queued for the next
            // turn.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                self.pushed.set(true);
            }
            Err(e) => panic!("entering the ring failed, which only a bug here can cause: {e}"),
        }
    }
}

impl Driver for Ring {
    fn start(&self, key: usize, file: &Descriptor, request: &Request) {
        let entry = self.entry(file, request);
        self.push(&entry.user_data(key as u64));
    }

    fn cancel(&self, key: usize, _file: &Descriptor) {
        let cancel = opcode::AsyncCancel::new(key as u64).build();
        self.push(&cancel.user_data(CANCEL));
    }

    fn must_enter(&self) -> bool {
        self.pushed.get()
    }

    fn enter(&self, wait: bool, at_most: Option<Duration>) {
        const GET_EVENTS: u32 = 1;
        self.pushed.set(false);
        let queued = self.ring.borrow_mut().submission().len() as u32;
        let ring = self.ring.borrow();
        let submitter = ring.submitter();
        let result = match at_most {
            Some(at_most) if wait => {
                let spec = types::Timespec::from(at_most.max(Duration::from_nanos(1)));
                let args = types::SubmitArgs::new().timespec(&spec);
                submitter.submit_with_args(1, &args)
            }
            _ if wait => submitter.submit_and_wait(1),
            // SAFETY: no argument is passed, so there is none to be invalid.
            _ => unsafe { submitter.enter::<libc::sigset_t>(queued, 0, GET_EVENTS, None) },
        };
        self.entered(result);
    }

    fn has_completed(&self) -> bool {
        !self.ring.borrow_mut().completion().is_empty()
    }

    fn has_work(&self) -> bool {
        self.ring.borrow_mut().submission().taskrun()
    }

    fn reap(&self, completions: &mut Vec<Completion>) {
        let mut ring = self.ring.borrow_mut();
        let ends = ring.completion().filter(|end| end.user_data() != CANCEL);
        completions.extend(ends.map(|end| (end.user_data() as usize, end.result())));
    }

    /// Puts a file into the registered table; `None` when there is no room or no table.
    fn register(&self, fd: RawFd) -> Option<u32> {
        let place = self.free_places.borrow_mut().pop()?;
        let ring = self.ring.borrow();
        match ring.submitter().register_files_update(place, &[fd]) {
            Ok(_) => Some(place),
            Err(_limit) => {
                self.free_places.borrow_mut().push(place);
                None
            }
        }
    }

    fn forget(&self, _fd: RawFd, fixed: Option<u32>) {
        let Some(place) = fixed else { return };
        let ring = self.ring.borrow();
        ring.submitter()
            .register_files_update(place, &[-1])
            .expect("clearing a place of the file table cannot fail");
        self.free_places.borrow_mut().push(place);
    }
}

/// A ring with what newer kernels offer, or a plain one where they refuse.
fn new_ring() -> io::Result<IoUring> {
    let completions = (2 * IN_FLIGHT_MAX) as u32;
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(completions)
        .build(SUBMISSIONS)
        .or_else(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => IoUring::builder()
                .setup_cqsize(completions)
                .build(SUBMISSIONS),
            _ => Err(e),
        })
}

/// Holds a ring to the operations that this crate needs, and has it carry one out: a filter of
/// system calls may let a ring be made and forbid to use it.
fn must_work(ring: &mut IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    match ring.submitter().register_probe(&mut probe) {
        // Linux 5.6 brought the probe, and operations that are needed.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            return Err(io::ErrorKind::Unsupported.into());
        }
        probed => probed?,
    }
    if !entry::NEEDED.iter().all(|code| probe.is_supported(*code)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let nothing = opcode::Nop::new().build().user_data(CANCEL);
    // SAFETY: the operation names no memory.
    let pushed = unsafe { ring.submission().push(&nothing) };
    pushed.expect("a new ring has room");
    ring.submit_and_wait(1)?;
    let done = ring.completion().next().map(|end| end.result());
    assert_eq!(done, Some(0), "doing nothing cannot fail");
    Ok(())
}

/// Registration is an optimisation: what a limit or an old kernel refuses is done without.
fn accept_limits(result: io::Result<()>) -> io::Result<Option<io::Error>> {
    match result {
        Ok(()) => Ok(None),
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOMEM | libc::EPERM | libc::EINVAL | libc::EMFILE)
            ) =>
        {
            Ok(Some(e))
        }
        Err(e) => Err(e),
    }
}
