//! Numbers of the wire, limits, and the ways in which a peer can break the protocol.

/// The version of `docs/brp.md` that is spoken here.
pub const VERSION: u16 = 1;
/// The first bytes of a `HELLO`'s body.
pub const HELLO_MAGIC: [u8; 8] = *b"BRPhello";

/// Head of every frame.
pub const HEAD_BYTES: usize = 16;
/// One request in a command.
pub const REQUEST_BYTES: usize = 24;
/// One result in a response.
pub const COMPLETION_BYTES: usize = 16;
/// One run in the data of an extents response.
pub const RUN_BYTES: usize = 8;
/// Fixed part of a `HELLO`'s body.
pub const HELLO_BYTES: usize = 40;
/// Body of a `WELCOME`.
pub const WELCOME_BYTES: usize = 80;
/// Fixed part of a `LISTING`'s body.
pub const LISTING_BYTES: usize = 16;
/// Body of a `FENCE` and a `FENCED`.
pub const FENCE_BYTES: usize = 8;

/// Requests in a command and results in a response, at most.
pub const ENTRIES_MAX: usize = 64;
/// The longest request that may be merged with others.
pub const MERGED_BYTES_MAX: u32 = 4096;
/// Data of one frame, at most; so the longest read or write.
pub const DATA_BYTES_MAX: u32 = 32 << 20;
/// The longest range of a request without data, at most.
pub const RANGE_BYTES_MAX: u32 = 1 << 31;
/// Names and descriptions, at most.
pub const NAME_BYTES_MAX: usize = 1024;
/// Words of a refusal, at most.
pub const WORDS_BYTES_MAX: usize = 512;
/// Body of a control frame, at most.
pub const CONTROL_BYTES_MAX: usize = 2088;
/// Exports in a list, at most.
pub const LISTED_MAX: usize = 4096;
/// Runs in an extents response, at most.
pub const RUNS_MAX: usize = 4096;
/// Fences under way on one path, at most.
pub const FENCES_MAX: usize = 16;

/// What a frame is (section "Transport and bytes").
pub mod kind {
    /// Who asks for what.
    pub const HELLO: u8 = 1;
    /// The volume as it is.
    pub const WELCOME: u8 = 2;
    /// Why not.
    pub const REFUSED: u8 = 3;
    /// One export, or the end of the list.
    pub const LISTING: u8 = 4;
    /// A path must end.
    pub const FENCE: u8 = 5;
    /// A path has ended.
    pub const FENCED: u8 = 6;
    /// The path ends in order.
    pub const CLOSE: u8 = 7;
    /// Requests.
    pub const COMMAND: u8 = 16;
    /// Results.
    pub const RESPONSE: u8 = 17;
}

/// Features of a path (section "Greeting").
pub mod feature {
    /// Entries and data are checked end to end.
    pub const CRC: u32 = 1;
    /// Frames may have more than one entry.
    pub const MERGE: u32 = 2;
    /// The target handles the requests of the path one after another.
    pub const SERIAL: u32 = 4;
    /// Those this version knows.
    pub const ALL: u32 = CRC | MERGE | SERIAL;
}

/// Rights and properties of an export (section "Greeting").
pub mod right {
    /// Changes are refused.
    pub const READ_ONLY: u32 = 1;
    /// What no flush has covered ends with the target's process.
    pub const VOLATILE: u32 = 2;
    /// Everything ends with the target's process.
    pub const EPHEMERAL: u32 = 4;
    /// The medium moves heads.
    pub const ROTATIONAL: u32 = 8;
    /// What was discarded reads as zeroes.
    pub const DISCARD_ZEROES: u32 = 16;
}

/// Flags of a command frame.
pub mod command_flag {
    /// Its requests are handled one after another.
    pub const IN_TURN: u16 = 1;
}

/// Flags of a request.
pub mod request_flag {
    /// The change is durable when it is answered.
    pub const FUA: u8 = 1;
    /// Write-zeroes keeps the space allocated.
    pub const KEEP_ALLOCATED: u8 = 2;
}

/// What a request does (section "Commands").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Gives the bytes of the range.
    Read = 1,
    /// Stores bytes.
    Write = 2,
    /// Makes what was answered durable.
    Flush = 3,
    /// The content is no longer needed.
    Discard = 4,
    /// Makes the range read as zeroes.
    WriteZeroes = 5,
    /// Says what holds data.
    Extents = 6,
}

impl Op {
    /// Every operation.
    pub const ALL: [Op; 6] = [
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::WriteZeroes,
        Op::Extents,
    ];

    /// The operation of a number of the wire.
    pub fn from_wire(number: u8) -> Option<Op> {
        Op::ALL.into_iter().find(|op| *op as u8 == number)
    }

    /// True when it changes content.
    pub fn changes(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// The flags it takes, see [`request_flag`].
    pub fn flags(self) -> u8 {
        match self {
            Op::Write | Op::Discard => request_flag::FUA,
            Op::WriteZeroes => request_flag::FUA | request_flag::KEEP_ALLOCATED,
            Op::Read | Op::Flush | Op::Extents => 0,
        }
    }

    /// Whether a request of this length may be one of several in a command.
    pub fn may_merge(self, length_bytes: u32) -> bool {
        !matches!(self, Op::Flush | Op::Extents) && length_bytes <= MERGED_BYTES_MAX
    }
}

/// How a request ended (section "Responses").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// These blocks cannot be read or written.
    Medium = 1,
    /// No space is left.
    NoSpace = 2,
    /// The request is not a valid one.
    Invalid = 3,
    /// The range leaves the volume.
    OutOfRange = 4,
    /// Changes are refused.
    ReadOnly = 5,
    /// The device cannot do this.
    Unsupported = 6,
    /// A limit of the target was reached.
    Resource = 7,
    /// The data is known to be wrong.
    Corrupt = 8,
    /// The device behind the target is not there.
    Offline = 9,
    /// The device did not answer; a write may still happen.
    Timeout = 10,
    /// Not carried out: the target is about to end.
    Shutdown = 11,
}

impl Status {
    /// Every status.
    pub const ALL: [Status; 12] = [
        Status::Ok,
        Status::Medium,
        Status::NoSpace,
        Status::Invalid,
        Status::OutOfRange,
        Status::ReadOnly,
        Status::Unsupported,
        Status::Resource,
        Status::Corrupt,
        Status::Offline,
        Status::Timeout,
        Status::Shutdown,
    ];

    /// The status of a number of the wire.
    pub fn from_wire(number: u8) -> Option<Status> {
        Status::ALL.into_iter().find(|s| *s as u8 == number)
    }
}

/// A breach of the protocol by the peer: the connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The stream does not begin as a BRP connection does.
    #[error("not a BRP peer")]
    NotBrp,
    /// A frame that may not come here.
    #[error("frame of kind {0} where none may be")]
    UnexpectedFrame(u8),
    /// A frame was lost or came twice.
    #[error("frame {got} came where {expected} was due")]
    OutOfSequence {
        /// The number that was due.
        expected: u32,
        /// The number that came.
        got: u32,
    },
    /// The check of a frame or of data does not match.
    #[error("a check does not match")]
    WrongCheck,
    /// Lengths that contradict each other or a limit.
    #[error("a frame of {0} bytes that cannot be")]
    BadLength(u32),
    /// The number of entries is none that may be.
    #[error("{0} entries in a frame")]
    BadCount(u8),
    /// A field holds what it may not.
    #[error("bad {0}")]
    BadField(&'static str),
    /// A request that may not be merged was.
    #[error("a request that may not be merged")]
    NotMergeable,
    /// A response to what was not asked over this path.
    #[error("a response to tag {0}, which is not under way here")]
    UnknownTag(u32),
    /// A response of the wrong length.
    #[error("a response of {0} bytes")]
    WrongLength(u32),
    /// A path that asks for too many fences, or that fences itself.
    #[error("a fence that may not be")]
    BadFence,
    /// A list without end.
    #[error("a list without end")]
    EndlessList,
}

/// The little-endian number at a place of a record whose length is known.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// As [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// As [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The 16 bytes at a place of a record whose length is known.
pub(super) fn id_at(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    id
}

/// Text of the wire: UTF-8 without NUL.
pub(super) fn text(bytes: &[u8]) -> Result<String, ProtocolError> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(ProtocolError::BadField("text")),
    }
}
