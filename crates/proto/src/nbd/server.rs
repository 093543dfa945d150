//! The server's end of the handshake: fixed newstyle option haggling.
//!
//! The machine consumes the client's bytes in any fragments and appends its answers to the caller's
//! buffer. It stores the data of at most one option (see [`ServerHandshake::BUFFER_MAX_BYTES`]),
//! allocates memory only for bytes that have arrived, and accepts a bounded number of options. A
//! client can therefore neither make the machine grow without bound nor keep it busy for ever. The
//! machine must never enter the transmission phase for an export that the directory does not hold.

use super::fields::{Fields, gather, string};
use super::request::{ExportInfo, Negotiated};
use super::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, EXPORT_NAME_PADDING_BYTES, GREETING_BYTES,
    META_QUERIES_MAX, NBD_MAGIC, OPTION_DATA_MAX_BYTES, OPTION_HEADER_BYTES, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OPTION_SKIP_MAX_BYTES, OPTIONS_MAX, PAYLOAD_HARD_MAX_BYTES, ProtocolError,
    STRING_MAX_BYTES, handshake_flag, info, opt, rep,
};

/// One export as the handshake shows it.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// Canonical name of the export: UTF-8 without NUL, not empty, and at most 4096 bytes long.
    pub name: &'a str,
    /// For people, may be empty, at most 4096 bytes.
    pub description: &'a str,
    /// Size, flags and block sizes of the export. The handshake clears flags that the negotiation
    /// with the client does not permit.
    pub info: ExportInfo,
}

/// The exports of a server. They must stay the same during one handshake.
pub trait ExportDirectory {
    /// Returns the export at `index`, or `None` at the end of the directory. The export at index 0
    /// is the default, which clients request with the empty name.
    fn export(&self, index: usize) -> Option<Export<'_>>;
}

/// The caller's next step after [`ServerHandshake::feed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerProgress {
    /// Receive more bytes.
    NeedMore,
    /// One option was answered. Send the output, then feed the remaining input bytes to the
    /// machine.
    Answered,
    /// Send the output, then begin TLS, and continue to feed the machine with bytes received inside
    /// TLS. If a part of the input has not been consumed, end the connection instead: a client
    /// sends nothing before TLS, so an attacker has injected that part.
    StartTls,
    /// Send the output, then serve requests. The remaining input bytes belong to the requests.
    Transmission(ServerSession),
    /// Send the output, then close: the client aborted.
    Closed,
}

/// The outcome of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSession {
    /// Index of the chosen export in the directory.
    pub export_index: usize,
    /// Canonical name of the chosen export.
    pub export_name: String,
    /// The export as it was described to the client.
    pub info: ExportInfo,
    /// The other negotiated features.
    pub negotiated: Negotiated,
}

/// The final reply to an option: its type and a message for people (empty with `ACK`).
type Verdict = (u32, &'static str);

const ACK: Verdict = (rep::ACK, "");
const MALFORMED: Verdict = (rep::ERR_INVALID, "malformed option data");
const UNEXPECTED_DATA: Verdict = (rep::ERR_INVALID, "this option takes no data");
const TOO_BIG: Verdict = (
    rep::ERR_TOO_BIG,
    "option data or a string in it is too long",
);
const UNKNOWN_EXPORT: Verdict = (rep::ERR_UNKNOWN, "no such export");
const TLS_REQUIRED: Verdict = (rep::ERR_TLS_REQD, "this server speaks inside of TLS only");
const TLS_ALREADY: Verdict = (rep::ERR_INVALID, "TLS has begun already");
const UNSUPPORTED: Verdict = (rep::ERR_UNSUP, "this option is not supported");

#[derive(Clone, Copy, Debug)]
enum Phase {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        length_bytes: usize,
    },
    /// The verdict (the final reply) does not depend on the option's data, so the data is discarded
    /// as it arrives.
    Skip {
        option: u32,
        left_bytes: usize,
        verdict: Verdict,
    },
    Over,
}

/// TLS state of the handshake (NBD, section "TLS support").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    /// TLS is not supported: the NOTLS mode of the NBD document.
    Off,
    /// TLS must begin before anything else: the FORCEDTLS mode of the NBD document.
    Required,
    /// TLS has begun.
    Begun,
}

/// The state of one connection's handshake.
#[derive(Debug)]
pub struct ServerHandshake {
    phase: Phase,
    tls: Tls,
    partial: Vec<u8>,
    options: u32,
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured_replies: bool,
    /// The export for which `base:allocation` is selected.
    allocation_export: Option<usize>,
}

impl ServerHandshake {
    /// Maximum number of input bytes that the handshake buffers.
    pub const BUFFER_MAX_BYTES: usize = OPTION_DATA_MAX_BYTES;

    /// Begins a handshake: appends the greeting to `out` (section "Newstyle negotiation").
    pub fn start(out: &mut Vec<u8>) -> Self {
        Self::begin(Tls::Off, out)
    }

    /// Begins a handshake of a server that requires TLS before anything else.
    pub fn start_requiring_tls(out: &mut Vec<u8>) -> Self {
        Self::begin(Tls::Required, out)
    }

    fn begin(tls: Tls, out: &mut Vec<u8>) -> Self {
        let before = out.len();
        out.extend_from_slice(&NBD_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        out.extend_from_slice(&flags.to_be_bytes());
        assert_eq!(out.len() - before, GREETING_BYTES);
        ServerHandshake {
            phase: Phase::ClientFlags,
            tls,
            partial: Vec::new(),
            options: 0,
            fixed_newstyle: false,
            no_zeroes: false,
            structured_replies: false,
            allocation_export: None,
        }
    }

    /// Returns the number of buffered input bytes, at most [`Self::BUFFER_MAX_BYTES`].
    pub fn buffered_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Consumes bytes from the client and appends answers to `out`.
    ///
    /// Returns the number of bytes of `input` that were consumed, and the caller's next step. Each
    /// call answers at most one option, so the output of a call is at most as long as one answer.
    ///
    /// # Errors
    /// Any error ends the handshake. `out` is then unchanged, and the caller sends nothing.
    ///
    /// # Panics
    /// If the directory holds an export whose [`ExportInfo`] is not allowed on the wire.
    pub fn feed(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        exports: &dyn ExportDirectory,
    ) -> Result<(usize, ServerProgress), ProtocolError> {
        let result = self.advance(input, out, exports);
        if result.is_err() {
            self.phase = Phase::Over;
            self.partial = Vec::new();
        }
        result
    }

    fn advance(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        exports: &dyn ExportDirectory,
    ) -> Result<(usize, ServerProgress), ProtocolError> {
        let mut consumed = 0;
        loop {
            if let Phase::Skip {
                option,
                left_bytes,
                verdict,
            } = self.phase
            {
                let step = left_bytes.min(input.len() - consumed);
                consumed += step;
                if step < left_bytes {
                    self.phase = Phase::Skip {
                        option,
                        left_bytes: left_bytes - step,
                        verdict,
                    };
                    return Ok((consumed, ServerProgress::NeedMore));
                }
                self.phase = Phase::OptionHeader;
                return Ok((consumed, self.conclude(option, verdict, out)));
            }
            let need_bytes = match self.phase {
                Phase::ClientFlags => 4,
                Phase::OptionHeader => OPTION_HEADER_BYTES,
                Phase::OptionData { length_bytes, .. } => length_bytes,
                Phase::Skip { .. } | Phase::Over => return Err(ProtocolError::HandshakeOver),
            };
            if !gather(&mut self.partial, need_bytes, input, &mut consumed) {
                return Ok((consumed, ServerProgress::NeedMore));
            }
            let message = std::mem::take(&mut self.partial);
            let mut fields = Fields::new(&message);
            match self.phase {
                Phase::ClientFlags => self.client_flags(&mut fields)?,
                Phase::OptionHeader => self.option_header(&mut fields)?,
                Phase::OptionData { option, .. } => {
                    self.phase = Phase::OptionHeader;
                    let progress = self.option(option, fields, out, exports)?;
                    return Ok((consumed, progress));
                }
                Phase::Skip { .. } | Phase::Over => return Err(ProtocolError::HandshakeOver),
            }
        }
    }

    fn client_flags(&mut self, fields: &mut Fields<'_>) -> Result<(), ProtocolError> {
        let flags = fields.u32().unwrap_or(u32::MAX);
        let fixed = u32::from(handshake_flag::FIXED_NEWSTYLE);
        let no_zeroes = u32::from(handshake_flag::NO_ZEROES);
        if flags & !(fixed | no_zeroes) != 0 {
            return Err(ProtocolError::UnknownClientFlags(flags));
        }
        self.fixed_newstyle = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        self.phase = Phase::OptionHeader;
        Ok(())
    }

    fn option_header(&mut self, fields: &mut Fields<'_>) -> Result<(), ProtocolError> {
        let (Some(magic), Some(option), Some(length_bytes)) =
            (fields.u64(), fields.u32(), fields.u32())
        else {
            unreachable!("an option header holds three fields")
        };
        if magic != OPTION_MAGIC {
            return Err(ProtocolError::BadMagic(magic));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(ProtocolError::EndlessHandshake);
        }
        if option != opt::EXPORT_NAME && !self.fixed_newstyle {
            return Err(ProtocolError::NeedsFixedNewstyle(option));
        }
        if option == opt::SET_META_CONTEXT {
            // `SET_META_CONTEXT` replaces the earlier selection even when it fails.
            self.allocation_export = None;
        }
        self.phase = if self.tls == Tls::Required {
            Self::receive_without_tls(option, length_bytes)?
        } else {
            Self::receive_option(option, length_bytes)?
        };
        Ok(())
    }

    /// Decides like `receive_option` whether an option's data is stored or skipped, for a server
    /// that requires TLS while TLS has not begun. Only `STARTTLS` and `ABORT` are permitted in this
    /// state.
    fn receive_without_tls(option: u32, length_bytes: u32) -> Result<Phase, ProtocolError> {
        match option {
            opt::STARTTLS | opt::ABORT => Self::receive_option(option, length_bytes),
            // `EXPORT_NAME` has no error reply, so the connection ends.
            opt::EXPORT_NAME => Err(ProtocolError::NeedsTls),
            _ if length_bytes as usize > OPTION_SKIP_MAX_BYTES => {
                Err(ProtocolError::OptionTooLarge {
                    option,
                    length_bytes,
                })
            }
            _ => Ok(Phase::Skip {
                option,
                left_bytes: length_bytes as usize,
                verdict: TLS_REQUIRED,
            }),
        }
    }

    /// Decides from an option's header whether its data is stored or skipped.
    fn receive_option(option: u32, length_bytes: u32) -> Result<Phase, ProtocolError> {
        let too_large = ProtocolError::OptionTooLarge {
            option,
            length_bytes,
        };
        let length_bytes = length_bytes as usize;
        if length_bytes > OPTION_SKIP_MAX_BYTES {
            return Err(too_large);
        }
        let store = Phase::OptionData {
            option,
            length_bytes,
        };
        let skip = |verdict| Phase::Skip {
            option,
            left_bytes: length_bytes,
            verdict,
        };
        Ok(match option {
            // `EXPORT_NAME` has no error reply, so a name that is too long ends the connection.
            opt::EXPORT_NAME if length_bytes > STRING_MAX_BYTES => return Err(too_large),
            opt::EXPORT_NAME => store,
            opt::ABORT => skip(ACK),
            opt::LIST | opt::STRUCTURED_REPLY | opt::STARTTLS => {
                if length_bytes == 0 {
                    store
                } else {
                    skip(UNEXPECTED_DATA)
                }
            }
            opt::INFO | opt::GO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                if length_bytes <= OPTION_DATA_MAX_BYTES {
                    store
                } else {
                    skip(TOO_BIG)
                }
            }
            _ => skip(UNSUPPORTED),
        })
    }

    /// Answers an option whose data is complete.
    fn option(
        &mut self,
        option: u32,
        data: Fields<'_>,
        out: &mut Vec<u8>,
        exports: &dyn ExportDirectory,
    ) -> Result<ServerProgress, ProtocolError> {
        let verdict = match option {
            opt::EXPORT_NAME => return self.export_name(data, out, exports),
            opt::STARTTLS => match self.tls {
                Tls::Required => return Ok(self.start_tls(out)),
                Tls::Begun => TLS_ALREADY,
                Tls::Off => UNSUPPORTED,
            },
            opt::LIST => list(out, exports),
            opt::INFO | opt::GO => match self.describe(option, data, out, exports) {
                Ok(session) if option == opt::GO => {
                    put_reply(out, option, rep::ACK, &[]);
                    self.phase = Phase::Over;
                    return Ok(ServerProgress::Transmission(session));
                }
                Ok(_) => ACK,
                Err(verdict) => verdict,
            },
            opt::STRUCTURED_REPLY => {
                self.structured_replies = true;
                ACK
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self
                .meta_context(option, data, out, exports)
                .unwrap_or_else(|verdict| verdict),
            _ => UNSUPPORTED,
        };
        Ok(self.conclude(option, verdict, out))
    }

    /// Starts TLS. Features that were negotiated before TLS would be unauthenticated, so they must
    /// not be kept; the assertion checks that there are none. The client's handshake flags are
    /// kept.
    fn start_tls(&mut self, out: &mut Vec<u8>) -> ServerProgress {
        put_reply(out, opt::STARTTLS, rep::ACK, &[]);
        assert!(
            !self.structured_replies && self.allocation_export.is_none(),
            "nothing is agreed on before TLS"
        );
        self.tls = Tls::Begun;
        ServerProgress::StartTls
    }

    /// Sends the final reply to an option that does not begin the transmission phase. The handshake
    /// then continues, or ends if the option is `ABORT`.
    fn conclude(&mut self, option: u32, verdict: Verdict, out: &mut Vec<u8>) -> ServerProgress {
        put_reply(out, option, verdict.0, &[verdict.1.as_bytes()]);
        if option == opt::ABORT {
            self.phase = Phase::Over;
            return ServerProgress::Closed;
        }
        ServerProgress::Answered
    }

    /// Answers `EXPORT_NAME`, the original way to enter transmission (section "Newstyle
    /// negotiation").
    fn export_name(
        &mut self,
        data: Fields<'_>,
        out: &mut Vec<u8>,
        exports: &dyn ExportDirectory,
    ) -> Result<ServerProgress, ProtocolError> {
        let found = string(data.rest()).and_then(|name| find(exports, name));
        let (index, export) = found.ok_or(ProtocolError::UnknownExport)?;
        let session = self.session(index, &export);
        out.extend_from_slice(&session.info.size_bytes.to_be_bytes());
        out.extend_from_slice(&session.info.transmission_flags.to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        self.phase = Phase::Over;
        Ok(ServerProgress::Transmission(session))
    }

    /// Answers `INFO` or `GO`, except for the final reply. Returns the session for the requested
    /// export, or the final reply if the option fails.
    fn describe(
        &self,
        option: u32,
        mut data: Fields<'_>,
        out: &mut Vec<u8>,
        exports: &dyn ExportDirectory,
    ) -> Result<ServerSession, Verdict> {
        let name = take_string(&mut data)?;
        let count = data.u16().ok_or(MALFORMED)?;
        if data.rest().len() != 2 * usize::from(count) {
            return Err(MALFORMED);
        }
        let (index, export) = find(exports, name).ok_or(UNKNOWN_EXPORT)?;
        let session = self.session(index, &export);
        let facts = &session.info;
        let mut put_info = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            put_reply(out, option, rep::INFO, &[&kind.to_be_bytes(), a, b, c]);
        };
        put_info(
            info::EXPORT,
            [
                &facts.size_bytes.to_be_bytes(),
                &facts.transmission_flags.to_be_bytes(),
                &[],
            ],
        );
        let asked = |kind: u16| {
            data.rest()
                .chunks_exact(2)
                .any(|pair| pair == kind.to_be_bytes())
        };
        if asked(info::NAME) {
            put_info(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if asked(info::DESCRIPTION) && !export.description.is_empty() {
            put_info(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        if asked(info::BLOCK_SIZE) {
            put_info(
                info::BLOCK_SIZE,
                [
                    &facts.min_block_bytes.to_be_bytes(),
                    &facts.preferred_block_bytes.to_be_bytes(),
                    &facts.max_payload_bytes.to_be_bytes(),
                ],
            );
        }
        Ok(session)
    }

    /// Answers `LIST_META_CONTEXT` or `SET_META_CONTEXT` with the matching contexts, and returns
    /// the final reply, which the caller sends (section "Metadata querying").
    fn meta_context(
        &mut self,
        option: u32,
        mut data: Fields<'_>,
        out: &mut Vec<u8>,
        exports: &dyn ExportDirectory,
    ) -> Result<Verdict, Verdict> {
        let listing = option == opt::LIST_META_CONTEXT;
        if !self.structured_replies {
            return Err((
                rep::ERR_INVALID,
                "structured replies must be negotiated first",
            ));
        }
        let name = take_string(&mut data)?;
        let count = data.u32().ok_or(MALFORMED)?;
        if count > META_QUERIES_MAX {
            return Err((rep::ERR_TOO_BIG, "too many queries"));
        }
        // Without queries, `LIST_META_CONTEXT` lists every context and `SET_META_CONTEXT` selects
        // none.
        let mut matched = listing && count == 0;
        for _ in 0..count {
            let query = take_string(&mut data)?;
            if !query.contains(':') {
                return Err((rep::ERR_INVALID, "a query without a namespace"));
            }
            matched |= query == BASE_ALLOCATION || (listing && query == "base:");
        }
        if !data.rest().is_empty() {
            return Err(MALFORMED);
        }
        let (index, _) = find(exports, name).ok_or(UNKNOWN_EXPORT)?;
        if matched {
            let id = if listing { 0 } else { BASE_ALLOCATION_ID };
            let parts: [&[u8]; 2] = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()];
            put_reply(out, option, rep::META_CONTEXT, &parts);
            if !listing {
                self.allocation_export = Some(index);
            }
        }
        Ok(ACK)
    }

    /// Returns the session for transmission on `export` with the features negotiated so far.
    fn session(&self, index: usize, export: &Export<'_>) -> ServerSession {
        let info = export.info.negotiated(self.structured_replies);
        assert!(
            info.check().is_ok() && info.max_payload_bytes <= PAYLOAD_HARD_MAX_BYTES,
            "export {index} has block sizes or a payload that the protocol does not allow"
        );
        // A context is valid only for the export for which it was selected.
        let selected = self.allocation_export == Some(index);
        ServerSession {
            export_index: index,
            export_name: export.name.to_owned(),
            info,
            negotiated: Negotiated {
                structured_replies: self.structured_replies,
                base_allocation_id: selected.then_some(BASE_ALLOCATION_ID),
                no_zeroes: self.no_zeroes,
            },
        }
    }
}

/// Takes a string that is preceded by its 32-bit length.
fn take_string<'a>(data: &mut Fields<'a>) -> Result<&'a str, Verdict> {
    let length_bytes = data.u32().ok_or(MALFORMED)? as usize;
    let bytes = data.bytes(length_bytes).ok_or(MALFORMED)?;
    if length_bytes > STRING_MAX_BYTES {
        return Err(TOO_BIG);
    }
    string(bytes).ok_or(MALFORMED)
}

/// Iterates over all exports in order, with their indexes.
fn all(exports: &dyn ExportDirectory) -> impl Iterator<Item = (usize, Export<'_>)> {
    (0..).map_while(|index| exports.export(index).map(|export| (index, export)))
}

/// Returns the export with this name, and its index. The empty name means the first export.
fn find<'a>(exports: &'a dyn ExportDirectory, name: &str) -> Option<(usize, Export<'a>)> {
    all(exports).find(|(_, export)| name.is_empty() || export.name == name)
}

/// Answers `LIST`, and returns the final reply.
fn list(out: &mut Vec<u8>, exports: &dyn ExportDirectory) -> Verdict {
    for (_, export) in all(exports) {
        let name_bytes = (export.name.len() as u32).to_be_bytes();
        let parts: [&[u8]; 3] = [
            &name_bytes,
            export.name.as_bytes(),
            export.description.as_bytes(),
        ];
        put_reply(out, opt::LIST, rep::SERVER, &parts);
    }
    ACK
}

/// Appends one option reply whose data is the concatenation of `parts`.
fn put_reply(out: &mut Vec<u8>, option: u32, reply_type: u32, parts: &[&[u8]]) {
    let length_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let length_bytes = u32::try_from(length_bytes).expect("an option reply is short");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply_type.to_be_bytes());
    out.extend_from_slice(&length_bytes.to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}
