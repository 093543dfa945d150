//! The request header, and the validation of requests.
//!
//! Validation is one pure function, so that every connection of every transport refuses the same
//! requests with the same error numbers, and so that a client can check its requests before it
//! sends them.

use super::fields::Fields;
use super::wire::{
    Command, Errno, PAYLOAD_DEFAULT_MAX_BYTES, PAYLOAD_HARD_MAX_BYTES, ProtocolError,
    REQUEST_BYTES, REQUEST_MAGIC, command_flag, transmission_flag,
};

/// Properties of an export that limit its requests (sections "Transmission flags" and "Size
/// constraints").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes, a multiple of `min_block_bytes`.
    pub size_bytes: u64,
    /// See [`transmission_flag`].
    pub transmission_flags: u16,
    /// Minimum block size: offsets and lengths are multiples of it. It is a power of two and at
    /// most 64 KiB.
    pub min_block_bytes: u32,
    /// Preferred block size: requests whose offsets and lengths are multiples of it perform best.
    /// It is a power of two, and at least 512 and `min_block_bytes`.
    pub preferred_block_bytes: u32,
    /// Largest read or write, at least `preferred_block_bytes`.
    pub max_payload_bytes: u32,
}

impl ExportInfo {
    /// Returns an export with the default size constraints of the NBD document.
    pub fn with_default_blocks(size_bytes: u64, transmission_flags: u16) -> Self {
        ExportInfo {
            size_bytes,
            transmission_flags,
            min_block_bytes: 1,
            preferred_block_bytes: 4096,
            max_payload_bytes: PAYLOAD_DEFAULT_MAX_BYTES,
        }
    }

    /// Checks the three block sizes against the section "Size constraints" of the NBD document, and
    /// checks that the flag `HAS_FLAGS` is set.
    ///
    /// # Errors
    /// [`ProtocolError::BadExportInfo`] if one of these checks fails.
    pub fn check(&self) -> Result<(), ProtocolError> {
        let (min, preferred) = (self.min_block_bytes, self.preferred_block_bytes);
        let good = min.is_power_of_two()
            && min <= 1 << 16
            && preferred.is_power_of_two()
            && preferred >= min.max(512)
            && self.max_payload_bytes >= preferred
            && self.transmission_flags & transmission_flag::HAS_FLAGS != 0;
        if good {
            Ok(())
        } else {
            Err(ProtocolError::BadExportInfo)
        }
    }

    /// Returns the same export with only the flags that the negotiated features permit.
    ///
    /// `HAS_FLAGS` is always set, `SEND_DF` needs structured replies, and `SEND_FAST_ZERO` needs
    /// `SEND_WRITE_ZEROES` (section "Transmission flags").
    pub fn negotiated(mut self, structured_replies: bool) -> Self {
        self.transmission_flags |= transmission_flag::HAS_FLAGS;
        if !structured_replies {
            self.transmission_flags &= !transmission_flag::SEND_DF;
        }
        if !self.offers(transmission_flag::SEND_WRITE_ZEROES) {
            self.transmission_flags &= !transmission_flag::SEND_FAST_ZERO;
        }
        self
    }

    /// Returns true when a transmission flag is set.
    pub fn offers(&self, flag: u16) -> bool {
        self.transmission_flags & flag != 0
    }
}

/// Features that the handshake negotiated in addition to the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Reads are answered with structured replies.
    pub structured_replies: bool,
    /// The id of the selected `base:allocation` context.
    pub base_allocation_id: Option<u32>,
    /// The client asked for `EXPORT_NAME` answers without padding.
    pub no_zeroes: bool,
}

/// A request header (section "Request message").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`command_flag`]; not checked yet.
    pub flags: u16,
    /// The request type as received. It can be undefined, see [`Request::command`].
    pub command_wire: u16,
    /// The client's opaque number, repeated in the reply.
    pub cookie: u64,
    /// Offset from the start of the export; not checked yet.
    pub offset_bytes: u64,
    /// Length of the range that the command concerns; not checked yet.
    pub length_bytes: u32,
}

impl Request {
    /// The command, `None` if the type is not defined.
    pub fn command(&self) -> Option<Command> {
        Command::from_wire(self.command_wire)
    }

    /// Returns the number of payload bytes that follow the header on the wire. The caller must
    /// consume these bytes from the stream even if the request is invalid.
    pub fn payload_bytes(&self) -> u32 {
        if self.command() == Some(Command::Write) {
            self.length_bytes
        } else {
            0
        }
    }

    /// Returns true when a command flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns the exclusive end of the range; `None` if it does not fit 64 bits.
    pub fn end_bytes(&self) -> Option<u64> {
        self.offset_bytes.checked_add(u64::from(self.length_bytes))
    }
}

/// Decodes a request header. Checks only for errors after which the rest of the stream cannot be
/// decoded; see [`validate`] for the other checks.
///
/// # Errors
/// A wrong magic, or a write whose payload exceeds [`PAYLOAD_HARD_MAX_BYTES`] (section "Size
/// constraints" permits a server to treat such a write as an attack).
pub fn decode_request(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, ProtocolError> {
    let (magic, request) = split_request(bytes).expect("28 bytes hold all fields");
    if magic != REQUEST_MAGIC {
        return Err(ProtocolError::BadMagic(u64::from(magic)));
    }
    if request.payload_bytes() > PAYLOAD_HARD_MAX_BYTES {
        return Err(ProtocolError::PayloadTooLarge(request.payload_bytes()));
    }
    Ok(request)
}

fn split_request(bytes: &[u8; REQUEST_BYTES]) -> Option<(u32, Request)> {
    let mut fields = Fields::new(bytes);
    let magic = fields.u32()?;
    let request = Request {
        flags: fields.u16()?,
        command_wire: fields.u16()?,
        cookie: fields.u64()?,
        offset_bytes: fields.u64()?,
        length_bytes: fields.u32()?,
    };
    Some((magic, request))
}

/// Encodes a request header; the payload of a write follows it.
pub fn encode_request(request: &Request) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&request.flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&request.command_wire.to_be_bytes());
    bytes[8..16].copy_from_slice(&request.cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&request.offset_bytes.to_be_bytes());
    bytes[24..28].copy_from_slice(&request.length_bytes.to_be_bytes());
    bytes
}

/// Decides whether a request is allowed to be carried out on an export (sections "Command flags",
/// "Request types" and "Error values").
///
/// `info` is the export as negotiated ([`ExportInfo::negotiated`]). `NBD_CMD_DISC` is always valid,
/// since it has no reply that could carry an error.
///
/// # Errors
/// The error number to reply with. The checks are made in this order, and the first check that
/// fails decides:
/// - unknown command, or a flag that is unknown, not offered or not for this command: `Inval`;
/// - a write, trim or write-zeroes on a read-only export: `Perm`;
/// - a command that was not offered or negotiated: `Inval`;
/// - a flush with a range, or any other command with length 0: `Inval`;
/// - a range beyond the end: `NoSpc` for write and write-zeroes, otherwise `Inval`;
/// - a range not aligned to the minimum block: `Inval`;
/// - more payload than the maximum: `Overflow` for a read with structured replies, otherwise
///   `Inval`.
pub fn validate(
    request: &Request,
    info: &ExportInfo,
    negotiated: &Negotiated,
) -> Result<Command, Errno> {
    let command = request.command().ok_or(Errno::Inval)?;
    if command == Command::Disconnect {
        return Ok(command);
    }
    if request.flags & !allowed_flags(command, info, negotiated) != 0 {
        return Err(Errno::Inval);
    }
    if command.writes() && info.offers(transmission_flag::READ_ONLY) {
        return Err(Errno::Perm);
    }
    if !is_offered(command, info, negotiated) {
        return Err(Errno::Inval);
    }
    validate_range(command, request, info, negotiated)?;
    Ok(command)
}

/// Returns the flags that are allowed with `command`.
fn allowed_flags(command: Command, info: &ExportInfo, negotiated: &Negotiated) -> u16 {
    // Some clients set FUA on commands that write nothing. Section "Command flags" requires that a
    // server that offers FUA accepts it on all commands.
    let mut allowed = if info.offers(transmission_flag::SEND_FUA) {
        command_flag::FUA
    } else {
        0
    };
    match command {
        Command::Read => {
            if negotiated.structured_replies && info.offers(transmission_flag::SEND_DF) {
                allowed |= command_flag::DF;
            }
        }
        Command::WriteZeroes => {
            allowed |= command_flag::NO_HOLE;
            if info.offers(transmission_flag::SEND_FAST_ZERO) {
                allowed |= command_flag::FAST_ZERO;
            }
        }
        Command::BlockStatus => allowed |= command_flag::REQ_ONE,
        Command::Write | Command::Trim | Command::Flush | Command::Cache | Command::Disconnect => {}
    }
    allowed
}

fn is_offered(command: Command, info: &ExportInfo, negotiated: &Negotiated) -> bool {
    match command {
        Command::Read | Command::Write | Command::Disconnect => true,
        Command::Flush => info.offers(transmission_flag::SEND_FLUSH),
        Command::Trim => info.offers(transmission_flag::SEND_TRIM),
        Command::Cache => info.offers(transmission_flag::SEND_CACHE),
        Command::WriteZeroes => info.offers(transmission_flag::SEND_WRITE_ZEROES),
        Command::BlockStatus => {
            negotiated.structured_replies && negotiated.base_allocation_id.is_some()
        }
    }
}

fn validate_range(
    command: Command,
    request: &Request,
    info: &ExportInfo,
    negotiated: &Negotiated,
) -> Result<(), Errno> {
    if command == Command::Flush {
        let no_range = request.offset_bytes == 0 && request.length_bytes == 0;
        return if no_range { Ok(()) } else { Err(Errno::Inval) };
    }
    if request.length_bytes == 0 {
        return Err(Errno::Inval);
    }
    if request.end_bytes().is_none_or(|end| end > info.size_bytes) {
        let grows = matches!(command, Command::Write | Command::WriteZeroes);
        return Err(if grows { Errno::NoSpc } else { Errno::Inval });
    }
    let block = u64::from(info.min_block_bytes);
    let is_aligned = |value: u64| value.is_multiple_of(block);
    if !is_aligned(request.offset_bytes) || !is_aligned(u64::from(request.length_bytes)) {
        return Err(Errno::Inval);
    }
    if request.length_bytes > info.max_payload_bytes {
        match command {
            Command::Read if negotiated.structured_replies => return Err(Errno::Overflow),
            Command::Read | Command::Write => return Err(Errno::Inval),
            // The remaining commands have no payload, so any length inside the export is valid.
            _ => {}
        }
    }
    Ok(())
}
