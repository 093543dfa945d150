//! Both ends of NBD.

use super::{Input, in_fragments};
use crate::nbd::reply_decoder::{
    REPLY_HEADER_MAX_BYTES, ReplyBody, check_reply, error_offset_bytes, extents,
    simple_payload_bytes,
};
use crate::nbd::request::{decode_request, validate};
use crate::nbd::wire::{
    OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_DEFAULT_MAX_BYTES, PAYLOAD_HARD_MAX_BYTES,
    REQUEST_BYTES, command_flag, transmission_flag as flag,
};
use crate::nbd::{
    ClientHandshake, ClientProgress, ClientSession, Command, Export, ExportDirectory, ExportInfo,
    Negotiated, ProtocolError, ReadCoverage, ReplyDecoder, Request, ServerHandshake,
    ServerProgress, ServerSession, Wishes,
};

const SIZE_BYTES: u64 = 1 << 20;
/// Maximum size in bytes of the answer to one option with the directory [`Two`]. The answer
/// consists of the names and descriptions of both exports with the heads of their replies, or of
/// the information about one export.
const ANSWER_BYTES_MAX: usize = 1024;

/// Directory of two exports; the second one is read-only.
struct Two;

impl ExportDirectory for Two {
    fn export(&self, index: usize) -> Option<Export<'_>> {
        let (name, read_only) = *[("vol", 0), ("aux", flag::READ_ONLY)].get(index)?;
        let flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_TRIM;
        Some(Export {
            name,
            description: "of a fuzzer",
            info: ExportInfo {
                size_bytes: SIZE_BYTES,
                transmission_flags: flags | flag::SEND_WRITE_ZEROES | flag::SEND_DF | read_only,
                min_block_bytes: 1,
                preferred_block_bytes: 4096,
                max_payload_bytes: PAYLOAD_DEFAULT_MAX_BYTES,
            },
        })
    }
}

/// Result of a server for a stream.
#[derive(Debug, PartialEq)]
struct Served {
    out: Vec<u8>,
    session: Option<ServerSession>,
    requests: Vec<(Request, bool)>,
    end: Result<(), ProtocolError>,
}

/// Fuzzes a server with the stream of a client: the handshake, with or without mandatory TLS, and
/// the requests after it. Most of the stream is built from the fuzzer's bytes as options and
/// requests with valid heads, so that not every input is rejected at the first wrong byte.
pub fn nbd_server(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let stream = client_stream(&mut input);
    let requires_tls = choice & 1 != 0;
    let whole = serve(&stream, usize::MAX, requires_tls);
    for fragment_bytes in [1, 1 + usize::from(choice >> 1)] {
        let cut = serve(&stream, fragment_bytes, requires_tls);
        assert_eq!(cut, whole, "in fragments of {fragment_bytes}");
    }
}

fn client_stream(input: &mut Input<'_>) -> Vec<u8> {
    let mut stream = vec![0, 0, 0, input.byte() & 7];
    while !input.is_empty() {
        match input.below(8) {
            0 => stream.extend(input.take(9)),
            1..=3 => {
                let (option, len) = (input.below(13) as u32, input.below(64));
                let data = input.take(len);
                stream.extend(OPTION_MAGIC.to_be_bytes());
                stream.extend(option.to_be_bytes());
                stream.extend((data.len() as u32).to_be_bytes());
                stream.extend(data);
            }
            // GO with a name of the directory.
            4 => {
                stream.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x09\0\0\0\x03");
                stream.extend([&b"vol"[..], b"aux", b"non"][input.below(3)]);
                stream.extend([0, 0]);
            }
            _ => request(input, &mut stream),
        }
    }
    stream
}

/// Appends a request with a valid magic, and a part of its data.
fn request(input: &mut Input<'_>, stream: &mut Vec<u8>) {
    let (flags, command) = (input.byte() & 0x3f, input.below(9) as u8);
    stream.extend([0x25, 0x60, 0x95, 0x13, 0, flags, 0, command]);
    stream.extend([input.byte(); 8]);
    stream.extend(input.any_number().to_be_bytes());
    stream.extend((input.any_number() as u32).to_be_bytes());
    stream.extend(input.take(usize::from(command) * 2));
}

fn serve(stream: &[u8], fragment_bytes: usize, requires_tls: bool) -> Served {
    let mut greeting = Vec::new();
    let mut machine = if requires_tls {
        ServerHandshake::start_requiring_tls(&mut greeting)
    } else {
        ServerHandshake::start(&mut greeting)
    };
    let mut tls = !requires_tls;
    let (mut out, mut session, mut requests) = (Vec::new(), None, Vec::new());
    let mut skip_bytes = 0;
    let mut closed = false;
    let end = in_fragments(stream, fragment_bytes, |unread| {
        if closed {
            return Ok(None);
        }
        if let Some(session) = &session {
            return transmission(unread, session, &mut skip_bytes, &mut requests);
        }
        let before = out.len();
        let fed = machine.feed(unread, &mut out, &Two);
        assert!(machine.buffered_bytes() <= ServerHandshake::BUFFER_MAX_BYTES);
        assert!(
            out.len() - before <= ANSWER_BYTES_MAX,
            "one answer at a time"
        );
        let (taken, progress) = fed.inspect_err(|_| {
            let again = machine.feed(b"x", &mut Vec::new(), &Two);
            assert_eq!(
                again,
                Err(ProtocolError::HandshakeOver),
                "an end is for good"
            );
            assert_eq!(machine.buffered_bytes(), 0, "nothing is kept of the dead");
        })?;
        match progress {
            ServerProgress::NeedMore => {
                assert_eq!(taken, unread.len());
                return Ok((taken > 0).then_some(taken));
            }
            ServerProgress::Answered => {}
            ServerProgress::StartTls => {
                assert!(!std::mem::replace(&mut tls, true), "TLS begins once");
            }
            ServerProgress::Closed => closed = true,
            ServerProgress::Transmission(chosen) => {
                assert!(tls, "nothing is opened before TLS");
                session = Some(chosen);
            }
        }
        Ok(Some(taken))
    });
    Served {
        out,
        session,
        requests,
        end,
    }
}

/// Consumes one request, or a part of the data of the previous request. Returns the number of bytes
/// consumed, or `None` when more bytes are needed.
fn transmission(
    unread: &[u8],
    session: &ServerSession,
    skip_bytes: &mut usize,
    requests: &mut Vec<(Request, bool)>,
) -> Result<Option<usize>, ProtocolError> {
    if *skip_bytes > 0 {
        let taken = unread.len().min(*skip_bytes);
        *skip_bytes -= taken;
        return Ok((taken > 0).then_some(taken));
    }
    let Some(head) = unread.first_chunk::<REQUEST_BYTES>() else {
        return Ok(None);
    };
    let request = decode_request(head)?;
    assert!(request.payload_bytes() <= PAYLOAD_HARD_MAX_BYTES);
    *skip_bytes = request.payload_bytes() as usize;
    let valid = validate(&request, &session.info, &session.negotiated);
    if let Ok(command) = valid {
        check_valid(&request, command, session);
    }
    requests.push((request, valid.is_ok()));
    Ok(Some(REQUEST_BYTES))
}

/// Checks that a valid request lies in the export and does not change a read-only export.
fn check_valid(request: &Request, command: Command, session: &ServerSession) {
    if command == Command::Disconnect {
        return;
    }
    let end = u128::from(request.offset_bytes) + u128::from(request.length_bytes);
    assert!(end <= u128::from(SIZE_BYTES), "{request:?}");
    let transfers = matches!(command, Command::Read | Command::Write);
    assert!(!transfers || request.length_bytes <= session.info.max_payload_bytes);
    let read_only = session.info.transmission_flags & flag::READ_ONLY != 0;
    assert_eq!(read_only, session.export_index == 1);
    assert!(!(command.writes() && read_only), "{request:?}");
    let selected = session.negotiated.base_allocation_id.is_some();
    assert!(command != Command::BlockStatus || selected);
}

/// Result of a client for a stream.
#[derive(Debug, PartialEq)]
struct Asked {
    out: Vec<u8>,
    progress: Option<ClientProgress>,
    replies: usize,
    end: Result<(), ProtocolError>,
}

/// Fuzzes a client with the stream of a server: the handshake, and replies to a request whose kind
/// also comes from the fuzzer's bytes.
pub fn nbd_client(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let request = Request {
        flags: u16::from(input.byte() & 0x1f) & (command_flag::DF | command_flag::REQ_ONE),
        command_wire: [0, 1, 3, 7][input.below(4)],
        cookie: 0x0101_0101_0101_0101 * u64::from(input.byte() & 3),
        offset_bytes: u64::from(input.byte()) << 9,
        length_bytes: 1 + u32::from(input.byte()),
    };
    let stream = server_stream(&mut input, choice, &request);
    let whole = ask(&stream, usize::MAX, choice, &request);
    for fragment_bytes in [1, 1 + usize::from(choice >> 1)] {
        let cut = ask(&stream, fragment_bytes, choice, &request);
        assert_eq!(cut, whole, "in fragments of {fragment_bytes}");
    }
}

fn server_stream(input: &mut Input<'_>, choice: u8, request: &Request) -> Vec<u8> {
    let mut stream = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    if choice & 1 != 0 {
        // Send successful answers to the options that lead into transmission: structured replies,
        // the context `base:allocation`, and GO. The fuzzer then also reaches the replies to
        // requests.
        let mut reply = |option: u32, kind: u32, data: &[u8]| {
            stream.extend(OPTION_REPLY_MAGIC.to_be_bytes());
            stream.extend(option.to_be_bytes());
            stream.extend(kind.to_be_bytes());
            stream.extend((data.len() as u32).to_be_bytes());
            stream.extend(data);
        };
        reply(8, 1, &[]);
        reply(10, 4, b"\0\0\0\x01base:allocation");
        reply(10, 1, &[]);
        reply(7, 3, b"\0\0\0\0\0\0\0\x10\0\0\x01\xff");
        reply(7, 1, &[]);
    }
    while !input.is_empty() {
        match input.below(8) {
            0 => stream.extend(input.take(7)),
            1 | 2 => {
                let (option, kind) = ([7, 8, 10, 1][input.below(4)], input.below(12) as u32);
                let error = u32::from(input.byte() & 1) << 31;
                let len = input.below(40);
                let data = input.take(len);
                stream.extend(OPTION_REPLY_MAGIC.to_be_bytes());
                stream.extend(u32::to_be_bytes(option));
                stream.extend((kind | error).to_be_bytes());
                stream.extend((data.len() as u32).to_be_bytes());
                stream.extend(data);
            }
            3 => {
                stream.extend([0x67, 0x44, 0x66, 0x98, 0, 0, 0, input.byte() & 0x7f]);
                stream.extend(request.cookie.to_be_bytes());
            }
            _ => chunk(input, request, &mut stream),
        }
    }
    stream
}

/// Appends a structured reply chunk with a valid magic and with offsets near the range of the
/// request that it answers.
fn chunk(input: &mut Input<'_>, request: &Request, stream: &mut Vec<u8>) {
    let kind = [0_u16, 1, 2, 5, 0x8001, 0x8002, 6, 0x8003][input.below(8)];
    let offset = request.offset_bytes + u64::from(input.byte() & 0x3f);
    let len = input.below(48);
    let mut payload = match kind {
        1 => offset.to_be_bytes().to_vec(),
        2 => [&offset.to_be_bytes()[..], &[0, 0, 0, input.byte()]].concat(),
        5 => vec![0, 0, 0, 1],
        _ => Vec::new(),
    };
    payload.extend(input.take(len));
    stream.extend([0x66, 0x8e, 0x33, 0xef, 0, input.byte() & 3]);
    stream.extend(kind.to_be_bytes());
    stream.extend(request.cookie.to_be_bytes());
    let claimed = payload.len() as u32 + u32::from(input.byte() == 0xff);
    stream.extend(claimed.to_be_bytes());
    stream.extend(payload);
}

/// A client in transmission.
struct Replies {
    decoder: ReplyDecoder,
    negotiated: Negotiated,
    coverage: ReadCoverage,
    /// State of a chunk whose payload has not arrived completely: the length of the payload, and
    /// the chunk's body.
    pending: Option<(usize, ReplyBody)>,
    seen: usize,
}

fn ask(stream: &[u8], fragment_bytes: usize, choice: u8, request: &Request) -> Asked {
    let mut machine = ClientHandshake::new(Wishes {
        export_name: "vol".to_owned(),
        structured_replies: choice & 3 != 2,
        base_allocation: choice & 3 != 2,
        tls: choice & 4 != 0,
    });
    let (mut out, mut progress) = (Vec::new(), None);
    let mut replies: Option<Replies> = None;
    let end = in_fragments(stream, fragment_bytes, |unread| {
        if let Some(replies) = &mut replies {
            return replies.step(unread, request);
        }
        if progress.is_some() {
            return Ok(None);
        }
        let fed = machine.feed(unread, &mut out);
        assert!(machine.buffered_bytes() <= ClientHandshake::BUFFER_MAX_BYTES);
        let (taken, next) = fed.inspect_err(|_| {
            assert_eq!(machine.buffered_bytes(), 0, "nothing is kept of the dead");
            assert!(
                machine.feed(b"x", &mut Vec::new()).is_err(),
                "an end is for good"
            );
        })?;
        match next {
            ClientProgress::NeedMore => {
                assert_eq!(taken, unread.len());
                return Ok((taken > 0).then_some(taken));
            }
            // The messages inside TLS come from the same bytes.
            ClientProgress::StartTls => machine.secured(&mut out),
            ClientProgress::Transmission(ref session) => {
                replies = Some(Replies::new(session, request));
                progress = Some(next);
            }
            ClientProgress::Refused(_) => progress = Some(next),
        }
        Ok(Some(taken))
    });
    Asked {
        out,
        progress,
        replies: replies.map_or(0, |replies| replies.seen),
        end,
    }
}

impl Replies {
    fn new(session: &ClientSession, request: &Request) -> Replies {
        session.info.check().expect("only sound sizes are taken");
        Replies {
            decoder: ReplyDecoder::new(session.negotiated.structured_replies),
            negotiated: session.negotiated,
            coverage: ReadCoverage::new(*request),
            pending: None,
            seen: 0,
        }
    }

    fn step(&mut self, unread: &[u8], request: &Request) -> Result<Option<usize>, ProtocolError> {
        if let Some((len, body)) = self.pending {
            let Some(payload) = unread.get(..len) else {
                return Ok(None);
            };
            self.pending = None;
            match body {
                ReplyBody::BlockStatus { .. } => {
                    let runs = extents(request, payload)?;
                    assert!(!runs.is_empty() && runs.len() <= len / 8);
                }
                ReplyBody::Error {
                    has_offset: true,
                    message_bytes,
                    ..
                } => {
                    let at = error_offset_bytes(request, payload, message_bytes)?;
                    let range = request.offset_bytes;
                    assert!((range..=range + u64::from(request.length_bytes)).contains(&at));
                }
                _ => {}
            }
            return Ok(Some(len));
        }
        if unread.is_empty() {
            return Ok(None);
        }
        let (taken, header) = self.decoder.feed(unread)?;
        assert!(self.decoder.buffered_bytes() <= REPLY_HEADER_MAX_BYTES);
        let Some(header) = header else {
            return Ok((taken > 0).then_some(taken));
        };
        assert!(header.payload_bytes <= PAYLOAD_HARD_MAX_BYTES + 8);
        check_reply(request, &self.negotiated, &header)?;
        self.seen += 1;
        let mut payload_bytes = header.payload_bytes;
        match header.body {
            ReplyBody::Simple(error) => payload_bytes = simple_payload_bytes(request, error),
            ReplyBody::OffsetData { offset_bytes } => {
                self.coverage.add(offset_bytes, header.payload_bytes)?;
            }
            ReplyBody::OffsetHole {
                offset_bytes,
                hole_bytes,
            } => self.coverage.add(offset_bytes, hole_bytes)?,
            _ => {}
        }
        self.pending = Some((payload_bytes as usize, header.body));
        Ok(Some(taken))
    }
}
