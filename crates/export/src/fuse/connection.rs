//! A connection to the kernel's FUSE: messages are read from `/dev/fuse` by the ring, each becomes
//! a request to the device below, and its answer is written back.
//!
//! A few reads wait side by side, so that one turn of the ring takes several messages. Each reads
//! the data of a write to a place that direct I/O takes: long data is handed down where it lies,
//! short data is copied, so that it does not keep the memory of a long one. Requests of the device
//! are bounded. The kernel has one queue for everything, so beyond that bound the messages are
//! still read and wait here: what needs no device, such as `stat`, is answered whatever the device
//! does. What waits is bounded by the memory that it holds ([`Room`]).
//!
//! This module must never let a message of the kernel without an answer go: whoever asked would
//! wait for it for good. It must never give up what it has begun, either, so that no change is half
//! of one; which is why the kernel is told that it need not ask for that (`FUSE_INTERRUPT`).

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
use super::room::Room;

/// Reads that wait for messages at a time.
pub(super) const READERS: usize = 4;
/// Requests of the device under way at most.
const IN_FLIGHT_MAX: u16 = 64;
/// The longest range that the device is given to discard, to zero or to tell the extents of; longer
/// ones are cut.
const RANGE_BYTES_MAX: u64 = 1 << 31;
/// Slices of an answer at most; one more is its header.
const SLICES_MAX: usize = 1023;

/// What the kernel answers to a read when the file system has been unmounted.
const ENODEV: i32 = 19;
/// Who had asked is gone.
const ENOENT: i32 = 2;
const EINTR: i32 = 4;
/// What a kernel that is too old is answered with.
const EPROTO: i32 = 71;

/// What stands behind the header of an answer.
enum Answer {
    Bytes(Vec<u8>),
    Data(Payload),
}

impl Answer {
    const NOTHING: Answer = Answer::Bytes(Vec::new());
}

/// See the module.
pub(super) struct Connection {
    rt: Rt,
    file: MessageFile,
    device: Rc<dyn Device>,
    facts: Facts,
    limits: Limits,
    pub(super) counters: RequestCounters,
    in_flight: Rc<Semaphore>,
    /// Where requests of the device wait for their turn.
    room: Room,
    /// Answers under way to what needs no device.
    quick: Rc<Semaphore>,
    readers: TaskGroup,
    /// Why the connection could not go on, the first time.
    failure: RefCell<Option<io::Error>>,
    /// A reader has ended.
    changed: Event,
}

impl Connection {
    /// Answers the kernel's first message, and has readers wait for those that come. `device` takes
    /// requests of any offset and length, of `transfer_bytes_max` at most. The operator is told of
    /// the connection by `subject`.
    ///
    /// # Errors
    /// Those of reading and writing; `Unsupported` when the kernel is too old.
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
            counters: RequestCounters::default(),
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

    /// Waits until nothing is read any more: the file system was unmounted, or something is wrong.
    pub(super) async fn ended(&self) {
        self.changed.until(|| self.has_ended()).await;
    }

    /// Nothing is read any more.
    pub(super) fn has_ended(&self) -> bool {
        self.readers.len() < READERS
    }

    /// Reads no more, and waits until every request under way has its answer.
    pub(super) async fn finish(&self) {
        self.readers.cancel().await;
        // Those that wait for their turn are in front.
        drop(self.in_flight.acquire(u64::from(IN_FLIGHT_MAX)).await);
        drop(self.quick.acquire(u64::from(IN_FLIGHT_MAX)).await);
    }

    /// Why the connection could not go on, if it could not.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.failure.borrow_mut().take()
    }

    fn fail(&self, error: io::Error) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    fn new_buf(&self) -> Box<MessageBuf> {
        // Never waited for: what the readers have is bounded, and is there for as long as the mount
        // is.
        MessageBuf::new(HEAD_BYTES, self.rt.pool().alloc_now(self.body_bytes()))
    }

    fn body_bytes(&self) -> usize {
        READ_BYTES_MIN.max(self.limits.transfer_bytes_max as usize)
    }

    /// The first message says which version the kernel speaks.
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

    /// The answer to the first message, and whether it opens the connection.
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

    /// One reader, until the file system is unmounted.
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
                Some(ENODEV) => return,
                _ => return self.fail(error),
            }
        }
    }

    /// Starts what a message asks for. The buffer has a body again afterwards.
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

    /// The data of a write, which lies in the buffer's body, and how many bytes of memory it holds.
    /// It is never waited for memory here: that would keep the reader from what needs none. What
    /// can be taken so is bounded.
    fn take_data(&self, buf: &mut Box<MessageBuf>, len: usize) -> (Payload, usize) {
        if 2 * len < self.body_bytes() {
            return (self.rt.pool().copy_of(&buf.body()[..len]).into(), len);
        }
        let mut data = buf.take_body();
        data.truncate(len);
        buf.put_body(self.rt.pool().alloc_now(self.body_bytes()));
        (data.freeze().into(), self.body_bytes())
    }

    /// Has the device asked, now or when it is the request's turn. Meanwhile the request holds so
    /// many bytes of data.
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
        // It asks for its permit before this returns, so requests keep their order.
        self.rt.spawn_eager(wait).detach();
    }

    /// Answers a message when `work` has ended; what needs no waiting is done at once.
    fn answer_with<W>(self: &Rc<Self>, permit: Permit, header: Header, work: W)
    where
        W: AsyncFnOnce(&Connection) -> Result<Answer, i32> + 'static,
    {
        let this = Rc::clone(self);
        let run = async move {
            let answer = work(&this).await;
            if let Err(error) = this.reply(header.unique, answer).await
                && !matches!(error.raw_os_error(), Some(ENOENT | ENODEV))
            {
                this.fail(error);
                // Whoever asked waits for an answer that will not come, until the end of the
                // connection.
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

    /// Does what is asked, but for writes.
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

    /// Counts a request that the device is not asked.
    fn refused(&self, errno: i32) -> i32 {
        add(&self.counters.refused, 1);
        errno
    }

    /// Has the device carry out a request.
    async fn submit(&self, request: Request) -> Result<Reply, i32> {
        add(&self.counters.by_op[request.op as usize], 1);
        let request = request.from_origin(Origin::of_task(1));
        self.room.note_progress();
        let result = self.device.submit(request).await;
        self.room.note_progress();
        result.map_err(|error: IoError| {
            add(&self.counters.failed, 1);
            error.to_errno()
        })
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
        let data = self
            .submit(Request::read(range.offset, len))
            .await?
            .into_data();
        add(&self.counters.read_bytes, len);
        Ok(Answer::Data(data))
    }

    async fn write(&self, node: u64, range: Range, data: Payload) -> Result<Answer, i32> {
        if node != FILE {
            return Err(self.refused(errno::EINVAL));
        }
        self.check_change(range)?;
        if range.len > 0 {
            let request = Request::write(range.offset, data, Flags::NONE);
            self.submit(request).await?;
            add(&self.counters.written_bytes, range.len);
        }
        Ok(Answer::Bytes(abi::write_answer(range.len)))
    }

    async fn sync(&self) -> Result<Answer, i32> {
        self.submit(Request::flush()).await?;
        Ok(Answer::NOTHING)
    }

    /// The size of a volume is what it is.
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
        // A hole reads as zeroes. Where a discard does not promise that, zeroes are what is wanted.
        let op = match how {
            Allocate::PunchHole if self.device.geometry().discard_zeroes => Op::Discard,
            Allocate::PunchHole | Allocate::ZeroRange => Op::WriteZeroes,
        };
        let flags = Flags {
            fua: false,
            keep_allocated,
        };
        for piece in pieces(range) {
            let request = Request::without_data(op, piece.offset, piece.len, flags);
            self.submit(request).await?;
        }
        Ok(Answer::NOTHING)
    }

    /// The first byte of data, or of a hole, at or after an offset. The end of the file is a hole.
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
                // Of two neighbours one is what is looked for.
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

/// A range that ends at or before the highest offset, cut.
fn pieces(range: Range) -> impl Iterator<Item = Range> {
    let starts = (0..range.len).step_by(RANGE_BYTES_MAX as usize);
    starts.map(move |start| Range {
        offset: range.offset + start,
        len: RANGE_BYTES_MAX.min(range.len - start),
    })
}

/// The header of a message of so many bytes, and what it asks for if that can be understood.
fn parse(buf: &MessageBuf, bytes: usize) -> Option<(Header, Option<Asked>)> {
    let head = buf.head().get(..bytes.min(HEAD_BYTES))?;
    let rest = buf.body().get(..bytes - head.len())?;
    let header = abi::decode_header(head, bytes)?;
    Some((header, abi::decode(&header, head, rest)))
}
