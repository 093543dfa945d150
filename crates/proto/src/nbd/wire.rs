//! Numbers and small types of the NBD wire format, and the limits that this implementation sets.
//!
//! All integers of the protocol are big-endian. Values for which a peer can send numbers outside
//! the defined set (options, reply types, chunk types, flags) are plain constants, not enums.

use thiserror::Error;

/// First magic of the handshake, in both the oldstyle and the newstyle: ASCII `NBDMAGIC` (section
/// "Newstyle negotiation").
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the newstyle handshake and magic of each option, ASCII `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second magic of the oldstyle handshake. This implementation refuses that handshake (section
/// "Oldstyle negotiation").
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Magic of each reply to an option (section "Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request (section "Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply (section "Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a structured reply chunk (section "Structured reply chunk message").
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Size of a request header in bytes.
pub const REQUEST_BYTES: usize = 28;
/// Size of a simple reply header in bytes.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Size of a structured reply chunk header in bytes.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Size of the server's greeting in bytes: two magics and the handshake flags.
pub const GREETING_BYTES: usize = 18;
/// Size of an option header in bytes: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Size of an option reply header in bytes: magic, option, reply type, length.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Zero padding after the answer to `NBD_OPT_EXPORT_NAME` unless `NO_ZEROES` was negotiated.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Maximum length in bytes of a string that the client or the server is allowed to send (section
/// "Conventions").
pub const STRING_MAX_BYTES: usize = 4096;
/// Maximum length of option data that the server stores. Longer data is skipped and answered with
/// `NBD_REP_ERR_TOO_BIG`.
pub const OPTION_DATA_MAX_BYTES: usize = 64 << 10;
/// Maximum length of option data that the server skips. Longer data ends the connection.
pub const OPTION_SKIP_MAX_BYTES: usize = 16 << 20;
/// Maximum number of options in one handshake; a further option makes the server end the
/// connection.
pub const OPTIONS_MAX: u32 = 1024;
/// Maximum number of metadata context queries in one option. The server answers more queries with
/// `NBD_REP_ERR_TOO_BIG`.
pub const META_QUERIES_MAX: u32 = 64;
/// Maximum length of option reply data that the client stores. Longer data ends the connection.
pub const OPTION_REPLY_DATA_MAX_BYTES: usize = 16 << 10;
/// Maximum number of replies to one option; a further reply makes the client end the connection.
pub const OPTION_REPLIES_MAX: u32 = 1024;
/// Maximum payload of a write request or data chunk in bytes; a larger payload ends the connection.
///
/// This is twice the 32 MiB that the NBD document asks every implementation to accept (section
/// "Size constraints").
pub const PAYLOAD_HARD_MAX_BYTES: u32 = 64 << 20;
/// Maximum payload in bytes if no other limit was negotiated (section "Size constraints").
pub const PAYLOAD_DEFAULT_MAX_BYTES: u32 = 32 << 20;
/// Maximum number of extents in one block status chunk (section "Structured reply types").
pub const EXTENTS_MAX: u32 = 1 << 20;

/// The only metadata context that is supported (section "The `base:` metadata namespace").
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The id under which the server offers [`BASE_ALLOCATION`]; clients treat it as opaque.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Option codes (section "Option types").
pub mod opt {
    /// Chooses an export and enters transmission; cannot report errors.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session softly.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Asks for TLS.
    pub const STARTTLS: u32 = 5;
    /// Asks about an export.
    pub const INFO: u32 = 6;
    /// Asks about an export and enters transmission.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Requests extended headers, an experimental extension that is not supported.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types (section "Option reply types").
pub mod rep {
    /// The option succeeded and its answer is complete.
    pub const ACK: u32 = 1;
    /// One export of the list.
    pub const SERVER: u32 = 2;
    /// One fact about an export, see [`info`](super::info).
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that every error reply has set.
    pub const ERR_BIT: u32 = 1 << 31;
    /// The option is not known or not supported.
    pub const ERR_UNSUP: u32 = ERR_BIT + 1;
    /// The option is forbidden by policy.
    pub const ERR_POLICY: u32 = ERR_BIT + 2;
    /// The option is malformed or not allowed now.
    pub const ERR_INVALID: u32 = ERR_BIT + 3;
    /// The option is not supported on the server's platform.
    pub const ERR_PLATFORM: u32 = ERR_BIT + 4;
    /// The server insists on TLS.
    pub const ERR_TLS_REQD: u32 = ERR_BIT + 5;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERR_BIT + 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERR_BIT + 7;
    /// The server requires the client to request the block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERR_BIT + 8;
    /// The option or its answer is too large.
    pub const ERR_TOO_BIG: u32 = ERR_BIT + 9;
}

/// Types of the information in a reply `NBD_REP_INFO` (section "Option reply types").
pub mod info {
    /// Size and transmission flags of the export. A successful answer always includes this
    /// information.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred block size and maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Handshake flags of the server and, with the same bits, client flags (section "Flag fields").
pub mod handshake_flag {
    /// Fixed newstyle is spoken.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// As a server flag: the server is able to omit the zero padding after its answer to
    /// `NBD_OPT_EXPORT_NAME`. As a client flag: the server must omit the padding.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags (section "Transmission flags").
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium rotates.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `NBD_CMD_TRIM` is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` is supported. The server sets this flag only after structured replies were
    /// negotiated.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush or FUA on one connection also covers the changes of all other connections to the
    /// export.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_CACHE` is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_CMD_FLAG_FAST_ZERO` is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Command flags (section "Command flags").
pub mod command_flag {
    /// Reply only when the data is on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// Do not make a hole; `NBD_CMD_WRITE_ZEROES` only.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One content chunk at most; `NBD_CMD_READ` only.
    pub const DF: u16 = 1 << 2;
    /// One extent per context; `NBD_CMD_BLOCK_STATUS` only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// The command must fail if it would not be faster than writing the zeroes as data. Permitted
    /// only for `NBD_CMD_WRITE_ZEROES`.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// Part of extended headers, never valid here.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Flags of a structured reply chunk (section "Structured reply flags").
pub mod reply_flag {
    /// The chunk is the last one for its request.
    pub const DONE: u16 = 1 << 0;
}

/// Structured reply chunk types (section "Structured reply types").
pub mod chunk {
    /// Ends a reply without content.
    pub const NONE: u16 = 0;
    /// Content of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// A stretch of a read that is all zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The bit that every error chunk type has set.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error of the whole request.
    pub const ERROR: u16 = ERROR_BIT + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;
}

/// Status bits of `base:allocation` (section "`base:allocation` metadata context").
pub mod state {
    /// The extent is not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// The extent reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// A request type (section "Request types").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// `NBD_CMD_READ`
    Read = 0,
    /// `NBD_CMD_WRITE`; the only command followed by a payload.
    Write = 1,
    /// `NBD_CMD_DISC`; has no reply.
    Disconnect = 2,
    /// `NBD_CMD_FLUSH`
    Flush = 3,
    /// `NBD_CMD_TRIM`
    Trim = 4,
    /// `NBD_CMD_CACHE`
    Cache = 5,
    /// `NBD_CMD_WRITE_ZEROES`
    WriteZeroes = 6,
    /// `NBD_CMD_BLOCK_STATUS`
    BlockStatus = 7,
}

impl Command {
    /// Returns the command of a wire value; `None` if the value is not defined.
    pub fn from_wire(value: u16) -> Option<Command> {
        Some(match value {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            _ => return None,
        })
    }

    /// Returns true when the command changes the export's content.
    pub fn writes(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// An error number of a reply (section "Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    Perm = 1,
    /// The medium failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// The request is invalid.
    Inval = 22,
    /// No space, or a write beyond the end.
    NoSpc = 28,
    /// The request is too large to be served in one piece.
    Overflow = 75,
    /// A fast zero that would not be fast.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// Returns the error of a wire value; `None` for success.
    ///
    /// An undefined value is treated as [`Errno::Inval`], as section "Error values" requires.
    pub fn from_wire(value: u32) -> Option<Errno> {
        Some(match value {
            0 => return None,
            1 => Errno::Perm,
            5 => Errno::Io,
            12 => Errno::NoMem,
            28 => Errno::NoSpc,
            75 => Errno::Overflow,
            95 => Errno::NotSup,
            108 => Errno::Shutdown,
            _ => Errno::Inval,
        })
    }

    /// The wire value, never 0.
    pub fn to_wire(self) -> u32 {
        self as u32
    }
}

/// A violation of the protocol after which the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A message does not start with its magic number.
    #[error("wrong magic number {0:#x}")]
    BadMagic(u64),
    /// The server speaks the oldstyle handshake.
    #[error("the server speaks only the oldstyle handshake")]
    Oldstyle,
    /// The client set flags that the server did not offer.
    #[error("unknown client flags {0:#x}")]
    UnknownClientFlags(u32),
    /// The client used an option other than `EXPORT_NAME`, but had not set the flag for fixed
    /// newstyle.
    #[error("option {0} without fixed newstyle")]
    NeedsFixedNewstyle(u32),
    /// The client used `EXPORT_NAME`, which has no error reply, before TLS had begun.
    #[error("an export was opened before TLS had begun")]
    NeedsTls,
    /// Option data beyond [`OPTION_SKIP_MAX_BYTES`].
    #[error("{length_bytes} bytes of data with option {option}")]
    OptionTooLarge {
        /// The option.
        option: u32,
        /// The announced length.
        length_bytes: u32,
    },
    /// More than [`OPTIONS_MAX`] options, or more than [`OPTION_REPLIES_MAX`] replies to one
    /// option.
    #[error("the handshake does not end")]
    EndlessHandshake,
    /// `NBD_OPT_EXPORT_NAME`, which has no error reply, requested an unknown export.
    #[error("no such export")]
    UnknownExport,
    /// The handshake is over; further bytes belong to the transmission phase.
    #[error("the handshake is already over")]
    HandshakeOver,
    /// The server does not support TLS, which the client requires, because the server is too old.
    #[error("the server knows no TLS")]
    NoTls,
    /// The server answered an option other than the pending one.
    #[error("reply to option {got} while option {pending} is pending")]
    WrongOption {
        /// The option the client sent.
        pending: u32,
        /// The option the reply names.
        got: u32,
    },
    /// A reply whose type is not permitted for the pending option, or not permitted at this point.
    #[error("unexpected reply type {reply_type:#x} to option {option}")]
    UnexpectedReply {
        /// The pending option.
        option: u32,
        /// The reply type.
        reply_type: u32,
    },
    /// An option reply whose data does not have the layout or length of its type.
    #[error("malformed reply of type {reply_type:#x} to option {option}")]
    MalformedReply {
        /// The pending option.
        option: u32,
        /// The reply type.
        reply_type: u32,
    },
    /// Transmission flags without the flag `HAS_FLAGS`, or block sizes that section "Size
    /// constraints" does not permit.
    #[error("the export's description contradicts the protocol")]
    BadExportInfo,
    /// A write whose payload exceeds [`PAYLOAD_HARD_MAX_BYTES`].
    #[error("a payload of {0} bytes")]
    PayloadTooLarge(u32),
    /// A structured reply that was not negotiated, or a simple reply where it is forbidden.
    #[error("a reply of the wrong kind")]
    WrongReplyKind,
    /// A chunk whose type is unknown, or cannot occur in the reply to the request.
    #[error("unexpected chunk type {0:#x}")]
    UnexpectedChunk(u16),
    /// A chunk whose length or content contradicts its type.
    #[error("malformed chunk of type {0:#x}")]
    MalformedChunk(u16),
    /// A chunk outside the range of its request, or overlapping an earlier chunk.
    #[error("a chunk outside its request, or an overlapping one")]
    ChunkOutOfRange,
    /// A read that was declared complete without all its data.
    #[error("a read completed without all its data")]
    IncompleteRead,
}
