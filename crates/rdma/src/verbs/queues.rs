//! The queues of one connection, and the registered memory that holds its messages.

use std::cell::RefCell;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use bimetal_rt::real_time::set_nonblocking;

use super::abi::{self, Completion, CompletionChannel, Mr, Pd, QpInit, Sge};
use super::cm::CmId;
use super::last_error;
use super::library::{Library, the_library};

/// Number of completions that are taken in one call.
const POLLED: usize = 16;
/// Page size of registered memory.
const PAGE_BYTES: usize = 4096;
/// Kind of a work request, stored in the high bits of its ID. The low 16 bits of the ID hold the
/// number of the request's buffer.
const SEND: u64 = 1 << 32;
const IDLE_SEND: u64 = 2 << 32;
const RECEIVE: u64 = 3 << 32;

/// Queue depths and buffer size of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    /// Number of receive buffers.
    pub(crate) receives: u16,
    /// Number of send buffers.
    pub(crate) sends: u16,
    /// Maximum number of messages without data that are in flight.
    pub(crate) idle_sends: u16,
    /// Size of each buffer in bytes: whole pages.
    pub(crate) buffer_bytes: usize,
}

/// The work that a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// The send of a message from the buffer of this number has completed.
    Sent(u16),
    /// The send of a message without data has completed.
    IdleSent,
    /// A message has been received into the buffer of this number.
    Received {
        /// The buffer.
        slot: u16,
        /// Its length.
        bytes: u32,
        /// Its immediate word.
        word: Option<u32>,
    },
}

/// A completion: the completed work, or the reason why it failed.
pub(crate) type Done = Result<Work, String>;

/// Memory that a device reads and writes.
struct Region {
    start: NonNull<u8>,
    layout: std::alloc::Layout,
}

impl Region {
    fn new(bytes: usize) -> Region {
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE_BYTES)
            .expect("a few buffers fit a layout");
        // SAFETY: there is at least one buffer, so the size is more than zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            std::alloc::handle_alloc_error(layout)
        };
        Region { start, layout }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout. `Queues` has ended the registration of
        // the memory before this drop.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A queue pair and its resources. Receive buffers and send buffers are each numbered from 0.
pub(crate) struct Queues {
    library: &'static Library,
    id: CmId,
    depths: Depths,
    /// One flag for each buffer, true while the device owns the buffer. The flags of the receive
    /// buffers come first, then those of the send buffers.
    lent: RefCell<Vec<bool>>,
    region: Region,
    pd: NonNull<Pd>,
    mr: NonNull<Mr>,
    channel: NonNull<CompletionChannel>,
    cq: NonNull<abi::Cq>,
    qp: NonNull<abi::Qp>,
}

/// Resources created so far, which are released if a later resource cannot be created.
struct Parts {
    library: &'static Library,
    pd: *mut Pd,
    mr: *mut Mr,
    channel: *mut CompletionChannel,
    cq: *mut abi::Cq,
}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: the library created each resource. Each resource is released once, after the
        // resources that depend on it, and when no code uses it any more. An error would mean that
        // a resource is still in use.
        unsafe {
            if !self.cq.is_null() {
                (self.library.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.library.ibv_destroy_comp_channel)(self.channel);
            }
            if !self.mr.is_null() {
                (self.library.ibv_dereg_mr)(self.mr);
            }
            if !self.pd.is_null() {
                (self.library.ibv_dealloc_pd)(self.pd);
            }
        }
    }
}

impl Queues {
    /// Creates the queues of an identifier whose device is known.
    ///
    /// # Errors
    /// The errors of the kernel, mostly about locked memory.
    pub(crate) fn new(id: CmId, depths: Depths) -> io::Result<Queues> {
        let library = the_library()?;
        let (raw_id, context) = id.raw();
        if context.is_null() {
            return Err(io::Error::other("no RDMA device has this address"));
        }
        let buffers = usize::from(depths.receives) + usize::from(depths.sends);
        let region = Region::new(buffers * depths.buffer_bytes);
        let mut parts = Parts {
            library,
            pd: ptr::null_mut(),
            mr: ptr::null_mut(),
            channel: ptr::null_mut(),
            cq: ptr::null_mut(),
        };
        // SAFETY: the device of a live identifier is open, and every result is checked before it is
        // used. The region is exactly the memory that is registered, and is freed after its
        // registration has ended.
        unsafe {
            parts.pd = (library.ibv_alloc_pd)(context);
            let pd = made(parts.pd, "cannot create a protection domain")?;
            let (start, bytes) = (region.start.as_ptr().cast(), region.layout.size());
            parts.mr = (library.ibv_reg_mr)(parts.pd, start, bytes, abi::ACCESS_LOCAL_WRITE);
            let mr = made(parts.mr, &format!("cannot register {bytes} bytes"))?;
            parts.channel = (library.ibv_create_comp_channel)(context);
            let channel = made(parts.channel, "cannot create a completion channel")?;
            let entries = i32::from(depths.receives + depths.sends + depths.idle_sends);
            let none = ptr::null_mut();
            parts.cq = (library.ibv_create_cq)(context, entries, none, parts.channel, 0);
            let cq = made(parts.cq, "cannot create a completion queue")?;
            let mut init = qp_init(parts.cq, depths);
            if (library.rdma_create_qp)(raw_id, parts.pd, &raw mut init) != 0 {
                return Err(last_error("cannot create a queue pair"));
            }
            let qp = NonNull::new((*raw_id).qp).expect("it has just been made");
            // From here on, `Queues` releases all resources.
            std::mem::forget(parts);
            let queues = Queues {
                library,
                id,
                depths,
                lent: RefCell::new(vec![false; buffers]),
                region,
                pd,
                mr,
                channel,
                cq,
                qp,
            };
            set_nonblocking(queues.fd())?;
            Ok(queues)
        }
    }

    /// Returns the identifier.
    pub(crate) fn id(&self) -> &CmId {
        &self.id
    }

    /// Returns the descriptor, which is readable when the [armed](Self::arm) queue has a new
    /// completion.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and the descriptor as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Requests one notification of the next completion. If `receives_alone`, only the completion
    /// of a receive causes the notification; otherwise the completion of any work request does. A
    /// failure always causes a notification, because it completes the posted receives with an error
    /// (it flushes them). A completion that exists already might cause no notification.
    ///
    /// # Errors
    /// The errors of the device.
    pub(crate) fn arm(&self, receives_alone: bool) -> io::Result<()> {
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is alive, and its device has this function.
        let result = unsafe {
            let notify = (*(*cq).context).ops.req_notify_cq;
            notify(cq, i32::from(receives_alone))
        };
        posted(result, "cannot request a completion notification")
    }

    /// Takes a notification; returns false when there is none.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub(crate) fn take_notice(&self) -> io::Result<bool> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let get = self.library.ibv_get_cq_event;
        // SAFETY: the channel is alive, and only this call writes to the two pointers.
        let result = unsafe { get(self.channel.as_ptr(), &raw mut cq, &raw mut context) };
        if result != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        // SAFETY: the call has returned one event of this queue, the only queue of the channel.
        unsafe { (self.library.ibv_ack_cq_events)(cq, 1) };
        Ok(true)
    }

    /// Polls for completions and passes them to `each`, oldest first. Returns false when there was
    /// no completion.
    ///
    /// # Errors
    /// If the device reports that it is broken.
    pub(crate) fn poll(&self, mut each: impl FnMut(Done)) -> io::Result<bool> {
        let mut entries = [Completion::default(); POLLED];
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is alive, its device has this function, and the function writes at most
        // `POLLED` entries.
        let count = unsafe {
            let poll = (*(*cq).context).ops.poll_cq;
            poll(cq, POLLED as i32, entries.as_mut_ptr())
        };
        let count =
            usize::try_from(count).map_err(|_| last_error("cannot poll for completions"))?;
        for entry in &entries[..count] {
            let done = self.done(entry);
            each(done);
        }
        Ok(count > 0)
    }

    /// Decodes a completion, and records that the device no longer owns its buffer.
    fn done(&self, entry: &Completion) -> Done {
        let (kind, slot) = (entry.wr_id & !0xffff, entry.wr_id as u16);
        match kind {
            RECEIVE => self.lend(usize::from(slot), false),
            SEND => self.lend(self.send_index(slot), false),
            _ => {}
        }
        if entry.status != abi::WC_SUCCESS {
            // SAFETY: the library has a text for every status number, and never frees these texts.
            let words = unsafe { CStr::from_ptr((self.library.ibv_wc_status_str)(entry.status)) };
            return Err(words.to_string_lossy().into_owned());
        }
        Ok(match kind {
            SEND => Work::Sent(slot),
            IDLE_SEND => Work::IdleSent,
            _ => Work::Received {
                slot,
                bytes: entry.byte_len,
                word: (entry.wc_flags & abi::WC_WITH_IMM != 0)
                    .then(|| u32::from_be(entry.imm_data)),
            },
        })
    }

    fn send_index(&self, slot: u16) -> usize {
        assert!(slot < self.depths.sends, "there is such a buffer");
        usize::from(self.depths.receives) + usize::from(slot)
    }

    /// Records whether a buffer is owned by the device (`lent`) or by the program.
    fn lend(&self, index: usize, lent: bool) {
        let before = std::mem::replace(&mut self.lent.borrow_mut()[index], lent);
        assert_ne!(before, lent, "a buffer goes to the device and comes back");
    }

    /// Returns the address of a buffer. The device must not own the buffer, because the caller must
    /// be the only one that accesses it.
    fn buffer(&self, index: usize) -> *mut u8 {
        assert!(!self.lent.borrow()[index], "the device has this buffer");
        // SAFETY: the region has one buffer for each index of `lent`.
        unsafe {
            self.region
                .start
                .as_ptr()
                .add(index * self.depths.buffer_bytes)
        }
    }

    /// Posts a receive into a buffer.
    ///
    /// # Errors
    /// The errors of the device.
    ///
    /// # Panics
    /// If the buffer is already posted.
    pub(crate) fn post_receive(&self, slot: u16) -> io::Result<()> {
        assert!(slot < self.depths.receives, "there is such a buffer");
        let index = usize::from(slot);
        let mut sge = self.sge(index, self.depths.buffer_bytes);
        let mut request = abi::ReceiveRequest {
            wr_id: RECEIVE | u64::from(slot),
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let (qp, mut bad) = (self.qp.as_ptr(), ptr::null_mut());
        // SAFETY: the queue pair is alive and its device has this function. The call copies the
        // request, and the buffer is neither moved nor accessed until the completion.
        let result = unsafe {
            let post = (*(*qp).context).ops.post_recv;
            post(qp, &raw mut request, &raw mut bad)
        };
        posted(result, "cannot post a receive")?;
        self.lend(index, true);
        Ok(())
    }

    /// Copies the data of a completed receive to `out`, from offset `from` of the buffer on.
    ///
    /// # Panics
    /// If the buffer is posted, or is too short.
    pub(crate) fn copy_received(&self, slot: u16, from: usize, out: &mut [u8]) {
        assert!(slot < self.depths.receives, "there is such a buffer");
        assert!(
            from + out.len() <= self.depths.buffer_bytes,
            "it is so long"
        );
        let start = self.buffer(usize::from(slot));
        // SAFETY: the bytes lie in the buffer, which was initialised when it was allocated and is
        // not owned by the device. `out` does not overlap the buffer.
        unsafe { ptr::copy_nonoverlapping(start.add(from), out.as_mut_ptr(), out.len()) };
    }

    /// Fills the first `bytes` bytes of a buffer by calling `fill`, and sends them together with an
    /// immediate word (a 32-bit number that the message carries in addition to its data).
    ///
    /// # Errors
    /// The errors of the device.
    ///
    /// # Panics
    /// If the buffer is in flight, or is too short.
    pub(crate) fn send(
        &self,
        slot: u16,
        bytes: usize,
        word: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        assert!(bytes <= self.depths.buffer_bytes, "it is so long");
        let index = self.send_index(slot);
        // SAFETY: the bytes lie in the buffer, which was initialised when it was allocated and is
        // not owned by the device; the slice does not outlive this call.
        fill(unsafe { std::slice::from_raw_parts_mut(self.buffer(index), bytes) });
        let mut sge = self.sge(index, bytes);
        self.post_send(SEND | u64::from(slot), Some(&mut sge), word)?;
        self.lend(index, true);
        Ok(())
    }

    /// Sends a message that carries no data but an immediate word (a 32-bit number).
    ///
    /// # Errors
    /// The errors of the device.
    pub(crate) fn send_idle(&self, word: u32) -> io::Result<()> {
        self.post_send(IDLE_SEND, None, word)
    }

    fn sge(&self, index: usize, bytes: usize) -> Sge {
        // SAFETY: the registration lives as long as `self`.
        let lkey = unsafe { self.mr.as_ref().lkey };
        Sge {
            addr: self.buffer(index) as u64,
            length: bytes as u32,
            lkey,
        }
    }

    fn post_send(&self, wr_id: u64, sge: Option<&mut Sge>, word: u32) -> io::Result<()> {
        let num_sge = i32::from(sge.is_some());
        let mut request = abi::SendRequest {
            wr_id,
            next: ptr::null_mut(),
            sg_list: sge.map_or(ptr::null_mut(), ptr::from_mut),
            num_sge,
            opcode: abi::WR_SEND_WITH_IMM,
            send_flags: abi::SEND_SIGNALED | abi::SEND_SOLICITED,
            imm_data: word.to_be(),
            unused: [0; 11],
        };
        let (qp, mut bad) = (self.qp.as_ptr(), ptr::null_mut());
        // SAFETY: the queue pair is alive and its device has this function. The call copies the
        // request, and the buffer is neither moved nor accessed until the completion.
        let result = unsafe {
            let post = (*(*qp).context).ops.post_send;
            post(qp, &raw mut request, &raw mut bad)
        };
        posted(result, "cannot post a send")
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: the queue pair is destroyed before its buffers are freed, and a destroyed queue
        // pair owns no buffer. Every event was acknowledged when it was taken.
        unsafe { (self.library.rdma_destroy_qp)(self.id.raw().0) };
        drop(Parts {
            library: self.library,
            pd: self.pd.as_ptr(),
            mr: self.mr.as_ptr(),
            channel: self.channel.as_ptr(),
            cq: self.cq.as_ptr(),
        });
    }
}

fn made<T>(raw: *mut T, what: &str) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(|| last_error(what))
}

/// Checks the result of a function that returns 0 or an error number.
fn posted(result: i32, what: &str) -> io::Result<()> {
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(result.abs());
    Err(io::Error::new(error.kind(), format!("{what}: {error}")))
}

fn qp_init(cq: *mut abi::Cq, depths: Depths) -> QpInit {
    QpInit {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: ptr::null_mut(),
        max_send_wr: u32::from(depths.sends) + u32::from(depths.idle_sends),
        max_recv_wr: u32::from(depths.receives),
        max_send_sge: 1,
        max_recv_sge: 1,
        // Inline sends fail on soft RoCE.
        max_inline_data: 0,
        qp_type: abi::QPT_RC,
        sq_sig_all: 0,
    }
}
