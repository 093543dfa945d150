//! The driver that uses one `io_uring` and normally enters it once per turn.
//!
//! The `user_data` of a submission is the key of its operation, and completions are matched to
//! operations by this key alone. Every entry that the driver hands to the kernel must point only at
//! memory that a slot owns.

mod entry;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::driver::{Completion, Descriptor, Driver, Request};
use super::{IN_FLIGHT_MAX, UringOptions};
use crate::buf::{BLOCK_BYTES_MAX, BufPool};

/// Number of entries of the submission queue. If a turn starts more operations than this, the ring
/// is entered more than once in the turn.
const SUBMISSIONS: u32 = 1024;
/// Number of queued operations that are submitted together, without waiting for the end of the
/// turn. The kernel prepares all operations of a batch before it starts any of them. A device that
/// serves many requests in parallel is therefore idle while the kernel prepares a long batch. For
/// random reads of 4 KiB at depth 32 from a virtual disk, the median was 369 us with one batch per
/// turn and 273 us with this limit. The reads also took less CPU each with this limit.
const SUBMIT_AT: usize = 4;
/// Maximum number of registered files.
const FIXED_FILES: u32 = 256;
/// The `user_data` of cancel requests, whose own completions are ignored.
const CANCEL: u64 = u64::MAX;

/// The ring.
pub(super) struct Ring {
    ring: RefCell<IoUring>,
    /// Address of the region of the pool, and for each of its pieces whether it is registered with
    /// the kernel, as a buffer whose index is the number of the piece. No buffer of the pool lies
    /// in two pieces. Buffers of other pools and of the heap are outside. An operation that used
    /// such a buffer as a registered buffer would fail (`EFAULT`).
    region: usize,
    registered: RefCell<Vec<bool>>,
    /// Free indexes of the table of registered files; empty when there is no table.
    free_places: RefCell<Vec<u32>>,
    /// True when entries were pushed since the ring was last entered.
    pushed: Cell<bool>,
}

impl Ring {
    /// Creates a ring. If `options` request it, also registers the region of `pool` and a table of
    /// files. The second value is the error with which the kernel refused a registration, if any;
    /// the ring works without it.
    ///
    /// # Errors
    /// The errors of `io_uring_setup(2)` and of the first operation; `Unsupported` if the kernel
    /// lacks a needed operation.
    pub(super) fn new(
        options: &UringOptions,
        pool: &BufPool,
    ) -> io::Result<(Ring, Option<io::Error>)> {
        let mut ring = new_ring()?;
        must_work(&mut ring)?;
        let mut ring = Ring {
            ring: RefCell::new(ring),
            region: pool.pieces().0,
            registered: RefCell::default(),
            free_places: RefCell::default(),
            pushed: Cell::new(false),
        };
        let refused = match options.register {
            true => ring.register_all(pool)?,
            false => None,
        };
        Ok((ring, refused))
    }

    /// Registers the region of the pool and a table of files with the ring. The ring works without
    /// them. So a refusal because of a limit is not a failure: its error is returned in `Some` (the
    /// first error, if both registrations are refused).
    fn register_all(&mut self, pool: &BufPool) -> io::Result<Option<io::Error>> {
        let mut refused = None;
        let ring = self.ring.borrow();
        let (_, present) = pool.pieces();
        if !present.is_empty() {
            let there: Vec<libc::iovec> = (0..present.len())
                .filter(|&piece| present[piece])
                .map(|piece| self.piece(piece))
                .collect();
            match ring
                .submitter()
                .register_buffers_sparse(present.len() as u32)
            {
                Ok(()) => {
                    self.registered.replace(vec![false; present.len()]);
                    let pieces = (0..present.len()).filter(|&piece| present[piece]);
                    let results = pieces.map(|piece| accept_limits(self.update(piece, true)));
                    for limit in results.collect::<io::Result<Vec<_>>>()? {
                        refused = refused.or(limit);
                    }
                }
                // The kernel is older than 5.19. It registers what is there from the start.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    // SAFETY: as in `update`.
                    let result = unsafe { ring.submitter().register_buffers(&there) };
                    match accept_limits(result)? {
                        None => *self.registered.borrow_mut() = present,
                        limit => refused = limit,
                    }
                }
                Err(e) => refused = accept_limits(Err(e))?,
            }
        }
        match accept_limits(ring.submitter().register_files_sparse(FIXED_FILES))? {
            None => *self.free_places.borrow_mut() = (0..FIXED_FILES).rev().collect(),
            limit => refused = refused.or(limit),
        }
        drop(ring);
        // If a kernel is too old for a feature, this is not reported, since no setting of an
        // administrator could enable the feature.
        Ok(refused.filter(|limit| limit.raw_os_error() != Some(libc::EINVAL)))
    }

    /// Returns a piece of the region, for the kernel.
    fn piece(&self, piece: usize) -> libc::iovec {
        libc::iovec {
            iov_base: (self.region + piece * BLOCK_BYTES_MAX) as *mut libc::c_void,
            iov_len: BLOCK_BYTES_MAX,
        }
    }

    /// Registers a piece in the table of buffers, or removes it.
    fn update(&self, piece: usize, is_there: bool) -> io::Result<()> {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let buffer = match is_there {
            true => self.piece(piece),
            false => nothing,
        };
        let ring = self.ring.borrow();
        // SAFETY: the region outlives the ring's use of it: the runtime waits for every operation
        // when it ends, and the pool unmaps the region only after its last handle has been dropped.
        // A piece that is there has its memory until it is removed from the table.
        let result = unsafe {
            ring.submitter()
                .register_buffers_update(piece as u32, &[buffer], None)
        };
        self.registered.borrow_mut()[piece] = is_there && result.is_ok();
        result
    }

    /// Returns the index of the registered buffer in which all `len` bytes at `start` lie; `None`
    /// if there is none.
    fn registered(&self, start: *const u8, len: usize) -> Option<u16> {
        let offset = (start as usize).checked_sub(self.region)?;
        let piece = offset / BLOCK_BYTES_MAX;
        let is_registered = self.registered.borrow().get(piece).copied()?;
        let is_within = offset % BLOCK_BYTES_MAX + len <= BLOCK_BYTES_MAX;
        u16::try_from(piece)
            .ok()
            .filter(|_| is_registered && is_within)
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            let mut ring = self.ring.borrow_mut();
            // SAFETY: the entry points only at memory owned by its slot, which lives until the
            // completion; see the ownership contract of the crate.
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

    /// Submits the queued entries to the kernel. Completions are handled at the end of the turn.
    fn submit_queued(&self) {
        self.pushed.set(false);
        let result = self.ring.borrow().submitter().submit();
        self.entered(result);
    }

    fn entered(&self, result: io::Result<usize>) {
        match result {
            Ok(_) => {}
            // ETIME: the deadline has passed. EINTR: a signal has arrived. EBUSY and EAGAIN:
            // completions must be reaped first, or the kernel is short of memory. In all these
            // cases the entries stay queued for the next turn.
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
            // SAFETY: the call passes no argument to the kernel.
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

    /// Puts a file into the table of registered files; returns `None` when the table has no room or
    /// does not exist.
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

    fn register_piece(&self, piece: usize, is_there: bool) {
        if piece >= self.registered.borrow().len() {
            // Nothing is registered, because the options or a limit forbid it.
            return;
        }
        // A kernel that is short of memory, or whose table is fixed, refuses the piece. Then the
        // operations in it name their memory by address, as those on the heap do.
        let _ = self.update(piece, is_there);
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

/// Creates a ring with the features of newer kernels, or a ring without them if the kernel refuses
/// the features.
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

/// Checks that the ring supports the operations that this crate needs, and lets it execute an
/// operation. The execution is necessary, since a system call filter can permit the creation of a
/// ring and forbid its use.
fn must_work(ring: &mut IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    match ring.submitter().register_probe(&mut probe) {
        // A kernel without the probe lacks needed operations, too: Linux 5.6 introduced the probe
        // and some of these operations.
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

/// Returns `Ok(Some(error))` if the kernel refuses a registration because of a limit or because the
/// kernel is old. This is no failure, since registration is only an optimisation.
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
