//! Tests of the client's handshake with server messages written by hand from the protocol document.

use crate::common::*;
use bimetal_proto::nbd::{
    ClientHandshake, ClientProgress, ClientSession, ExportInfo, Negotiated, ProtocolError, Refusal,
    Wishes,
};

const ERR: u32 = 1 << 31;
const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

type End = Result<ClientProgress, ProtocolError>;

fn wishes(structured_replies: bool, base_allocation: bool) -> Wishes {
    Wishes {
        export_name: "vol".to_owned(),
        structured_replies,
        base_allocation,
        tls: false,
    }
}

/// Feeds bytes to the client in fragments. Returns the client's output, the input that it did not
/// consume, and its final progress or error.
fn talk_with(wishes: Wishes, input: &[u8], fragment_bytes: usize) -> (Vec<u8>, Vec<u8>, End) {
    let mut client = ClientHandshake::new(wishes);
    let mut out = Vec::new();
    let mut fed = 0;
    for fragment in input.chunks(fragment_bytes) {
        match client.feed(fragment, &mut out) {
            Ok((taken, ClientProgress::NeedMore)) => {
                assert_eq!(taken, fragment.len());
                assert!(client.buffered_bytes() <= ClientHandshake::BUFFER_MAX_BYTES);
                fed += taken;
            }
            Ok((taken, progress)) => {
                return (out, input[fed + taken..].to_vec(), Ok(progress));
            }
            Err(error) => return (out, Vec::new(), Err(error)),
        }
    }
    (out, Vec::new(), Ok(ClientProgress::NeedMore))
}

fn talk(wishes: Wishes, messages: &[&[u8]]) -> (Vec<u8>, Vec<u8>, End) {
    talk_with(
        wishes,
        &[&[GREETING], messages].concat().concat(),
        usize::MAX,
    )
}

/// Returns the outcome of a handshake in which the client requests `GO` without other features, and
/// the server sends `messages`.
fn go_end(messages: &[&[u8]]) -> End {
    talk(wishes(false, false), messages).2
}

fn session(end: End) -> ClientSession {
    match end {
        Ok(ClientProgress::Transmission(session)) => session,
        other => panic!("no transmission: {other:?}"),
    }
}

fn export_info(size_bytes: u64, flags: u16) -> Vec<u8> {
    let data = [&[0, 0][..], &size_bytes.to_be_bytes(), &flags.to_be_bytes()].concat();
    option_reply(7, 3, &data)
}

fn block_info(min: u32, preferred: u32, max: u32) -> Vec<u8> {
    let sizes = [min, preferred, max].map(u32::to_be_bytes).concat();
    option_reply(7, 3, &[&[0, 3], &sizes[..]].concat())
}

fn context(id: u32, name: &str) -> Vec<u8> {
    option_reply(10, 4, &[&id.to_be_bytes(), name.as_bytes()].concat())
}

fn ack(option: u32) -> Vec<u8> {
    option_reply(option, 1, &[])
}

#[test]
fn everything_wished_is_asked_for_in_order() {
    let (out, left, end) = talk(
        wishes(true, true),
        &[
            &ack(8),
            &context(0x1234_5678, "base:allocation"),
            &ack(10),
            &export_info(1 << 30, 0x8d),
            &option_reply(7, 3, b"\x00\x01vol"),
            &option_reply(7, 3, b"\x77\x77ignored"),
            &block_info(4096, 65_536, 0xffff_ffff),
            &ack(7),
            b"replies",
        ],
    );
    let mut set = string("vol");
    set.extend([0, 0, 0, 1, 0, 0, 0, 15]);
    set.extend(b"base:allocation");
    let sent = [
        &[0, 0, 0, 3][..],
        &option(8, &[]),
        &option(10, &set),
        &option(7, b"\0\0\0\x03vol\0\x01\0\x03"),
    ];
    assert_eq!(out, sent.concat());
    assert_eq!(left, b"replies");
    let expected = ClientSession {
        info: ExportInfo {
            size_bytes: 1 << 30,
            transmission_flags: 0x8d,
            min_block_bytes: 4096,
            preferred_block_bytes: 65_536,
            max_payload_bytes: 0xffff_ffff,
        },
        block_sizes_advertised: true,
        negotiated: Negotiated {
            structured_replies: true,
            base_allocation_id: Some(0x1234_5678),
            no_zeroes: true,
        },
    };
    assert_eq!(session(end), expected);
}

#[test]
fn nothing_goes_to_a_server_without_the_tls_that_was_wished() {
    let with_tls = || Wishes {
        tls: true,
        ..wishes(true, true)
    };
    // The client does not consume the bytes after the answer. The caller gets them back, and must
    // reject them.
    let (out, left, end) = talk(with_tls(), &[&ack(5), b"too early"]);
    assert_eq!(out, [&[0, 0, 0, 3][..], &option(5, &[])].concat());
    assert_eq!(
        (&left[..], end),
        (&b"too early"[..], Ok(ClientProgress::StartTls))
    );
    // A server that refuses TLS, and a server that is too old to know the option, both end the
    // handshake.
    let refusal = option_reply(5, ERR | 1, b"no");
    let (_, _, end) = talk(with_tls(), &[&refusal]);
    assert!(matches!(
        end,
        Ok(ClientProgress::Refused(Refusal { option: 5, .. }))
    ));
    let (out, _, end) = talk_with(with_tls(), b"NBDMAGICIHAVEOPT\0\0", usize::MAX);
    assert_eq!((out, end), (vec![0; 4], Err(ProtocolError::NoTls)));
}

#[test]
fn what_was_wished_is_asked_for_inside_of_tls() {
    let mut client = ClientHandshake::new(Wishes {
        tls: true,
        ..wishes(true, false)
    });
    let mut out = Vec::new();
    let outside = [GREETING, &ack(5)].concat();
    let progress = client.feed(&outside, &mut out);
    assert_eq!(progress, Ok((outside.len(), ClientProgress::StartTls)));
    out.clear();
    // No byte is taken before TLS has begun.
    assert!(client.feed(&ack(8), &mut Vec::new()).is_err());
    let mut client = ClientHandshake::new(Wishes {
        tls: true,
        ..wishes(true, false)
    });
    client.feed(&outside, &mut Vec::new()).unwrap();
    client.secured(&mut out);
    assert_eq!(out, option(8, &[]));
    let inside = [ack(8), export_info(1 << 20, 1), ack(7)].concat();
    let end = client.feed(&inside, &mut out);
    assert!(matches!(end, Ok((_, ClientProgress::Transmission(_)))));
}

#[test]
fn refused_extras_are_done_without() {
    for error in [ERR + 1, ERR + 2, ERR + 3, ERR + 4, ERR + 9, ERR + 77] {
        let end = talk(
            wishes(true, true),
            &[
                &option_reply(8, error, b"no"),
                &export_info(512, 0x81),
                &ack(7),
            ],
        );
        let agreed = session(end.2);
        // Without structured replies the flag DF (bit 7) must be ignored.
        assert_eq!(agreed.info.transmission_flags, 1);
        assert_eq!(
            agreed.negotiated,
            Negotiated {
                no_zeroes: true,
                ..Negotiated::default()
            }
        );
        let end = talk(
            wishes(true, true),
            &[
                &ack(8),
                &context(5, "base:allocation"),
                &option_reply(10, error, b""),
                &export_info(512, 0x81),
                &ack(7),
            ],
        );
        let negotiated = session(end.2).negotiated;
        assert_eq!(
            (negotiated.structured_replies, negotiated.base_allocation_id),
            (true, None)
        );
    }
}

#[test]
fn selecting_nothing_is_no_error() {
    let end = talk(
        wishes(true, true),
        &[&ack(8), &ack(10), &export_info(512, 1), &ack(7)],
    )
    .2;
    assert_eq!(session(end).negotiated.base_allocation_id, None);
}

#[test]
fn default_block_sizes() {
    // Block sizes that the client must assume if the server advertises none (section "Size
    // constraints"): the minimum is 512 bytes if 512 divides the export's size, and 1 byte
    // otherwise. The preferred size is 4 KiB, and the maximum payload is 32 MiB.
    for (size_bytes, min) in [(1024, 512), (1000, 1)] {
        let session = session(go_end(&[&export_info(size_bytes, 1), &ack(7)]));
        let info = session.info;
        assert!(!session.block_sizes_advertised);
        assert_eq!(info.min_block_bytes, min);
        assert_eq!(
            (info.preferred_block_bytes, info.max_payload_bytes),
            (4096, 33_554_432)
        );
    }
}

#[test]
fn export_name_is_the_fallback() {
    let answer = [&(1_u64 << 20).to_be_bytes()[..], &[0, 0x0d]].concat();
    let zeroes = [0; 124];
    let unsup = option_reply(7, ERR + 1, b"what?");
    // Three servers without `GO`: the first does not know the option, the second has no fixed
    // newstyle, and the third has no fixed newstyle and cannot omit the padding.
    let cases: [(u16, &[u8], &[u8]); 3] = [(3, &unsup, &[]), (2, &[], &[]), (0, &[], &zeroes)];
    for (flags, before, padding) in cases {
        let greeting = [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat();
        let input = [&greeting[..], before, &answer, padding, b"x"].concat();
        for fragment_bytes in [1, 50, usize::MAX] {
            let (out, left, end) = talk_with(wishes(false, false), &input, fragment_bytes);
            assert!(out.starts_with(&u32::from(flags).to_be_bytes()));
            assert!(out.ends_with(&option(1, b"vol")));
            assert_eq!(left, b"x");
            let session = session(end);
            assert_eq!(
                (session.info.size_bytes, session.info.transmission_flags),
                (1 << 20, 13)
            );
            assert!(!session.block_sizes_advertised);
        }
    }
}

#[test]
fn unknown_handshake_flags_are_ignored() {
    let (out, _, end) = talk_with(wishes(true, false), b"NBDMAGICIHAVEOPT\xff\xff", 1);
    assert_eq!(end, Ok(ClientProgress::NeedMore));
    assert_eq!(out, [&[0, 0, 0, 3], &option(8, &[])[..]].concat());
}

#[test]
fn refusals_end_softly() {
    let refused = |option, reply_type, message: &str| {
        Ok(ClientProgress::Refused(Refusal {
            option,
            reply_type,
            message: message.to_owned(),
        }))
    };
    for error in [2, 3, 4, 5, 6, 7, 8, 9, 500].map(|code| ERR + code) {
        let reply = option_reply(7, error, b"go away");
        let (out, left, end) = talk(wishes(false, false), &[&reply, b"x"]);
        assert_eq!(end, refused(7, error, "go away"));
        assert!(out.ends_with(&option(2, &[])));
        assert_eq!(left, b"x");
    }
    // If a server shuts down or requires TLS, the client ends the handshake, whichever option is
    // pending.
    for error in [ERR + 5, ERR + 7] {
        let end = talk(wishes(true, true), &[&option_reply(8, error, b"\xff")]).2;
        assert_eq!(end, refused(8, error, "\u{fffd}"));
        let end = talk(
            wishes(true, true),
            &[&ack(8), &option_reply(10, error, b"")],
        )
        .2;
        assert_eq!(end, refused(10, error, ""));
    }
}

#[test]
fn wrong_greetings() {
    let oldstyle = b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00";
    let cases: [(&[u8], ProtocolError); 3] = [
        (oldstyle, ProtocolError::Oldstyle),
        (
            b"NBDMAGIDIHAVEOPT\0\x03",
            ProtocolError::BadMagic(0x4e42_444d_4147_4944),
        ),
        (
            b"NBDMAGICIHAVEOPS\0\x03",
            ProtocolError::BadMagic(0x4948_4156_454f_5053),
        ),
    ];
    for (greeting, error) in cases {
        assert_eq!(talk_with(wishes(true, true), greeting, 5).2, Err(error));
    }
}

#[test]
fn malformed_reply_headers() {
    let mut bad_magic = ack(7);
    bad_magic[7] = 0xaa;
    assert_eq!(
        go_end(&[&bad_magic]),
        Err(ProtocolError::BadMagic(0x0003_e889_0455_65aa))
    );
    assert_eq!(
        go_end(&[&ack(6)]),
        Err(ProtocolError::WrongOption { pending: 7, got: 6 })
    );
    let mut too_long = option_reply(7, 3, &[]);
    too_long[16..20].copy_from_slice(&16_385_u32.to_be_bytes());
    let malformed = ProtocolError::MalformedReply {
        option: 7,
        reply_type: 3,
    };
    assert_eq!(go_end(&[&too_long]), Err(malformed));
}

#[test]
fn malformed_reply_data() {
    let malformed = |reply_type| {
        Err(ProtocolError::MalformedReply {
            option: 7,
            reply_type,
        })
    };
    assert_eq!(go_end(&[&option_reply(7, 1, b"x")]), malformed(1));
    let bad: [&[u8]; 7] = [
        b"",
        b"\0",
        b"\0\0",
        &[0; 11],
        &[0; 13],
        b"\0\x03\0\0\0\0\0\0\0\0\0\0\0",
        b"\0\x03",
    ];
    for data in bad {
        assert_eq!(
            go_end(&[&option_reply(7, 3, data)]),
            malformed(3),
            "{data:?}"
        );
    }
    assert_eq!(
        go_end(&[&option_reply(7, 3, &[&[0, 3], &[0; 13][..]].concat())]),
        malformed(3)
    );
    let malformed = Err(ProtocolError::MalformedReply {
        option: 10,
        reply_type: 4,
    });
    for bad in [
        option_reply(10, 4, b"abc"),
        context(1, "base:other"),
        context(1, ""),
    ] {
        assert_eq!(talk(wishes(true, true), &[&ack(8), &bad]).2, malformed);
    }
}

#[test]
fn replies_that_do_not_fit_the_option() {
    let unexpected = |option, reply_type| {
        Err::<ClientProgress, _>(ProtocolError::UnexpectedReply { option, reply_type })
    };
    for reply_type in [0, 2, 4, 5] {
        assert_eq!(
            go_end(&[&option_reply(7, reply_type, &[])]),
            unexpected(7, reply_type)
        );
    }
    let end = talk(wishes(true, false), &[&option_reply(8, 3, &[])]).2;
    assert_eq!(end, unexpected(8, 3));
    let twice = context(1, "base:allocation").repeat(2);
    assert_eq!(
        talk(wishes(true, true), &[&ack(8), &twice]).2,
        unexpected(10, 4)
    );
    // Success without the mandatory NBD_INFO_EXPORT.
    assert_eq!(go_end(&[&ack(7)]), unexpected(7, 1));
}

#[test]
fn contradictory_exports_are_not_entered() {
    let bad = Err(ProtocolError::BadExportInfo);
    assert_eq!(go_end(&[&export_info(512, 0x0c), &ack(7)]), bad);
    let sizes = [
        (0, 4096, 1 << 20),
        (3, 4096, 1 << 20),
        (131_072, 131_072, 1 << 20),
        (1, 256, 1 << 20),
        (8192, 4096, 1 << 20),
        (1, 5000, 1 << 20),
        (1, 4096, 4095),
    ];
    for (min, preferred, max) in sizes {
        let messages = [export_info(512, 1), block_info(min, preferred, max), ack(7)];
        assert_eq!(
            go_end(&[&messages.concat()]),
            bad,
            "{min} {preferred} {max}"
        );
    }
}

#[test]
fn a_server_cannot_reply_for_ever() {
    let replies = option_reply(7, 3, b"\x77\x77").repeat(1024);
    assert_eq!(go_end(&[&replies]), Ok(ClientProgress::NeedMore));
    assert_eq!(
        go_end(&[&replies, &ack(7)]),
        Err(ProtocolError::EndlessHandshake)
    );
}

#[test]
fn fragments_do_not_matter_and_nothing_is_taken_after_the_end() {
    let input = [
        GREETING.to_vec(),
        ack(8),
        context(9, "base:allocation"),
        ack(10),
        export_info(1 << 20, 0x8d),
        ack(7),
    ]
    .concat();
    let whole = talk_with(wishes(true, true), &input, usize::MAX);
    session(whole.2.clone());
    for fragment_bytes in [1, 2, 3, 19, 64] {
        assert_eq!(talk_with(wishes(true, true), &input, fragment_bytes), whole);
    }
    let mut client = ClientHandshake::new(wishes(true, true));
    assert!(client.feed(&input, &mut Vec::new()).is_ok());
    assert_eq!(
        client.feed(b"x", &mut Vec::new()),
        Err(ProtocolError::HandshakeOver)
    );
}

#[test]
fn what_a_failed_go_said_does_not_count() {
    let answer = [&(1_u64 << 20).to_be_bytes()[..], &[0, 1]].concat();
    let unsup = option_reply(7, ERR + 1, b"");
    let session = session(go_end(&[&block_info(4096, 4096, 1 << 20), &unsup, &answer]));
    assert!(!session.block_sizes_advertised);
    assert_eq!(
        (session.info.min_block_bytes, session.info.max_payload_bytes),
        (512, 32 << 20)
    );
}
