//! Tests of requests and replies with bytes written by hand from the protocol document.

use crate::common::*;
use bimetal_proto::nbd::reply::{self, Extent};
use bimetal_proto::nbd::reply_decoder::{self, ReplyBody, decode_reply_header};
use bimetal_proto::nbd::request::{decode_request, encode_request, validate};
use bimetal_proto::nbd::{
    Command, Errno, ExportInfo, Negotiated, ProtocolError, ReadCoverage, ReplyDecoder, ReplyHeader,
    Request,
};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;

const FULL: Negotiated = Negotiated {
    structured_replies: true,
    base_allocation_id: Some(1),
    no_zeroes: true,
};
const PLAIN: Negotiated = Negotiated {
    structured_replies: false,
    base_allocation_id: None,
    no_zeroes: true,
};

fn request(command_wire: u16, flags: u16, offset_bytes: u64, length_bytes: u32) -> Request {
    Request {
        flags,
        command_wire,
        cookie: 0x0102_0304_0506_0708,
        offset_bytes,
        length_bytes,
    }
}

/// Validates a request on a 1 MiB export that offers everything, with all features negotiated.
fn full(command: u16, flags: u16, offset_bytes: u64, length_bytes: u32) -> Result<Command, Errno> {
    let mut export = info(1 << 20);
    export.max_payload_bytes = 64 << 10;
    validate(
        &request(command, flags, offset_bytes, length_bytes),
        &export,
        &FULL,
    )
}

#[test]
fn request_layout() {
    let bytes = [
        0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0,
        0x10, 0,
    ];
    let expected = request(ZEROES, 1, 0x1_0000_0002, 4096);
    assert_eq!(decode_request(&bytes), Ok(expected));
    assert_eq!(encode_request(&expected), bytes);
    assert_eq!(expected.payload_bytes(), 0);
    assert_eq!(request(WRITE, 0xff, 0, 77).payload_bytes(), 77);
}

#[test]
fn requests_that_end_the_connection() {
    // The values are a wrong magic, the magic that is reserved for historic reasons, and the magic
    // of extended headers.
    for magic in [0x2560_9514_u32, 0x1256_0953, 0x21e4_1c71] {
        let mut bytes = encode_request(&request(READ, 0, 0, 512));
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        assert_eq!(
            decode_request(&bytes),
            Err(ProtocolError::BadMagic(u64::from(magic)))
        );
    }
    let limit = 64 << 20;
    let write = |length| decode_request(&encode_request(&request(WRITE, 0, 0, length)));
    assert!(write(limit).is_ok());
    assert_eq!(
        write(limit + 1),
        Err(ProtocolError::PayloadTooLarge(limit + 1))
    );
    assert!(decode_request(&encode_request(&request(ZEROES, 0, 0, u32::MAX))).is_ok());
}

#[test]
fn valid_requests() {
    for command in [READ, WRITE, TRIM, CACHE, ZEROES, STATUS] {
        for flags in [0, 1] {
            let expected = Command::from_wire(command).unwrap();
            assert_eq!(full(command, flags, 512, 1024), Ok(expected));
            assert_eq!(full(command, flags, (1 << 20) - 512, 512), Ok(expected));
        }
    }
    assert_eq!(full(FLUSH, 0, 0, 0), Ok(Command::Flush));
    assert_eq!(full(FLUSH, 1, 0, 0), Ok(Command::Flush));
    assert_eq!(full(READ, 4, 0, 512), Ok(Command::Read));
    assert_eq!(full(ZEROES, 1 | 2 | 16, 0, 512), Ok(Command::WriteZeroes));
    assert_eq!(full(STATUS, 8, 0, 512), Ok(Command::BlockStatus));
    assert_eq!(full(DISC, 0xffff, 7, 7), Ok(Command::Disconnect));
    // The length of a command without payload is allowed to exceed the maximum payload.
    for command in [TRIM, CACHE, ZEROES, STATUS] {
        assert!(full(command, 0, 0, 1 << 20).is_ok());
    }
}

#[test]
fn unknown_commands_and_flags() {
    for command in [8, 9, 0x100, u16::MAX] {
        assert_eq!(full(command, 0, 0, 512), Err(Errno::Inval));
    }
    // Each case is a command with the flags that it permits. Every command permits FUA. The
    // documentation of the protocol permits each of the remaining flags only for some commands.
    for (command, fine) in [
        (READ, 5),
        (WRITE, 1),
        (FLUSH, 1),
        (TRIM, 1),
        (CACHE, 1),
        (ZEROES, 19),
        (STATUS, 9_u16),
    ] {
        let length = if command == FLUSH { 0 } else { 512 };
        for bit in 0..16 {
            let expected = fine & (1 << bit) != 0;
            assert_eq!(
                full(command, 1 << bit, 0, length).is_ok(),
                expected,
                "{command} {bit}"
            );
        }
    }
}

#[test]
fn what_was_not_offered_is_invalid() {
    // With HAS_FLAGS alone, the export offers no FUA, flush, trim, zeroes or cache.
    let bare = ExportInfo {
        transmission_flags: 1,
        ..info(1 << 20)
    };
    let check = |command, flags, length, export: &ExportInfo, negotiated| {
        validate(&request(command, flags, 0, length), export, negotiated)
    };
    for (command, flags, length) in [
        (WRITE, 1, 512),
        (FLUSH, 0, 0),
        (TRIM, 0, 512),
        (CACHE, 0, 512),
        (ZEROES, 0, 512),
    ] {
        assert_eq!(
            check(command, flags, length, &bare, &FULL),
            Err(Errno::Inval)
        );
    }
    assert_eq!(check(READ, 0, 512, &bare, &PLAIN), Ok(Command::Read));
    // FAST_ZERO (bit 4) without SEND_FAST_ZERO (bit 11).
    let slow = ExportInfo {
        transmission_flags: FLAGS & !(1 << 11),
        ..bare
    };
    assert_eq!(check(ZEROES, 16, 512, &slow, &FULL), Err(Errno::Inval));
    // DF and block status need the negotiated features.
    let all = info(1 << 20);
    assert_eq!(check(READ, 4, 512, &all, &PLAIN), Err(Errno::Inval));
    assert_eq!(check(STATUS, 0, 512, &all, &PLAIN), Err(Errno::Inval));
    let no_context = Negotiated {
        base_allocation_id: None,
        ..FULL
    };
    assert_eq!(check(STATUS, 0, 512, &all, &no_context), Err(Errno::Inval));
}

#[test]
fn read_only_refuses_writes() {
    // The tested flags include bit 1, READ_ONLY. On a read-only export every change is refused with
    // EPERM, even if the export does not offer the command at all.
    for flags in [FLAGS | 2, 3] {
        let export = ExportInfo {
            transmission_flags: flags,
            ..info(1 << 20)
        };
        for command in [WRITE, TRIM, ZEROES] {
            let result = validate(&request(command, 0, 1 << 40, 512), &export, &FULL);
            assert_eq!(result, Err(Errno::Perm));
        }
        let read = validate(&request(READ, 0, 0, 512), &export, &FULL);
        assert_eq!(read, Ok(Command::Read));
    }
}

#[test]
fn ranges() {
    for command in [READ, WRITE, TRIM, CACHE, ZEROES, STATUS] {
        let grows = command == WRITE || command == ZEROES;
        let beyond = Err(if grows { Errno::NoSpc } else { Errno::Inval });
        assert_eq!(full(command, 0, 0, 0), Err(Errno::Inval));
        assert_eq!(full(command, 0, 1 << 20, 512), beyond);
        assert_eq!(full(command, 0, (1 << 20) - 512, 1024), beyond);
        assert_eq!(full(command, 0, u64::MAX - 511, 1024), beyond);
        assert_eq!(full(command, 0, 0, u32::MAX), beyond);
        assert_eq!(full(command, 0, 1, 512), Err(Errno::Inval));
        assert_eq!(full(command, 0, 512, 513), Err(Errno::Inval));
    }
    assert_eq!(full(FLUSH, 0, 512, 0), Err(Errno::Inval));
    assert_eq!(full(FLUSH, 0, 0, 512), Err(Errno::Inval));
}

#[test]
fn payload_limit() {
    let limit = 64 << 10;
    assert!(full(READ, 0, 0, limit).is_ok());
    assert!(full(WRITE, 0, 0, limit).is_ok());
    assert_eq!(full(READ, 0, 0, limit + 512), Err(Errno::Overflow));
    assert_eq!(full(WRITE, 0, 0, limit + 512), Err(Errno::Inval));
    let export = ExportInfo {
        max_payload_bytes: limit,
        ..info(1 << 20)
    };
    let read = validate(&request(READ, 0, 0, limit + 512), &export, &PLAIN);
    assert_eq!(read, Err(Errno::Inval));
}

/// Encodes a chunk with the cookie 9, by section "Structured reply chunk message".
fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef];
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 9]);
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn reply_layouts() {
    let simple = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(reply::simple_reply(9, Some(Errno::NoSpc)), simple);
    assert_eq!(reply::simple_reply(9, None)[4..8], [0; 4]);
    assert_eq!(reply::none_chunk(9)[..], chunk(1, 0, &[]));
    let data = chunk(0, 1, &[0, 0, 0, 0, 0, 0, 2, 0, 0xaa, 0xbb]);
    assert_eq!(reply::offset_data_head(9, 512, 2, false)[..], data[..28]);
    let hole = chunk(1, 2, &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x10, 0]);
    assert_eq!(reply::offset_hole_chunk(9, 512, 4096, true)[..], hole);
    assert_eq!(
        reply::error_chunk(9, Errno::Io)[..],
        chunk(1, 0x8001, &[0, 0, 0, 5, 0, 0])
    );
    let error = chunk(0, 0x8002, &[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(
        reply::error_offset_chunk(9, Errno::Io, 512, false)[..],
        error
    );
    let mut out = Vec::new();
    reply::error_chunk_with_message(&mut out, 9, Errno::Shutdown, "bye", true);
    assert_eq!(out, chunk(1, 0x8001, b"\0\0\0\x6c\0\x03bye"));
    out.clear();
    let extents = [
        Extent {
            length_bytes: 512,
            status: 3,
        },
        Extent {
            length_bytes: 1,
            status: 0,
        },
    ];
    reply::block_status_chunk(&mut out, 9, 7, &extents, true);
    let descriptors = [0, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(out, chunk(1, 5, &descriptors));
}

#[test]
fn long_messages_are_cut_at_a_character() {
    let mut out = Vec::new();
    reply::error_chunk_with_message(&mut out, 9, Errno::Io, &"\u{20ac}".repeat(2000), true);
    // The text repeats a character of three bytes. 4096 is not a multiple of three, so the text is
    // cut at 4095 bytes, which is a multiple of three.
    assert_eq!(out.len(), 26 + 4095);
    assert!(std::str::from_utf8(&out[26..]).is_ok());
}

#[test]
fn extents_are_fitted() {
    let extent = |length_bytes| Extent {
        length_bytes,
        status: 0,
    };
    let fit = |flags, max_payload_bytes, lengths: &[u32]| {
        let mut extents: Vec<_> = lengths.iter().map(|length| extent(*length)).collect();
        reply::fit_extents(
            &request(STATUS, flags, 0, 1000),
            max_payload_bytes,
            &mut extents,
        );
        extents
            .iter()
            .map(|extent| extent.length_bytes)
            .collect::<Vec<_>>()
    };
    assert_eq!(fit(0, 1 << 20, &[400, 600, 100]), [400, 600]);
    assert_eq!(fit(0, 1 << 20, &[400, 599, 100, 5]), [400, 599, 100]);
    assert_eq!(fit(0, 16, &[1, 1, 1, 1]), [1, 1]);
    assert_eq!(fit(0, 1, &[1, 1]), [1]);
    assert_eq!(fit(8, 1 << 20, &[5000, 1]), [1000]);
    assert_eq!(fit(8, 1 << 20, &[500, 500]), [500]);
}

fn header(bytes: &[u8]) -> Result<(ReplyHeader, usize), ProtocolError> {
    decode_reply_header(bytes, true).map(|found| found.expect("complete"))
}

#[test]
fn replies_are_decoded() {
    let simple = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 9];
    // An undefined error number is treated as EINVAL.
    let body = ReplyBody::Simple(Some(Errno::Inval));
    let expected = ReplyHeader {
        cookie: 9,
        done: true,
        payload_bytes: 0,
        body,
    };
    assert_eq!(header(&simple), Ok((expected, 16)));
    let cases: [(Vec<u8>, ReplyBody, u32, usize); 7] = [
        (chunk(1, 0, &[]), ReplyBody::None, 0, 20),
        (
            chunk(1, 1, &[0, 0, 0, 0, 0, 0, 2, 0, 0xaa]),
            ReplyBody::OffsetData { offset_bytes: 512 },
            1,
            28,
        ),
        (
            chunk(1, 2, &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 7]),
            ReplyBody::OffsetHole {
                offset_bytes: 512,
                hole_bytes: 7,
            },
            0,
            32,
        ),
        (
            chunk(1, 5, &[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0]),
            ReplyBody::BlockStatus { context_id: 3 },
            8,
            24,
        ),
        (
            chunk(1, 0x8001, b"\0\0\0\x05\0\x02no"),
            ReplyBody::Error {
                error: Errno::Io,
                message_bytes: 2,
                has_offset: false,
            },
            2,
            26,
        ),
        (
            chunk(1, 0x8002, b"\0\0\0\x05\0\0\0\0\0\0\0\0\0\x01"),
            ReplyBody::Error {
                error: Errno::Io,
                message_bytes: 0,
                has_offset: true,
            },
            8,
            26,
        ),
        // An error chunk of a type that only a later version of the protocol defines is still an
        // error.
        (
            chunk(1, 0xffff, b"\0\0\0\x1c\0\x01nextra"),
            ReplyBody::Error {
                error: Errno::NoSpc,
                message_bytes: 1,
                has_offset: false,
            },
            6,
            26,
        ),
    ];
    for (bytes, body, payload_bytes, taken) in cases {
        let expected = ReplyHeader {
            cookie: 9,
            done: true,
            payload_bytes,
            body,
        };
        assert_eq!(header(&bytes), Ok((expected, taken)));
        for short in 0..taken {
            assert_eq!(decode_reply_header(&bytes[..short], true), Ok(None));
        }
        // Feed the stream byte by byte. After each header, the test skips the payload.
        let mut decoder = ReplyDecoder::new(true);
        let stream = bytes.repeat(2);
        for half in stream.chunks(bytes.len()) {
            let mut found = None;
            for (at, byte) in half[..taken].iter().enumerate() {
                assert_eq!(found, None, "complete before byte {at}");
                let (one, header) = decoder.feed(&[*byte]).unwrap();
                assert_eq!(one, 1);
                found = header;
            }
            assert_eq!(found, Some(expected));
            assert_eq!(decoder.buffered_bytes(), 0);
        }
    }
}

#[test]
fn unknown_reply_flags_are_ignored() {
    assert!(header(&chunk(0xffff, 0, &[])).unwrap().0.done);
    assert!(!header(&chunk(0xfffe, 2, &[1; 12])).unwrap().0.done);
}

#[test]
fn an_error_chunk_without_an_error_still_is_one() {
    let (found, _) = header(&chunk(1, 0x8001, &[0; 6])).unwrap();
    assert!(matches!(
        found.body,
        ReplyBody::Error {
            error: Errno::Inval,
            ..
        }
    ));
}

#[test]
fn malformed_replies() {
    let malformed = |kind| Err(ProtocolError::MalformedChunk(kind));
    // NONE with a payload, NONE without the flag DONE, content chunks of wrong lengths, and a hole
    // of length 0 are malformed.
    assert_eq!(header(&chunk(1, 0, b"x")), malformed(0));
    assert_eq!(header(&chunk(0, 0, b"")), malformed(0));
    for length in [0, 7, 8] {
        assert_eq!(header(&chunk(1, 1, &vec![1; length])), malformed(1));
    }
    let mut huge = chunk(1, 1, &[0; 9]);
    huge[16..20].copy_from_slice(&((64_u32 << 20) + 9).to_be_bytes());
    assert_eq!(header(&huge), malformed(1));
    for length in [0, 11, 13] {
        assert_eq!(header(&chunk(1, 2, &vec![1; length])), malformed(2));
    }
    assert_eq!(header(&chunk(1, 2, &[0; 12])), malformed(2));
    for length in [0, 4, 8, 11, 13, 16, 4 + 8 * (1 << 20) + 8] {
        assert_eq!(header(&chunk(1, 5, &vec![1; length])), malformed(5));
    }
    // Error chunks are malformed if they are too short, or if their message is longer than the
    // chunk or than 4096 bytes.
    assert_eq!(header(&chunk(1, 0x8001, &[1; 5])), malformed(0x8001));
    assert_eq!(
        header(&chunk(1, 0x8001, b"\0\0\0\x05\0\x03no")),
        malformed(0x8001)
    );
    assert_eq!(header(&chunk(1, 0x8002, &[0; 13])), malformed(0x8002));
    let message_over_offset = b"\0\0\0\x05\0\x01\0\0\0\0\0\0\0\x01";
    assert_eq!(
        header(&chunk(1, 0x8002, message_over_offset)),
        malformed(0x8002)
    );
    assert_eq!(header(&chunk(1, 0x8001, &[0; 9000])), malformed(0x8001));
    // Chunks of an unknown type, among them the block status of extended headers, are refused.
    // Replies with an unknown magic are refused, too.
    for kind in [3, 4, 6, 7, 0x7fff] {
        assert_eq!(
            header(&chunk(1, kind, &[])),
            Err(ProtocolError::UnexpectedChunk(kind))
        );
    }
    for magic in [0x9674_4668_u32, 0x6e8a_278c, 0] {
        let bytes = magic.to_be_bytes();
        let error = ProtocolError::BadMagic(u64::from(magic));
        assert_eq!(decode_reply_header(&bytes, true), Err(error));
        assert_eq!(ReplyDecoder::new(true).feed(&bytes), Err(error));
    }
    let wrong = Err(ProtocolError::WrongReplyKind);
    assert_eq!(decode_reply_header(&chunk(1, 0, &[]), false), wrong);
}

fn check(request: &Request, negotiated: &Negotiated, bytes: &[u8]) -> Result<(), ProtocolError> {
    let (header, _) = header(bytes).unwrap();
    reply_decoder::check_reply(request, negotiated, &header)
}

#[test]
fn replies_are_checked_against_their_request() {
    let read = request(READ, 0, 512, 512);
    let status = request(STATUS, 8, 512, 512);
    let flush = request(FLUSH, 0, 0, 0);
    let wrong = Err(ProtocolError::WrongReplyKind);
    let (success, failure) = (
        reply::simple_reply(9, None),
        reply::error_chunk(9, Errno::Io),
    );
    assert_eq!(check(&read, &FULL, &success), wrong);
    assert_eq!(check(&read, &PLAIN, &success), Ok(()));
    assert_eq!(check(&status, &FULL, &success), wrong);
    assert_eq!(
        check(&status, &FULL, &reply::simple_reply(9, Some(Errno::Inval))),
        Ok(())
    );
    assert_eq!(check(&flush, &FULL, &success), Ok(()));
    for request in [&read, &status, &flush] {
        assert_eq!(check(request, &FULL, &failure), Ok(()));
    }
    // Content must lie in [512, 1024).
    for (offset, length, good) in [
        (512, 512, true),
        (1023, 1, true),
        (511, 1, false),
        (512, 513, false),
        (1024, 1, false),
        (u64::MAX, 1, false),
    ] {
        let expected = if good {
            Ok(())
        } else {
            Err(ProtocolError::ChunkOutOfRange)
        };
        let data = reply::offset_data_head(9, offset, length, true);
        assert_eq!(check(&read, &FULL, &data), expected, "{offset} {length}");
        let hole = reply::offset_hole_chunk(9, offset, length, true);
        assert_eq!(check(&read, &FULL, &hole), expected, "{offset} {length}");
        assert_eq!(
            check(&flush, &FULL, &data),
            Err(ProtocolError::UnexpectedChunk(1))
        );
        assert_eq!(
            check(&status, &FULL, &hole),
            Err(ProtocolError::UnexpectedChunk(2))
        );
    }
    let descriptor = [0, 0, 2, 0, 0, 0, 0, 0];
    let one = chunk(1, 5, &[&[0, 0, 0, 1], &descriptor[..]].concat());
    let two = chunk(
        1,
        5,
        &[&[0, 0, 0, 1], &descriptor[..], &descriptor].concat(),
    );
    let other_context = chunk(1, 5, &[&[0, 0, 0, 2], &descriptor[..]].concat());
    assert_eq!(check(&status, &FULL, &one), Ok(()));
    assert_eq!(
        check(&status, &FULL, &two),
        Err(ProtocolError::MalformedChunk(5))
    );
    assert_eq!(check(&request(STATUS, 0, 512, 1024), &FULL, &two), Ok(()));
    assert_eq!(
        check(&status, &FULL, &other_context),
        Err(ProtocolError::MalformedChunk(5))
    );
    assert_eq!(
        check(&read, &FULL, &one),
        Err(ProtocolError::UnexpectedChunk(5))
    );
}

#[test]
fn error_offsets_are_checked() {
    let read = request(READ, 0, 512, 512);
    let payload = |offset: u64| [b"why", &offset.to_be_bytes()[..]].concat();
    assert_eq!(
        reply_decoder::error_offset_bytes(&read, &payload(600), 3),
        Ok(600)
    );
    for offset in [511, 1025] {
        let result = reply_decoder::error_offset_bytes(&read, &payload(offset), 3);
        assert_eq!(result, Err(ProtocolError::ChunkOutOfRange));
    }
    let short = reply_decoder::error_offset_bytes(&read, &payload(600), 4);
    assert_eq!(short, Err(ProtocolError::MalformedChunk(0x8002)));
}

#[test]
fn extents_are_decoded_and_checked() {
    let decode = |flags, lengths: &[u32]| {
        let descriptor = |length: &u32| [length.to_be_bytes(), [0, 0, 0, 2]].concat();
        let payload: Vec<u8> = lengths.iter().flat_map(descriptor).collect();
        reply_decoder::extents(&request(STATUS, flags, 0, 1000), &payload)
    };
    let found = decode(0, &[400, 700]).unwrap();
    assert_eq!(
        found[1],
        Extent {
            length_bytes: 700,
            status: 2
        }
    );
    assert!(decode(0, &[1]).is_ok() && decode(8, &[1000]).is_ok());
    let bad: [(u16, &[u32]); 6] = [
        (0, &[]),
        (0, &[0]),
        (0, &[400, 600, 1]),
        (0, &[400, 0]),
        (8, &[1001]),
        (8, &[1, 1]),
    ];
    for (flags, lengths) in bad {
        assert_eq!(
            decode(flags, lengths),
            Err(ProtocolError::MalformedChunk(5)),
            "{lengths:?}"
        );
    }
    let ragged = reply_decoder::extents(&request(STATUS, 0, 0, 1000), &[1; 12]);
    assert_eq!(ragged, Err(ProtocolError::MalformedChunk(5)));
}

#[test]
fn coverage_of_a_read() {
    let cover = |flags, chunks: &[(u64, u32)]| {
        let mut coverage = ReadCoverage::new(request(READ, flags, 100, 100));
        chunks
            .iter()
            .try_for_each(|(offset, length)| coverage.add(*offset, *length))?;
        coverage.finish()
    };
    assert_eq!(cover(0, &[(100, 100)]), Ok(()));
    assert_eq!(cover(0, &[(150, 50), (100, 20), (120, 30)]), Ok(()));
    assert_eq!(cover(4, &[(100, 100)]), Ok(()));
    let incomplete = Err(ProtocolError::IncompleteRead);
    assert_eq!(cover(0, &[]), incomplete);
    assert_eq!(cover(0, &[(100, 99)]), incomplete);
    assert_eq!(cover(0, &[(100, 50), (151, 49)]), incomplete);
    let out_of_range = Err(ProtocolError::ChunkOutOfRange);
    assert_eq!(cover(0, &[(100, 50), (149, 51)]), out_of_range);
    assert_eq!(cover(0, &[(150, 50), (100, 51)]), out_of_range);
    assert_eq!(cover(0, &[(100, 100), (120, 1)]), out_of_range);
    assert_eq!(cover(0, &[(120, 10), (120, 10)]), out_of_range);
    assert_eq!(cover(0, &[(99, 100)]), out_of_range);
    assert_eq!(cover(0, &[(150, 0)]), out_of_range);
    assert_eq!(cover(4, &[(100, 50), (150, 50)]), out_of_range);
}

#[test]
fn coverage_is_bounded() {
    let mut coverage = ReadCoverage::new(request(READ, 0, 0, 1 << 20));
    for index in 0..1024 {
        coverage.add(index * 2, 1).unwrap();
    }
    assert_eq!(
        coverage.add(1 << 19, 1),
        Err(ProtocolError::ChunkOutOfRange)
    );
    assert_eq!(coverage.add(1, 1), Ok(()));
}

#[test]
fn data_behind_a_simple_reply() {
    let bytes = reply_decoder::simple_payload_bytes;
    assert_eq!(bytes(&request(READ, 0, 0, 512), None), 512);
    assert_eq!(bytes(&request(READ, 0, 0, 512), Some(Errno::Io)), 0);
    assert_eq!(bytes(&request(WRITE, 0, 0, 512), None), 0);
}
