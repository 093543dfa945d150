//! The client's end of the handshake.
//!
//! The client requests features in a fixed order: TLS if it is wanted, structured replies, the
//! `base:allocation` context, and finally `GO` with the block sizes. If the server does not know
//! `GO` or fixed newstyle, the client sends `EXPORT_NAME` instead. The client continues without the
//! optional features that the server refuses; the resulting [`ClientSession`] says which were
//! negotiated. The client must never enter transmission with block sizes or flags that it did not
//! check.

use super::fields::{Fields, gather, string};
use super::request::{ExportInfo, Negotiated};
use super::wire::{
    BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, GREETING_BYTES, NBD_MAGIC, OLDSTYLE_MAGIC,
    OPTION_MAGIC, OPTION_REPLIES_MAX, OPTION_REPLY_DATA_MAX_BYTES, OPTION_REPLY_HEADER_BYTES,
    OPTION_REPLY_MAGIC, ProtocolError, STRING_MAX_BYTES, handshake_flag, info, opt, rep,
    transmission_flag,
};

/// The features that the client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Name of the export, empty for the default one.
    pub export_name: String,
    /// Ask for structured replies.
    pub structured_replies: bool,
    /// Ask for `base:allocation`; needs structured replies.
    pub base_allocation: bool,
    /// Request TLS before anything else. If the server refuses TLS, the handshake ends with an
    /// error.
    pub tls: bool,
}

/// Next step of the caller after [`ClientHandshake::feed`]. In every case, the caller must send the
/// output first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientProgress {
    /// Receive more bytes.
    NeedMore,
    /// Begin TLS, and continue inside TLS with [`ClientHandshake::secured`]. The rest of the input
    /// was received in plain text and must not be used: either the server violates the protocol, or
    /// an attacker has inserted it.
    StartTls,
    /// Send requests. The remaining input bytes belong to the replies.
    Transmission(ClientSession),
    /// Close the connection, since the server refused the client. The output contains the abort
    /// option.
    Refused(Refusal),
}

/// The outcome of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSession {
    /// Size, flags and block sizes of the export. If the server advertised no block sizes, the
    /// block sizes are the defaults that the NBD document gives for clients: a minimum of 512 bytes
    /// (1 byte if the size is no multiple of 512), a preferred size of 4 KiB, and a maximum payload
    /// of 32 MiB.
    pub info: ExportInfo,
    /// True when the server advertised its block sizes.
    pub block_sizes_advertised: bool,
    /// The other negotiated features.
    pub negotiated: Negotiated,
}

/// Reason why the server refused the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The option that was refused.
    pub option: u32,
    /// The error, see [`rep`].
    pub reply_type: u32,
    /// Message of the server, possibly empty. Invalid UTF-8 in it is replaced.
    pub message: String,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Greeting,
    ReplyHeader,
    ReplyData {
        reply_type: u32,
        length_bytes: usize,
    },
    ExportNameAnswer,
    StartingTls,
    Over,
}

/// The state of one connection's handshake.
#[derive(Debug)]
pub struct ClientHandshake {
    phase: Phase,
    partial: Vec<u8>,
    wishes: Wishes,
    /// The option whose reply is pending.
    pending: u32,
    /// Number of replies to the pending option received so far.
    replies: u32,
    negotiated: Negotiated,
    export: Option<(u64, u16)>,
    block_sizes: Option<[u32; 3]>,
}

impl ClientHandshake {
    /// Maximum number of input bytes that the handshake buffers.
    pub const BUFFER_MAX_BYTES: usize = OPTION_REPLY_DATA_MAX_BYTES;

    /// Begins a handshake. The server sends the first message.
    ///
    /// # Panics
    /// If the export's name exceeds 4096 bytes or contains NUL, or if `base_allocation` is
    /// requested without structured replies.
    pub fn new(wishes: Wishes) -> Self {
        let name = &wishes.export_name;
        assert!(
            name.len() <= STRING_MAX_BYTES && !name.contains('\0'),
            "not an export name"
        );
        assert!(wishes.structured_replies || !wishes.base_allocation);
        ClientHandshake {
            phase: Phase::Greeting,
            partial: Vec::new(),
            wishes,
            pending: 0,
            replies: 0,
            negotiated: Negotiated::default(),
            export: None,
            block_sizes: None,
        }
    }

    /// Returns the number of buffered input bytes, at most [`Self::BUFFER_MAX_BYTES`].
    pub fn buffered_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Consumes bytes from the server, and appends the bytes to send to `out`.
    ///
    /// Returns the number of bytes of `input` that were consumed (all of them with `NeedMore`) and
    /// the next step.
    ///
    /// # Errors
    /// Any violation of the protocol. The caller must then close the connection.
    pub fn feed(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientProgress), ProtocolError> {
        let result = self.advance(input, out);
        if !matches!(
            result,
            Ok((_, ClientProgress::NeedMore | ClientProgress::StartTls))
        ) {
            self.phase = Phase::Over;
            self.partial = Vec::new();
        }
        result
    }

    fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, ClientProgress), ProtocolError> {
        let mut consumed = 0;
        loop {
            let need_bytes = match self.phase {
                Phase::Greeting => GREETING_BYTES,
                Phase::ReplyHeader => OPTION_REPLY_HEADER_BYTES,
                Phase::ReplyData { length_bytes, .. } => length_bytes,
                Phase::ExportNameAnswer if self.negotiated.no_zeroes => 10,
                Phase::ExportNameAnswer => 10 + EXPORT_NAME_PADDING_BYTES,
                Phase::StartingTls | Phase::Over => return Err(ProtocolError::HandshakeOver),
            };
            if !gather(&mut self.partial, need_bytes, input, &mut consumed) {
                return Ok((consumed, ClientProgress::NeedMore));
            }
            let message = std::mem::take(&mut self.partial);
            let progress = match self.phase {
                Phase::Greeting => self.greeting(&message, out)?,
                Phase::ReplyHeader => self.reply_header(&message)?,
                Phase::ReplyData { reply_type, .. } => {
                    self.phase = Phase::ReplyHeader;
                    self.reply(reply_type, &message, out)?
                }
                Phase::ExportNameAnswer => Some(self.export_name_answer(&message)?),
                Phase::StartingTls | Phase::Over => return Err(ProtocolError::HandshakeOver),
            };
            if let Some(progress) = progress {
                return Ok((consumed, progress));
            }
        }
    }

    /// Answers the greeting and sends the first option (section "Newstyle negotiation").
    fn greeting(
        &mut self,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientProgress>, ProtocolError> {
        let mut fields = Fields::new(message);
        let (Some(magic), Some(style), Some(flags)) = (fields.u64(), fields.u64(), fields.u16())
        else {
            unreachable!("a greeting holds three fields")
        };
        if magic != NBD_MAGIC {
            return Err(ProtocolError::BadMagic(magic));
        }
        match style {
            OPTION_MAGIC => {}
            OLDSTYLE_MAGIC => return Err(ProtocolError::Oldstyle),
            other => return Err(ProtocolError::BadMagic(other)),
        }
        // Handshake flags that this client does not know are ignored. Flags that it knows are
        // accepted in the answer.
        let answer = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        out.extend_from_slice(&u32::from(answer).to_be_bytes());
        self.negotiated.no_zeroes = answer & handshake_flag::NO_ZEROES != 0;
        if answer & handshake_flag::FIXED_NEWSTYLE == 0 {
            if self.wishes.tls {
                return Err(ProtocolError::NoTls);
            }
            self.ask_export_name(out);
        } else if self.wishes.tls {
            self.ask(opt::STARTTLS, &[], out);
        } else {
            self.ask_first(out);
        }
        Ok(None)
    }

    /// Continues inside TLS: requests the remaining features.
    ///
    /// # Panics
    /// If the last progress was not [`ClientProgress::StartTls`].
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        assert!(
            matches!(self.phase, Phase::StartingTls),
            "TLS was agreed on just before"
        );
        self.ask_first(out);
    }

    /// Sends the first option that follows the decision about TLS: either TLS has begun, or the
    /// client does not want TLS.
    fn ask_first(&mut self, out: &mut Vec<u8>) {
        if self.wishes.structured_replies {
            self.ask(opt::STRUCTURED_REPLY, &[], out);
        } else {
            self.ask_go(out);
        }
    }

    fn reply_header(&mut self, message: &[u8]) -> Result<Option<ClientProgress>, ProtocolError> {
        let mut fields = Fields::new(message);
        let (Some(magic), Some(got), Some(reply_type), Some(length_bytes)) =
            (fields.u64(), fields.u32(), fields.u32(), fields.u32())
        else {
            unreachable!("an option reply header holds four fields")
        };
        if magic != OPTION_REPLY_MAGIC {
            return Err(ProtocolError::BadMagic(magic));
        }
        if got != self.pending {
            return Err(ProtocolError::WrongOption {
                pending: self.pending,
                got,
            });
        }
        self.replies += 1;
        if self.replies > OPTION_REPLIES_MAX {
            return Err(ProtocolError::EndlessHandshake);
        }
        let length_bytes = length_bytes as usize;
        if length_bytes > OPTION_REPLY_DATA_MAX_BYTES {
            return Err(self.malformed(reply_type));
        }
        self.phase = Phase::ReplyData {
            reply_type,
            length_bytes,
        };
        Ok(None)
    }

    fn malformed(&self, reply_type: u32) -> ProtocolError {
        ProtocolError::MalformedReply {
            option: self.pending,
            reply_type,
        }
    }

    fn unexpected(&self, reply_type: u32) -> ProtocolError {
        ProtocolError::UnexpectedReply {
            option: self.pending,
            reply_type,
        }
    }

    /// Takes one complete reply to the pending option.
    fn reply(
        &mut self,
        reply_type: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<ClientProgress>, ProtocolError> {
        if reply_type & rep::ERR_BIT != 0 {
            return Ok(self.error_reply(reply_type, data, out));
        }
        match (self.pending, reply_type) {
            (_, rep::ACK) if !data.is_empty() => Err(self.malformed(reply_type)),
            (opt::STARTTLS, rep::ACK) => {
                self.phase = Phase::StartingTls;
                Ok(Some(ClientProgress::StartTls))
            }
            (opt::STRUCTURED_REPLY, rep::ACK) => {
                self.negotiated.structured_replies = true;
                if self.wishes.base_allocation {
                    self.ask_meta_context(out);
                } else {
                    self.ask_go(out);
                }
                Ok(None)
            }
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => self.context(data).map(|()| None),
            (opt::SET_META_CONTEXT, rep::ACK) => {
                self.ask_go(out);
                Ok(None)
            }
            (opt::GO, rep::INFO) => self.info(data).map(|()| None),
            (opt::GO, rep::ACK) => Ok(Some(ClientProgress::Transmission(self.session()?))),
            _ => Err(self.unexpected(reply_type)),
        }
    }

    /// Handles an error reply to the pending option. If the option is not essential, the handshake
    /// continues without the refused feature. Otherwise the handshake ends.
    fn error_reply(
        &mut self,
        reply_type: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<ClientProgress> {
        let fatal = matches!(reply_type, rep::ERR_SHUTDOWN | rep::ERR_TLS_REQD);
        match self.pending {
            opt::STRUCTURED_REPLY if !fatal => {
                self.ask_go(out);
                None
            }
            opt::SET_META_CONTEXT if !fatal => {
                // Contexts that were sent before the error are not valid.
                self.negotiated.base_allocation_id = None;
                self.ask_go(out);
                None
            }
            opt::GO if reply_type == rep::ERR_UNSUP => {
                self.ask_export_name(out);
                None
            }
            option => {
                let message = String::from_utf8_lossy(data).into_owned();
                self.ask(opt::ABORT, &[], out);
                Some(ClientProgress::Refused(Refusal {
                    option,
                    reply_type,
                    message,
                }))
            }
        }
    }

    fn context(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let mut fields = Fields::new(data);
        let id = fields.u32().ok_or(self.malformed(rep::META_CONTEXT))?;
        if string(fields.rest()) != Some(BASE_ALLOCATION) {
            return Err(self.malformed(rep::META_CONTEXT));
        }
        // Only one context was requested, so a second context in the replies is an error.
        match self.negotiated.base_allocation_id.replace(id) {
            None => Ok(()),
            Some(_) => Err(self.unexpected(rep::META_CONTEXT)),
        }
    }

    fn info(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let malformed = self.malformed(rep::INFO);
        let mut fields = Fields::new(data);
        match fields.u16().ok_or(malformed)? {
            info::EXPORT => {
                let (Some(size_bytes), Some(flags)) = (fields.u64(), fields.u16()) else {
                    return Err(malformed);
                };
                self.export = Some((size_bytes, flags));
            }
            info::BLOCK_SIZE => {
                let (Some(min), Some(preferred), Some(max)) =
                    (fields.u32(), fields.u32(), fields.u32())
                else {
                    return Err(malformed);
                };
                self.block_sizes = Some([min, preferred, max]);
            }
            // A client must ignore information that it does not know, even if it did not request
            // any information.
            _ => return Ok(()),
        }
        if fields.rest().is_empty() {
            Ok(())
        } else {
            Err(malformed)
        }
    }

    fn export_name_answer(&mut self, message: &[u8]) -> Result<ClientProgress, ProtocolError> {
        let mut fields = Fields::new(message);
        self.export = fields.u64().zip(fields.u16());
        // The server refused `GO`. Block sizes that it sent before the refusal are not valid, so
        // discard them.
        self.block_sizes = None;
        Ok(ClientProgress::Transmission(self.session()?))
    }

    /// Returns the negotiated session, or an error if the server has not sent all necessary
    /// information.
    fn session(&self) -> Result<ClientSession, ProtocolError> {
        let (size_bytes, flags) = self.export.ok_or(self.unexpected(rep::ACK))?;
        if flags & transmission_flag::HAS_FLAGS == 0 {
            return Err(ProtocolError::BadExportInfo);
        }
        let mut export = ExportInfo::with_default_blocks(size_bytes, flags);
        match self.block_sizes {
            Some([min, preferred, max]) => {
                export.min_block_bytes = min;
                export.preferred_block_bytes = preferred;
                export.max_payload_bytes = max;
            }
            None if size_bytes.is_multiple_of(512) => export.min_block_bytes = 512,
            None => {}
        }
        export.check()?;
        Ok(ClientSession {
            info: export.negotiated(self.negotiated.structured_replies),
            block_sizes_advertised: self.block_sizes.is_some(),
            negotiated: self.negotiated,
        })
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export_name.clone();
        let requests = [1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
        self.ask(
            opt::GO,
            &[&length_of(&name), name.as_bytes(), &requests],
            out,
        );
    }

    fn ask_export_name(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export_name.clone();
        self.ask(opt::EXPORT_NAME, &[name.as_bytes()], out);
        self.phase = Phase::ExportNameAnswer;
    }

    fn ask_meta_context(&mut self, out: &mut Vec<u8>) {
        let name = self.wishes.export_name.clone();
        let parts: [&[u8]; 5] = [
            &length_of(&name),
            name.as_bytes(),
            &1_u32.to_be_bytes(),
            &length_of(BASE_ALLOCATION),
            BASE_ALLOCATION.as_bytes(),
        ];
        self.ask(opt::SET_META_CONTEXT, &parts, out);
    }

    /// Appends an option whose data is the concatenation of `parts`, and expects its replies next.
    fn ask(&mut self, option: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
        let length_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let length_bytes = u32::try_from(length_bytes).expect("an option is short");
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&length_bytes.to_be_bytes());
        for part in parts {
            out.extend_from_slice(part);
        }
        self.pending = option;
        self.replies = 0;
        self.phase = Phase::ReplyHeader;
    }
}

/// The 32-bit length in front of a string.
fn length_of(text: &str) -> [u8; 4] {
    u32::try_from(text.len())
        .expect("a string is short")
        .to_be_bytes()
}
