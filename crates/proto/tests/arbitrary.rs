//! Tests with arbitrary bytes: the codecs never panic, never hold data beyond their bounds, and do
//! not depend on fragmentation.

use crate::common::*;
use bimetal_proto::nbd::reply_decoder::{REPLY_HEADER_MAX_BYTES, check_reply, extents};
use bimetal_proto::nbd::request::{decode_request, encode_request, validate};
use bimetal_proto::nbd::{
    ClientHandshake, ClientProgress, Command, ExportInfo, Negotiated, ProtocolError, ReadCoverage,
    ReplyDecoder, ReplyHeader, Request, Wishes,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..max)
}

/// Generates data of an option that is valid in part: strings with and without a correct length,
/// numbers of entries, and codes.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        bytes(6),
        (0_u32..20).prop_map(|count| count.to_be_bytes().to_vec()),
        (0_u16..4).prop_map(|count| count.to_be_bytes().to_vec()),
        prop_oneof!["vol", "aux", "base:allocation", "base:", "[a-z:]{0,9}"]
            .prop_map(|text| string(&text)),
    ];
    vec(part, 0..6).prop_map(|parts| parts.concat())
}

/// Generates bytes that a client might send. Most of them are options with a valid header, and some
/// are arbitrary.
fn client_stream() -> impl Strategy<Value = Vec<u8>> {
    let message = prop_oneof![
        8 => (0_u32..13, data()).prop_map(|(code, data)| option(code, &data)),
        2 => Just(option(8, &[])),
        1 => Just(option(10, &meta_data("vol", &["base:allocation"]))),
        1 => Just(option(7, &go_data("vol", &[3]))),
        1 => (0_u32..13, any::<u32>()).prop_map(|(code, length)| option_header(code, length)),
        1 => bytes(40),
    ];
    let flags = prop_oneof![9 => Just(3_u32), 1 => any::<u32>()];
    (flags, vec(message, 0..12))
        .prop_map(|(flags, messages)| [&flags.to_be_bytes()[..], &messages.concat()].concat())
}

/// Bytes that a server might send.
fn server_stream() -> impl Strategy<Value = Vec<u8>> {
    let option = prop_oneof![Just(8_u32), Just(10), Just(7), any::<u32>()];
    let kind = prop_oneof![6 => 1_u32..5, 1 => (1_u32..11).prop_map(|code| code | 1 << 31)];
    let message = prop_oneof![
        6 => (option, kind, data()).prop_map(|(option, kind, data)| option_reply(option, kind, &data)),
        2 => prop_oneof![Just(7_u32), Just(8), Just(10)].prop_map(|code| option_reply(code, 1, &[])),
        2 => vec(any::<u8>(), 10).prop_map(|tail| option_reply(7, 3, &[&[0, 0], &tail[..]].concat())),
        1 => bytes(40),
    ];
    (0_u16..4, vec(message, 0..12)).prop_map(|(flags, messages)| {
        [
            b"NBDMAGICIHAVEOPT",
            &flags.to_be_bytes()[..],
            &messages.concat(),
        ]
        .concat()
    })
}

/// Returns the output and the final progress or error of a client that is fed in fragments.
fn client(input: &[u8], fragment_bytes: usize) -> (Vec<u8>, Result<ClientProgress, ProtocolError>) {
    let mut client = ClientHandshake::new(Wishes {
        export_name: "vol".to_owned(),
        structured_replies: true,
        base_allocation: true,
        tls: false,
    });
    let mut out = Vec::new();
    for fragment in input.chunks(fragment_bytes) {
        let result = client.feed(fragment, &mut out);
        assert!(client.buffered_bytes() <= ClientHandshake::BUFFER_MAX_BYTES);
        match result {
            Ok((taken, ClientProgress::NeedMore)) => assert_eq!(taken, fragment.len()),
            Ok((taken, progress)) => {
                assert!(taken <= fragment.len());
                return (out, Ok(progress));
            }
            Err(error) => return (out, Err(error)),
        }
    }
    (out, Ok(ClientProgress::NeedMore))
}

/// Returns the headers in a stream of replies, and the error that ended it; payloads are skipped.
fn headers(input: &[u8], fragment_bytes: usize) -> (Vec<ReplyHeader>, Option<ProtocolError>) {
    let mut decoder = ReplyDecoder::new(true);
    let mut found = Vec::new();
    let mut skip_bytes = 0;
    for mut fragment in input.chunks(fragment_bytes) {
        while !fragment.is_empty() {
            let skipped = skip_bytes.min(fragment.len());
            skip_bytes -= skipped;
            fragment = &fragment[skipped..];
            match decoder.feed(fragment) {
                Ok((taken, header)) => {
                    fragment = &fragment[taken..];
                    skip_bytes += header.map_or(0, |header| header.payload_bytes as usize);
                    found.extend(header);
                }
                Err(error) => return (found, Some(error)),
            }
            assert!(decoder.buffered_bytes() <= REPLY_HEADER_MAX_BYTES);
        }
    }
    (found, None)
}

/// Bytes that a server might send in transmission.
fn reply_stream() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        5 => prop_oneof![Just(0_u16), Just(1), Just(2), Just(5), Just(0x8001), Just(0x8002)],
        1 => any::<u16>(),
    ];
    let length = prop_oneof![
        Just(0_u32),
        Just(6),
        Just(9),
        Just(12),
        Just(14),
        Just(20),
        0..30_u32
    ];
    let chunk = (0_u16..2, kind, any::<u64>(), length, vec(any::<u8>(), 30)).prop_map(
        |(flags, kind, cookie, length, payload)| {
            let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
            bytes.extend(flags.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            // The first six bytes of a payload are replaced by fixed small numbers. In an error
            // chunk these bytes are the error number and the message length.
            let payload = payload
                .iter()
                .enumerate()
                .map(|(at, b)| if at < 6 { at as u8 % 5 } else { *b });
            bytes.extend(payload.take(length as usize));
            bytes
        },
    );
    let simple = (any::<u32>(), any::<u64>()).prop_map(|(error, cookie)| {
        [
            &[0x67, 0x44, 0x66, 0x98][..],
            &error.to_be_bytes(),
            &cookie.to_be_bytes(),
        ]
        .concat()
    });
    vec(prop_oneof![8 => chunk, 4 => simple, 1 => bytes(9)], 0..10).prop_map(|all| all.concat())
}

fn request() -> impl Strategy<Value = Request> {
    let small = prop_oneof![0_u64..5000, (0_u64..5).prop_map(|n| n * 512), any::<u64>()];
    let length = prop_oneof![0_u32..5000, (0_u32..5).prop_map(|n| n * 512), any::<u32>()];
    let flags = prop_oneof![0_u16..32, any::<u16>()];
    (flags, 0_u16..10, any::<u64>(), small, length).prop_map(
        |(flags, command_wire, cookie, offset_bytes, length_bytes)| Request {
            flags,
            command_wire,
            cookie,
            offset_bytes,
            length_bytes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        // Every run uses the same cases; the fuzzers cover other cases.
        rng_seed: RngSeed::Fixed(20),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn server_handshake(input in prop_oneof![3 => client_stream(), 1 => bytes(200)], cut in 1_usize..50) {
        // `serve_with` itself asserts the memory bound after each call.
        let whole = serve_with(&Two, &input, usize::MAX);
        prop_assert_eq!(&serve_with(&Two, &input, cut), &whole);
        prop_assert_eq!(&serve_with(&Two, &input, 1), &whole);
    }

    #[test]
    fn client_handshake(input in prop_oneof![3 => server_stream(), 1 => bytes(200)], cut in 1_usize..50) {
        let whole = client(&input, usize::MAX);
        prop_assert_eq!(&client(&input, cut), &whole);
        prop_assert_eq!(&client(&input, 1), &whole);
    }

    #[test]
    fn replies(input in prop_oneof![3 => reply_stream(), 1 => bytes(200)], cut in 1_usize..50, request in request()) {
        let whole = headers(&input, usize::MAX);
        prop_assert_eq!(&headers(&input, cut), &whole);
        prop_assert_eq!(&headers(&input, 1), &whole);
        let negotiated = Negotiated {
            structured_replies: true,
            base_allocation_id: Some(1),
            no_zeroes: true,
        };
        for header in whole.0 {
            // The calls below may return any result. Only a panic is an error.
            let _ = check_reply(&request, &negotiated, &header);
        }
        let _ = extents(&request, &input);
    }

    #[test]
    fn requests(request in request(), tail in vec(any::<u8>(), 28), structured: bool, flags: u16) {
        let encoded = encode_request(&request);
        if let Ok(decoded) = decode_request(&encoded) {
            prop_assert_eq!(decoded, request);
        }
        let _ = decode_request(tail.as_slice().try_into().unwrap());
        let export = ExportInfo { transmission_flags: flags, ..info(4096) }.negotiated(structured);
        let negotiated = Negotiated { structured_replies: structured, ..Negotiated::default() };
        // Every valid request lies in the export and is aligned, and it writes only if writing is
        // allowed.
        if let Ok(command) = validate(&request, &export, &negotiated) {
            if command != Command::Disconnect {
                let end = u128::from(request.offset_bytes) + u128::from(request.length_bytes);
                prop_assert!(end <= 4096);
                prop_assert_eq!((request.offset_bytes % 512, request.length_bytes % 512), (0, 0));
                prop_assert_eq!(request.length_bytes == 0, command == Command::Flush);
            }
            prop_assert!(!command.writes() || flags & 2 == 0);
            prop_assert!(command != Command::BlockStatus);
        }
    }

    #[test]
    fn coverage(chunks in vec((0_u64..40, 0_u32..12), 0..12)) {
        // Compares with a plain map of bytes.
        let request = Request { flags: 0, command_wire: 0, cookie: 0, offset_bytes: 4, length_bytes: 30 };
        let mut coverage = ReadCoverage::new(request);
        let mut seen = [false; 64];
        for (offset, length) in chunks {
            let range = offset as usize..offset as usize + length as usize;
            let good = length > 0
                && range.start >= 4
                && range.end <= 34
                && !seen[range.clone()].contains(&true);
            prop_assert_eq!(coverage.add(offset, length).is_ok(), good);
            if !good {
                break;
            }
            seen[range].fill(true);
        }
        prop_assert_eq!(coverage.finish().is_ok(), seen[4..34].iter().all(|byte| *byte));
    }
}
