//! Numbers of the BRP wire format, limits, and the protocol violations that a peer can commit.

/// Version of the protocol (`docs/brp.md`) that this crate implements.
pub const VERSION: u16 = 1;
/// The first bytes of a `HELLO`'s body.
pub const HELLO_MAGIC: [u8; 8] = *b"BRPhello";

/// Size of the head of every frame in bytes.
pub const HEAD_BYTES: usize = 16;
/// Size of one request in a command in bytes.
pub const REQUEST_BYTES: usize = 24;
/// Size of one result in a response in bytes.
pub const COMPLETION_BYTES: usize = 16;
/// Size of one run in the data of an extents response in bytes.
pub const RUN_BYTES: usize = 8;
/// Size of the fixed part of a `HELLO`'s body in bytes.
pub const HELLO_BYTES: usize = 40;
/// Size of the body of a `WELCOME` in bytes.
pub const WELCOME_BYTES: usize = 80;
/// Size of the fixed part of a `LISTING`'s body in bytes.
pub const LISTING_BYTES: usize = 16;
/// Size of the body of a `FENCE` and a `FENCED` in bytes.
pub const FENCE_BYTES: usize = 8;

/// Maximum number of requests in a command and of results in a response.
pub const ENTRIES_MAX: usize = 64;
/// Maximum length in bytes of a request that can be merged with other requests.
pub const MERGED_BYTES_MAX: u32 = 4096;
/// Maximum number of data bytes in one frame. It is therefore the maximum length of a read or
/// write.
pub const DATA_BYTES_MAX: u32 = 32 << 20;
/// Maximum range of a request without data, in bytes.
pub const RANGE_BYTES_MAX: u32 = 1 << 31;
/// Maximum length of names and descriptions in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Maximum length of the message of a refusal in bytes.
pub const WORDS_BYTES_MAX: usize = 512;
/// Maximum length of the body of a control frame in bytes.
pub const CONTROL_BYTES_MAX: usize = 2088;
/// Maximum number of exports in a list.
pub const LISTED_MAX: usize = 4096;
/// Maximum number of runs in an extents response.
pub const RUNS_MAX: usize = 4096;
/// Maximum number of unanswered fences on one path.
pub const FENCES_MAX: usize = 16;

/// Kinds of frames (section "Transport and bytes").
pub mod kind {
    /// Greeting of an initiator.
    pub const HELLO: u8 = 1;
    /// Acceptance, with a description of the volume.
    pub const WELCOME: u8 = 2;
    /// Refusal of a connection.
    pub const REFUSED: u8 = 3;
    /// One export, or the end of the list.
    pub const LISTING: u8 = 4;
    /// Request to fence a path.
    pub const FENCE: u8 = 5;
    /// Notification that a fenced path has ended.
    pub const FENCED: u8 = 6;
    /// Orderly end of the path.
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
    /// The target handles the requests of the path one at a time.
    pub const SERIAL: u32 = 4;
    /// The features that this version knows.
    pub const ALL: u32 = CRC | MERGE | SERIAL;
}

/// Rights and properties of an export (section "Greeting").
pub mod right {
    /// Requests that change the volume are refused.
    pub const READ_ONLY: u32 = 1;
    /// Changes that no flush has covered are lost when the target's process ends.
    pub const VOLATILE: u32 = 2;
    /// All content is lost with the target's process.
    pub const EPHEMERAL: u32 = 4;
    /// The medium is rotational.
    pub const ROTATIONAL: u32 = 8;
    /// Discarded ranges read as zeroes.
    pub const DISCARD_ZEROES: u32 = 16;
}

/// Flags of a command frame.
pub mod command_flag {
    /// The requests of the frame are handled one at a time.
    pub const IN_TURN: u16 = 1;
}

/// Flags of a request.
pub mod request_flag {
    /// The change is durable when it is answered.
    pub const FUA: u8 = 1;
    /// Write-zeroes keeps the space allocated.
    pub const KEEP_ALLOCATED: u8 = 2;
}

/// Operation of a request (section "Commands").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Returns the bytes of the range.
    Read = 1,
    /// Stores bytes.
    Write = 2,
    /// Makes all answered changes durable.
    Flush = 3,
    /// Declares that the content of the range is no longer needed.
    Discard = 4,
    /// Makes the range read as zeroes.
    WriteZeroes = 5,
    /// Reports which parts of the range hold data.
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

    /// Returns the operation of a wire number.
    pub fn from_wire(number: u8) -> Option<Op> {
        Op::ALL.into_iter().find(|op| *op as u8 == number)
    }

    /// Returns true when the operation changes content.
    pub fn changes(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// Returns the flags that a request of this operation is allowed to have, see [`request_flag`].
    pub fn flags(self) -> u8 {
        match self {
            Op::Write | Op::Discard => request_flag::FUA,
            Op::WriteZeroes => request_flag::FUA | request_flag::KEEP_ALLOCATED,
            Op::Read | Op::Flush | Op::Extents => 0,
        }
    }

    /// Returns true when a request of this length can be merged with other requests into one
    /// command.
    pub fn may_merge(self, length_bytes: u32) -> bool {
        !matches!(self, Op::Flush | Op::Extents) && length_bytes <= MERGED_BYTES_MAX
    }
}

/// Result of a request (section "Responses").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The request succeeded.
    Ok = 0,
    /// The medium cannot read or write these blocks.
    Medium = 1,
    /// No space is left.
    NoSpace = 2,
    /// The request is invalid.
    Invalid = 3,
    /// The range exceeds the volume.
    OutOfRange = 4,
    /// The export is read-only.
    ReadOnly = 5,
    /// The device does not support the operation.
    Unsupported = 6,
    /// A limit of the target was reached.
    Resource = 7,
    /// The data is corrupt.
    Corrupt = 8,
    /// The device behind the target is offline.
    Offline = 9,
    /// The device did not answer in time. A write might still take effect.
    Timeout = 10,
    /// The request was not carried out because the target is shutting down.
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

    /// Returns the status of a wire number.
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
    /// A frame whose kind is not permitted in the current state of the connection.
    #[error("frame of kind {0} where none may be")]
    UnexpectedFrame(u8),
    /// A frame was lost or duplicated.
    #[error("frame {got} came where {expected} was due")]
    OutOfSequence {
        /// The sequence number that was expected.
        expected: u32,
        /// The sequence number that was received.
        got: u32,
    },
    /// The check of a frame or of data does not match.
    #[error("a check does not match")]
    WrongCheck,
    /// Lengths that contradict each other or a limit.
    #[error("a frame of {0} bytes that cannot be")]
    BadLength(u32),
    /// The number of entries is not permitted.
    #[error("{0} entries in a frame")]
    BadCount(u8),
    /// A field holds a value that is not permitted.
    #[error("bad {0}")]
    BadField(&'static str),
    /// A merged request that must not be merged.
    #[error("a request that may not be merged")]
    NotMergeable,
    /// A response to a request that is not in flight on this path.
    #[error("a response to tag {0}, which is not under way here")]
    UnknownTag(u32),
    /// A response of the wrong length.
    #[error("a response of {0} bytes")]
    WrongLength(u32),
    /// A path requested too many fences, or requested a fence of itself, or a message answers a
    /// fence that was not requested.
    #[error("a fence that may not be")]
    BadFence,
    /// A list with too many entries.
    #[error("a list without end")]
    EndlessList,
}

/// Decodes the little-endian number at offset `at` of a record whose length has been checked.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Decodes a number like [`u16_at`].
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Decodes a number like [`u16_at`].
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Returns the 16 bytes at offset `at` of a record whose length has been checked.
pub(super) fn id_at(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    id
}

/// Decodes text of the wire: UTF-8 without NUL.
pub(super) fn text(bytes: &[u8]) -> Result<String, ProtocolError> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(ProtocolError::BadField("text")),
    }
}
