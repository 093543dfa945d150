//! Helpers that several test files share: a directory of two exports, and encoders of messages. The
//! encoders define the protocol's layouts and numbers independently of the crate's constants.

use bimetal_proto::nbd::{
    Export, ExportDirectory, ExportInfo, ProtocolError, ServerHandshake, ServerProgress,
};

/// `HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_DF | CAN_MULTI_CONN`
/// `| SEND_CACHE | SEND_FAST_ZERO`, by the bit numbers of section "Transmission flags".
pub const FLAGS: u16 = 0b1101_1110_1101;
/// [`FLAGS`] without `SEND_DF` (bit 7).
pub const FLAGS_WITHOUT_DF: u16 = 0b1101_0110_1101;

pub fn info(size_bytes: u64) -> ExportInfo {
    ExportInfo {
        size_bytes,
        transmission_flags: FLAGS,
        min_block_bytes: 512,
        preferred_block_bytes: 4096,
        max_payload_bytes: 1 << 20,
    }
}

/// Exports `vol` (1 MiB, described) and `aux` (2 MiB).
pub struct Two;

impl ExportDirectory for Two {
    fn export(&self, index: usize) -> Option<Export<'_>> {
        match index {
            0 => Some(Export {
                name: "vol",
                description: "a volume",
                info: info(1 << 20),
            }),
            1 => Some(Export {
                name: "aux",
                description: "",
                info: info(2 << 20),
            }),
            _ => None,
        }
    }
}

/// A directory without exports.
pub struct Empty;

impl ExportDirectory for Empty {
    fn export(&self, _index: usize) -> Option<Export<'_>> {
        None
    }
}

pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

pub fn option_header(option: u32, length_bytes: u32) -> Vec<u8> {
    [
        &b"IHAVEOPT"[..],
        &option.to_be_bytes(),
        &length_bytes.to_be_bytes(),
    ]
    .concat()
}

pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&option_header(option, data.len() as u32)[..], data].concat()
}

/// Data of `INFO` and `GO`.
pub fn go_data(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((requests.len() as u16).to_be_bytes());
    data.extend(requests.iter().flat_map(|request| request.to_be_bytes()));
    data
}

/// Data of the metadata context options.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

pub fn option_reply(option: u32, reply_type: u32, data: &[u8]) -> Vec<u8> {
    let magic = [0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
    let (option, reply_type) = (option.to_be_bytes(), reply_type.to_be_bytes());
    let length = (data.len() as u32).to_be_bytes();
    [&magic[..], &option, &reply_type, &length, data].concat()
}

/// Returns the replies in a server's output. Each reply is the option, the reply type, and the
/// data.
pub fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], [0x00, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9]);
        let field = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let end = 20 + field(16) as usize;
        found.push((field(8), field(12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    found
}

/// The types of those replies.
pub fn types(bytes: &[u8]) -> Vec<u32> {
    replies(bytes).into_iter().map(|reply| reply.1).collect()
}

/// The outcome of a conversation: the server's output after its greeting, the input bytes that it
/// did not consume, and its last progress or error.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub out: Vec<u8>,
    pub left: Vec<u8>,
    pub end: Result<ServerProgress, ProtocolError>,
}

/// Feeds `input` to a server in fragments of `fragment_bytes`, until the handshake ends or the
/// input is used up.
pub fn serve_with(exports: &dyn ExportDirectory, input: &[u8], fragment_bytes: usize) -> Outcome {
    let mut out = Vec::new();
    let mut server = ServerHandshake::start(&mut out);
    out.clear();
    let mut held: Vec<u8> = Vec::new();
    let mut fragments = input.chunks(fragment_bytes);
    let mut end = Ok(ServerProgress::NeedMore);
    loop {
        if matches!(end, Ok(ServerProgress::NeedMore)) {
            match fragments.next() {
                Some(fragment) => held.extend(fragment),
                None => break,
            }
        }
        match server.feed(&held, &mut out, exports) {
            Ok((taken, progress)) => {
                assert!(server.buffered_bytes() <= ServerHandshake::BUFFER_MAX_BYTES);
                held.drain(..taken);
                end = Ok(progress);
            }
            Err(error) => end = Err(error),
        }
        if !matches!(end, Ok(ServerProgress::NeedMore | ServerProgress::Answered)) {
            break;
        }
    }
    let left = held
        .into_iter()
        .chain(fragments.flatten().copied())
        .collect();
    let left = if end.is_ok() { left } else { Vec::new() };
    Outcome { out, left, end }
}

/// Feeds a server the client flags `FIXED_NEWSTYLE | NO_ZEROES` and then `options`, in one piece.
pub fn serve(options: &[&[u8]]) -> Outcome {
    serve_with(
        &Two,
        &[&[0, 0, 0, 3], &options.concat()[..]].concat(),
        usize::MAX,
    )
}
