//! A connection to the kernel's FUSE. Each message that the ring reads from `/dev/fuse` becomes a
//! request to the device below, and the answer is written back to `/dev/fuse`.
//!
//! Several reads of `/dev/fuse` are pending at the same time, so that one turn of the ring can
//! receive several messages. Each read receives the data of a write in memory that is suitable for
//! direct I/O. Long data is passed to the device in place. Short data is copied, so that it does
//! not keep the memory of a long read allocated.
//!
//! The number of device requests in flight is bounded. The kernel has one queue for all messages,
//! so messages beyond the bound are still read, and their requests wait in this process. Requests
//! that need no device, such as `stat`, are therefore answered even if the device does not respond.
//! The memory of the waiting requests is bounded ([`Room`]).
//!
//! This module must never drop a message of the kernel without an answer: the calling process would
//! wait for the answer forever. It must also never abandon a request that it has started, so that
//! no change is left half done. Interruptions of requests (`FUSE_INTERRUPT`) are therefore refused,
//! so that the kernel sends no more of them.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use bimetal_block::{Device, Flags, IoError, Op, Origin, Reply, Request};
use bimetal_rt::real_time::{MessageBuf, MessageFile};
use bimetal_rt::sync::{Event, Permit, Semaphore, TaskGroup};
use bimetal_rt::turn::give_way;
use bimetal_rt::{Payload, Rt};

use crate::counters::{RequestCounters, add};

use super::abi::{
    self, Allocate, Asked, FILE, Facts, HEAD_BYTES, Header, Init, Limits, OUT_HEADER_BYTES,
    READ_BYTES_MIN, Range, Seek, errno,
};
use super::ended::is_end_of_mount;
use super::room::Room;

/// Number of reads of `/dev/fuse` that are pending at the same time.
pub(super) const READERS: usize = 4;
/// Maximum number of device requests in flight.
const IN_FLIGHT_MAX: u16 = 64;
/// Maximum length of the range in one discard, write-zeroes or extents request to the device.
/// Longer ranges are split.
const RANGE_BYTES_MAX: u64 = 1 << 31;
/// Maximum number of data slices of an answer. The header needs one slice more.
const SLICES_MAX: usize = 1023;

/// The errors `ENOENT` and `EINTR` of a write of an answer to `/dev/fuse` mean that the process
/// that sent the request no longer waits for the answer.
const ENOENT: i32 = 2;
const EINTR: i32 = 4;
/// Error number with which a kernel that is too old is refused.
const EPROTO: i32 = 71;

/// The part of an answer that follows its header.
enum Answer {
    Bytes(Vec<u8>),
    Data(Payload),
}

impl Answer {
    const NOTHING: Answer = Answer::Bytes(Vec::new());
}

/// A connection to the kernel's FUSE; see the module documentation.
pub(super) struct Connection {
    rt: Rt,
    file: MessageFile,
    device: Rc<dyn Device>,
    facts: Facts,
    limits: Limits,
    pub(super) counters: RequestCounters,
    in_flight: Rc<Semaphore>,
    /// Bound on the memory of requests that wait because too many device requests are in flight.
    room: Room,
    /// Limits the number of concurrent answers that are given without the device.
    quick: Rc<Semaphore>,
    readers: TaskGroup,
    /// First error that stopped the connection.
    failure: RefCell<Option<io::Error>>,
    /// Signals that a reader has ended.
    changed: Event,
}

impl Connection {
    /// Answers the kernel's first message, and starts readers for the following messages. `device`
    /// must accept requests of any offset and of any length up to `transfer_bytes_max`. Notices to
    /// the operator call the connection `subject`.
    ///
    /// # Errors
    /// The errors of reading and writing; `Unsupported` if the kernel is too old.
    pub(super) async fn start(
        rt: &Rt,
        file: MessageFile,
        device: Rc<dyn Device>,
        facts: Facts,
        transfer_bytes_max: u32,
        subject: String,
    ) -> io::Result<Rc<Connection>> {
        let connection = Rc::new(Connection {
            rt: rt.clone(),
            file,
            device,
            facts,
            limits: Limits {
                transfer_bytes_max,
                background_max: IN_FLIGHT_MAX,
            },
            counters: RequestCounters::new(rt),
            in_flight: Semaphore::new(u64::from(IN_FLIGHT_MAX)),
            room: Room::new(rt, subject),
            quick: Semaphore::new(u64::from(IN_FLIGHT_MAX)),
            readers: TaskGroup::new(rt),
            failure: RefCell::new(None),
            changed: Event::new(),
        });
        connection.greet().await?;
        for _ in 0..READERS {
            let this = Rc::clone(&connection);
            connection.readers.spawn(async move {
                this.read().await;
                this.changed.notify();
            });
        }
        Ok(connection)
    }

    /// Waits until a task that reads `/dev/fuse` has ended. Such a task ends when the file system
    /// is unmounted or an error occurs.
    pub(super) async fn ended(&self) {
        self.changed.until(|| self.has_ended()).await;
    }

    /// Whether a reader has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.readers.len() < READERS
    }

    /// Stops reading, and waits until every request in flight has been answered.
    pub(super) async fn finish(&self) {
        self.readers.cancel().await;
        // The semaphores serve requests in order, so these calls acquire all permits only after the
        // requests that already wait have completed.
        drop(self.in_flight.acquire(u64::from(IN_FLIGHT_MAX)).await);
        drop(self.quick.acquire(u64::from(IN_FLIGHT_MAX)).await);
    }

    /// Takes the first error that stopped the connection, if there was one.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.failure.borrow_mut().take()
    }

    fn fail(&self, error: io::Error) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    fn new_buf(&self) -> Box<MessageBuf> {
        // The allocation never waits: the number of reader buffers is bounded, and they live as
        // long as the mount.
        MessageBuf::new(HEAD_BYTES, self.rt.pool().alloc_now(self.body_bytes()))
    }

    fn body_bytes(&self) -> usize {
        READ_BYTES_MIN.max(self.limits.transfer_bytes_max as usize)
    }

    /// Processes the kernel's first messages until the protocol version is agreed on.
    async fn greet(&self) -> io::Result<()> {
        let mut buf = self.new_buf();
        loop {
            let (result, back) = self.file.read(buf).await;
            buf = back;
            let bytes = result?;
            let (header, asked) = parse(&buf, bytes).ok_or(io::ErrorKind::InvalidData)?;
            let Some(Asked::Init(init)) = asked else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let (answer, done) = self.greeting(&init);
            self.reply(header.unique, answer).await?;
            if done {
                return Ok(());
            }
            if init.major <= abi::MAJOR {
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
    }

    /// Returns the answer to the kernel's first message. Also returns whether the connection can be
    /// used after the answer.
    fn greeting(&self, init: &Init) -> (Result<Answer, i32>, bool) {
        if init.major > abi::MAJOR {
            return (Ok(Answer::Bytes(abi::other_major_answer())), false);
        }
        if !init.suffices() {
            return (Err(EPROTO), false);
        }
        (
            Ok(Answer::Bytes(abi::init_answer(init, &self.limits))),
            true,
        )
    }

    /// Receives messages and starts their requests until the file system is unmounted.
    async fn read(self: &Rc<Self>) {
        let mut buf = self.new_buf();
        loop {
            let (result, back) = self.file.read(buf).await;
            buf = back;
            let error = match result {
                Ok(bytes) => match self.take(&mut buf, bytes).await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(ENOENT | EINTR) => {}
                _ if is_end_of_mount(&error) => return,
                _ => return self.fail(error),
            }
        }
    }

    /// Starts the request of the message in `buf`, whose length is `bytes`. Afterwards the buffer
    /// can receive another message.
    async fn take(self: &Rc<Self>, buf: &mut Box<MessageBuf>, bytes: usize) -> io::Result<()> {
        let (header, asked) = parse(buf, bytes).ok_or(io::ErrorKind::InvalidData)?;
        if asked == Some(Asked::Forget) {
            return Ok(());
        }
        let Some(asked) = asked else {
            add(&self.counters.refused, 1);
            let permit = self.quick.acquire(1).await;
            self.answer_with(permit, header, async |_| Err(errno::EINVAL));
            return Ok(());
        };
        if let Asked::Write(range) = asked {
            let (data, held_bytes) = self.take_data(buf, range.len as usize);
            let work = async move |this: &Connection| this.write(header.node, range, data).await;
            self.begin(header, held_bytes, work).await;
            return Ok(());
        }
        let needs_device = asked.needs_device();
        let work = async move |this: &Connection| this.carry_out(header.node, asked).await;
        if needs_device {
            self.begin(header, 0, work).await;
        } else {
            let permit = self.quick.acquire(1).await;
            self.answer_with(permit, header, work);
        }
        Ok(())
    }

    /// Takes the data of a write out of the buffer's body. Returns the data, and the number of
    /// bytes of memory that the data occupies. This function never waits for memory, because a
    /// reader that waits could not receive messages that need no memory. The caller must bound the
    /// memory that the data of all writes occupies.
    fn take_data(&self, buf: &mut Box<MessageBuf>, len: usize) -> (Payload, usize) {
        if 2 * len < self.body_bytes() {
            return (self.rt.pool().copy_of(&buf.body()[..len]).into(), len);
        }
        let mut data = buf.take_body();
        data.truncate(len);
        buf.put_body(self.rt.pool().alloc_now(self.body_bytes()));
        (data.freeze().into(), self.body_bytes())
    }

    /// Starts a device request. If fewer than [`IN_FLIGHT_MAX`] device requests are in flight, the
    /// request starts immediately. Otherwise it waits for its turn, and holds `held_bytes` bytes of
    /// data in the meantime. If [`Room`] refuses this memory, the request fails.
    async fn begin<W>(self: &Rc<Self>, header: Header, held_bytes: usize, work: W)
    where
        W: AsyncFnOnce(&Connection) -> Result<Answer, i32> + 'static,
    {
        if let Some(permit) = self.in_flight.try_acquire(1) {
            return self.answer_with(permit, header, work);
        }
        let Some(held) = self.room.take(held_bytes).await else {
            let permit = self.quick.acquire(1).await;
            let refuse = async |this: &Connection| Err(this.refused(errno::ETIMEDOUT));
            return self.answer_with(permit, header, refuse);
        };
        let this = Rc::clone(self);
        let wait = async move {
            let permit = this.in_flight.acquire(1).await;
            drop(held);
            this.answer_with(permit, header, work);
        };
        // The task joins the semaphore's queue before `spawn_eager` returns, so requests keep their
        // order.
        self.rt.spawn_eager(wait).detach();
    }

    /// Executes `work` in a task, and answers the message with its result. Work that need not wait
    /// is completed before this function returns.
    fn answer_with<W>(self: &Rc<Self>, permit: Permit, header: Header, work: W)
    where
        W: AsyncFnOnce(&Connection) -> Result<Answer, i32> + 'static,
    {
        let this = Rc::clone(self);
        let run = async move {
            let answer = work(&this).await;
            if let Err(error) = this.reply(header.unique, answer).await
                && error.raw_os_error() != Some(ENOENT)
                && !is_end_of_mount(&error)
            {
                this.fail(error);
                // The answer could not be written, so the calling process waits until the
                // connection ends. End the connection.
                this.readers.cancel().await;
                this.changed.notify();
            }
            drop(permit);
        };
        self.rt.spawn_eager(run).detach();
    }

    async fn reply(&self, unique: u64, answer: Result<Answer, i32>) -> io::Result<()> {
        let pool = self.rt.pool();
        let message = match answer {
            Err(errno) => pool.copy_of(&abi::out_header(unique, Err(errno))).into(),
            Ok(Answer::Bytes(bytes)) => {
                let mut whole = pool.alloc_now(OUT_HEADER_BYTES + bytes.len());
                let (header, rest) = whole.split_at_mut(OUT_HEADER_BYTES);
                header.copy_from_slice(&abi::out_header(unique, Ok(bytes.len())));
                rest.copy_from_slice(&bytes);
                whole.freeze().into()
            }
            Ok(Answer::Data(data)) => {
                let header = abi::out_header(unique, Ok(data.len()));
                let mut message = Payload::from(pool.copy_of(&header));
                if data.slices().len() > SLICES_MAX {
                    message.push(data.contiguous(pool));
                } else {
                    message.append(data);
                }
                message
            }
        };
        self.file.write(message).await
    }

    /// Carries out a request other than a write.
    async fn carry_out(&self, node: u64, asked: Asked) -> Result<Answer, i32> {
        let facts = &self.facts;
        let bytes = match asked {
            Asked::Lookup(name) => facts.lookup_answer(node, &name).ok_or(errno::ENOENT)?,
            Asked::GetAttributes => facts.attributes_answer(node).ok_or(errno::ENOENT)?,
            Asked::SetAttributes {
                mode_or_owner,
                size,
            } => {
                let other_size = size.is_some_and(|size| size != facts.size_bytes);
                if mode_or_owner || other_size {
                    return Err(errno::EPERM);
                }
                facts.attributes_answer(node).ok_or(errno::ENOENT)?
            }
            Asked::Open if node == FILE => abi::open_answer(),
            Asked::OpenFolder => abi::open_folder_answer(),
            Asked::ReadFolder(range) => facts.folder_answer(range),
            Asked::FileSystem => facts.file_system_answer(),
            Asked::Release | Asked::Destroy => Vec::new(),
            Asked::Read(range) if node == FILE => return self.read_range(range).await,
            Asked::Sync if node == FILE => return self.sync().await,
            Asked::Allocate(how, range) if node == FILE => return self.allocate(how, range).await,
            Asked::Seek(what, offset) if node == FILE => return self.seek(what, offset).await,
            Asked::Init(_) | Asked::Write(_) | Asked::Forget => {
                return Err(self.refused(errno::EINVAL));
            }
            Asked::Open | Asked::Read(_) | Asked::Sync | Asked::Allocate(..) | Asked::Seek(..) => {
                return Err(self.refused(errno::EINVAL));
            }
            Asked::Other => return Err(errno::ENOSYS),
        };
        Ok(Answer::Bytes(bytes))
    }

    /// Counts a request that is refused without submitting it to the device.
    fn refused(&self, errno: i32) -> i32 {
        add(&self.counters.refused, 1);
        errno
    }

    /// Submits a request to the device.
    async fn submit(&self, request: Request) -> Result<Reply, i32> {
        let request = request.from_origin(Origin::of_task(1));
        self.room.note_progress();
        let result = self.counters.submit(self.device.as_ref(), request).await;
        self.room.note_progress();
        result.map_err(IoError::to_errno)
    }

    async fn read_range(&self, range: Range) -> Result<Answer, i32> {
        if range.len > u64::from(self.limits.transfer_bytes_max) {
            return Err(self.refused(errno::EINVAL));
        }
        let left = self.facts.size_bytes.saturating_sub(range.offset);
        let len = range.len.min(left);
        if len == 0 {
            return Ok(Answer::NOTHING);
        }
        let read = self.submit(Request::read(range.offset, len)).await?;
        Ok(Answer::Data(read.into_data()))
    }

    async fn write(&self, node: u64, range: Range, data: Payload) -> Result<Answer, i32> {
        if node != FILE {
            return Err(self.refused(errno::EINVAL));
        }
        self.check_change(range)?;
        if range.len > 0 {
            let request = Request::write(range.offset, data, Flags::NONE);
            self.submit(request).await?;
        }
        Ok(Answer::Bytes(abi::write_answer(range.len)))
    }

    async fn sync(&self) -> Result<Answer, i32> {
        self.submit(Request::flush()).await?;
        Ok(Answer::NOTHING)
    }

    /// Refuses a change of a read-only file, and a change beyond the end of the file, because the
    /// size of a volume is fixed.
    fn check_change(&self, range: Range) -> Result<(), i32> {
        if self.facts.read_only {
            return Err(self.refused(errno::EROFS));
        }
        let end = range.offset.checked_add(range.len);
        if end.is_none_or(|end| end > self.facts.size_bytes) {
            return Err(self.refused(errno::ENOSPC));
        }
        Ok(())
    }

    async fn allocate(&self, how: Option<Allocate>, range: Range) -> Result<Answer, i32> {
        let how = how.ok_or(errno::EOPNOTSUPP)?;
        self.check_change(range)?;
        let keep_allocated = how == Allocate::ZeroRange;
        // A hole must read as zeroes. If a discard on this device does not guarantee zeroes, the
        // range is overwritten with zeroes instead.
        let op = match how {
            Allocate::PunchHole if self.device.geometry().discard_zeroes => Op::Discard,
            Allocate::PunchHole | Allocate::ZeroRange => Op::WriteZeroes,
        };
        let flags = Flags {
            keep_allocated,
            ..Flags::NONE
        };
        for piece in pieces(range) {
            let request = Request::without_data(op, piece.offset, piece.len, flags);
            self.submit(request).await?;
        }
        Ok(Answer::NOTHING)
    }

    /// Returns the offset of the first byte of data, or of the first hole, at or after `offset`. If
    /// no hole precedes the end of the file, the offset of that end is returned as a hole.
    async fn seek(&self, what: Seek, offset: u64) -> Result<Answer, i32> {
        let size_bytes = self.facts.size_bytes;
        if offset >= size_bytes {
            return Err(errno::ENXIO);
        }
        let len = size_bytes - offset;
        for piece in pieces(Range { offset, len }) {
            let mut at = piece.offset;
            while at < piece.offset + piece.len {
                give_way().await;
                let asked_at = at;
                // Adjacent extents differ in kind (data or hole). So one of the first two extents
                // is of the requested kind, and two extents are enough.
                let request = Request::extents(at, piece.offset + piece.len - at, 2);
                for run in self.submit(request).await?.into_extents() {
                    if run.data == (what == Seek::Data) {
                        return Ok(Answer::Bytes(abi::seek_answer(at)));
                    }
                    at += run.len;
                }
                assert!(at > asked_at, "an answer covers at least a block");
            }
        }
        match what {
            Seek::Data => Err(errno::ENXIO),
            Seek::Hole => Ok(Answer::Bytes(abi::seek_answer(size_bytes))),
        }
    }
}

/// Splits a range into pieces of at most [`RANGE_BYTES_MAX`] bytes. The end of the range must not
/// overflow.
fn pieces(range: Range) -> impl Iterator<Item = Range> {
    let starts = (0..range.len).step_by(RANGE_BYTES_MAX as usize);
    starts.map(move |start| Range {
        offset: range.offset + start,
        len: RANGE_BYTES_MAX.min(range.len - start),
    })
}

/// Parses a message whose length is `bytes`. Returns the header of the message, and its request if
/// the request can be decoded. Returns `None` if the header is invalid.
fn parse(buf: &MessageBuf, bytes: usize) -> Option<(Header, Option<Asked>)> {
    let head = buf.head().get(..bytes.min(HEAD_BYTES))?;
    let rest = buf.body().get(..bytes - head.len())?;
    let header = abi::decode_header(head, bytes)?;
    Some((header, abi::decode(&header, head, rest)))
}
