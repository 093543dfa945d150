//! Tests of the server's handshake with client messages written by hand from the protocol document.

use crate::common::*;
use bimetal_proto::nbd::{ProtocolError, ServerHandshake, ServerProgress, ServerSession};

const ERR: u32 = 1 << 31;
const UNSUP: u32 = ERR + 1;
const INVALID: u32 = ERR + 3;
const UNKNOWN: u32 = ERR + 6;
const TOO_BIG: u32 = ERR + 9;

fn session(outcome: &Outcome) -> &ServerSession {
    match &outcome.end {
        Ok(ServerProgress::Transmission(session)) => session,
        other => panic!("no transmission: {other:?}"),
    }
}

/// Returns the types of the replies to one option on a new connection, which must stay open.
fn answer(option_bytes: &[u8]) -> Vec<u32> {
    let outcome = serve(&[option_bytes]);
    assert_eq!(outcome.end, Ok(ServerProgress::NeedMore));
    assert_eq!(outcome.left, []);
    types(&outcome.out)
}

/// Returns the types of the replies to one option after structured replies were negotiated; the ACK
/// of that negotiation is left out.
fn answer_structured(option_bytes: &[u8]) -> Vec<u32> {
    answer(&[&option(8, &[]), option_bytes].concat())[1..].to_vec()
}

#[test]
fn greeting_is_fixed_newstyle() {
    let mut out = Vec::new();
    ServerHandshake::start(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn unknown_client_flags_disconnect() {
    for (flags, value) in [([0, 0, 0, 4], 4), ([0x80, 0, 0, 3], 0x8000_0003)] {
        let outcome = serve_with(&Two, &flags, usize::MAX);
        assert_eq!(outcome.end, Err(ProtocolError::UnknownClientFlags(value)));
        assert_eq!(outcome.out, []);
    }
}

#[test]
fn wrong_option_magic_disconnects() {
    let outcome = serve(&[b"IHAVEOPS\0\0\0\x03\0\0\0\0"]);
    assert_eq!(
        outcome.end,
        Err(ProtocolError::BadMagic(0x4948_4156_454f_5053))
    );
}

#[test]
fn export_name_with_and_without_padding() {
    // The answer begins with the size, 1 MiB, and the flags. The flag DF is missing, since
    // structured replies were not negotiated.
    let head = [0, 0, 0, 0, 0, 0x10, 0, 0, 0x0d, 0x6d];
    for (flags, padding) in [(3_u32, 0), (1, 124), (0, 124), (2, 0)] {
        let input = [&flags.to_be_bytes()[..], &option(1, b"vol"), b"rest"].concat();
        let outcome = serve_with(&Two, &input, usize::MAX);
        assert_eq!(
            outcome.out,
            [&head[..], &vec![0; padding]].concat(),
            "flags {flags}"
        );
        assert_eq!(outcome.left, b"rest");
        let session = session(&outcome);
        assert_eq!(
            (session.export_index, session.export_name.as_str()),
            (0, "vol")
        );
        assert_eq!(session.info.transmission_flags, FLAGS_WITHOUT_DF);
        assert_eq!(session.negotiated.no_zeroes, padding == 0);
    }
}

#[test]
fn export_name_that_cannot_be_satisfied_disconnects() {
    for name in [&b"none"[..], b"vol\0", b"\xff\xfe", b"VOL"] {
        let outcome = serve(&[&option(1, name)]);
        assert_eq!(outcome.end, Err(ProtocolError::UnknownExport));
        assert_eq!(outcome.out, []);
    }
    let empty = [&[0, 0, 0, 3], &option(1, b"")[..]].concat();
    assert_eq!(
        serve_with(&Empty, &empty, 9).end,
        Err(ProtocolError::UnknownExport)
    );
    let too_long = ProtocolError::OptionTooLarge {
        option: 1,
        length_bytes: 4097,
    };
    assert_eq!(serve(&[&option_header(1, 4097)]).end, Err(too_long));
}

#[test]
fn without_fixed_newstyle_only_export_name_is_taken() {
    let input = [&[0, 0, 0, 0], &option(3, &[])[..]].concat();
    let outcome = serve_with(&Two, &input, usize::MAX);
    assert_eq!(outcome.end, Err(ProtocolError::NeedsFixedNewstyle(3)));
}

#[test]
fn abort_is_acknowledged_even_with_data() {
    for data in [&b""[..], b"bye"] {
        let outcome = serve(&[&option(2, data), b"rest"]);
        assert_eq!(outcome.end, Ok(ServerProgress::Closed));
        assert_eq!(outcome.out, option_reply(2, 1, &[]));
        assert_eq!(outcome.left, b"rest");
    }
}

#[test]
fn list_names_and_describes() {
    let first = [&string("vol")[..], b"a volume"].concat();
    let expected = [
        option_reply(3, 2, &first),
        option_reply(3, 2, &string("aux")),
        option_reply(3, 1, &[]),
    ];
    assert_eq!(serve(&[&option(3, &[])]).out, expected.concat());
    let empty = [&[0, 0, 0, 3], &option(3, &[])[..]].concat();
    assert_eq!(
        serve_with(&Empty, &empty, usize::MAX).out,
        option_reply(3, 1, &[])
    );
}

#[test]
fn options_without_data_refuse_data() {
    for code in [3, 5, 8] {
        assert_eq!(answer(&option(code, b"x")), [INVALID], "option {code}");
    }
    // A `STRUCTURED_REPLY` option that failed must not take effect.
    let outcome = serve(&[&option(8, b"x"), &option(7, &go_data("vol", &[]))]);
    assert!(!session(&outcome).negotiated.structured_replies);
}

#[test]
fn tls_extended_headers_and_unknown_options_are_unsupported() {
    for code in [0, 4, 5, 11, 12, 0x8000_0001, u32::MAX] {
        assert_eq!(answer(&option(code, &[])), [UNSUP], "option {code}");
    }
    assert_eq!(answer(&option(99, &[7; 100_000])), [UNSUP]);
}

#[test]
fn go_always_sends_the_export_and_what_was_asked_for() {
    let export = [&[0, 0][..], &0x20_0000_u64.to_be_bytes(), &[0x0d, 0x6d]].concat();
    let name = b"\0\x01aux".to_vec();
    let blocks = [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0x10, 0, 0];
    // The client requests information 77, which is unknown and ignored. The description is empty,
    // so the server does not send it. A repeated request changes nothing.
    let outcome = serve(&[&option(7, &go_data("aux", &[3, 77, 1, 2, 3])), b"rest"]);
    let expected = [
        option_reply(7, 3, &export),
        option_reply(7, 3, &name),
        option_reply(7, 3, &blocks),
        option_reply(7, 1, &[]),
    ];
    assert_eq!(outcome.out, expected.concat());
    assert_eq!(outcome.left, b"rest");
    assert_eq!(
        (
            session(&outcome).export_index,
            session(&outcome).info.size_bytes
        ),
        (1, 2 << 20)
    );
}

#[test]
fn info_stays_in_the_handshake_and_describes_the_default_export() {
    let outcome = serve(&[&option(6, &go_data("", &[1, 2]))]);
    assert_eq!(outcome.end, Ok(ServerProgress::NeedMore));
    let found = replies(&outcome.out);
    assert_eq!(found[1], (6, 3, b"\0\x01vol".to_vec()));
    assert_eq!(found[2], (6, 3, b"\0\x02a volume".to_vec()));
    assert_eq!(found[3], (6, 1, vec![]));
    assert_eq!(found.len(), 4);
}

#[test]
fn malformed_info_and_go_are_invalid() {
    let mut name_too_long = go_data("vol", &[]);
    name_too_long[3] = 200;
    let mut count_too_high = go_data("vol", &[3]);
    count_too_high[8] = 2;
    let malformed: [&[u8]; 9] = [
        b"",
        b"\0\0\0",
        b"\0\0\0\x03vol",
        b"\0\0\0\x03vol\0",
        b"\xff\xff\xff\xffvol\0\0",
        &name_too_long,
        &count_too_high,
        &[&go_data("vol", &[3])[..], b"x"].concat(),
        &go_data("v\0l", &[]),
    ];
    for code in [6, 7] {
        for data in malformed {
            assert_eq!(answer(&option(code, data)), [INVALID], "{code} {data:?}");
        }
        assert_eq!(answer(&option(code, b"\0\0\0\x02\xff\xfe\0\0")), [INVALID]);
        assert_eq!(answer(&option(code, &go_data("none", &[]))), [UNKNOWN]);
        assert_eq!(
            answer(&option(code, &go_data(&"n".repeat(4097), &[]))),
            [TOO_BIG]
        );
        assert_eq!(
            answer(&option(code, &go_data(&"n".repeat(4096), &[]))),
            [UNKNOWN]
        );
    }
}

#[test]
fn oversized_option_data_is_skipped_or_disconnects() {
    for code in [6, 7, 9, 10] {
        assert_eq!(
            answer(&option(code, &vec![0; 65_537])),
            [TOO_BIG],
            "option {code}"
        );
    }
    // After an option whose data is skipped, the next option is decoded correctly.
    let options = [
        option(7, &vec![0; 1 << 20]),
        option(7, &go_data("vol", &[])),
    ];
    let outcome = serve(&[&options[0], &options[1]]);
    assert_eq!(types(&outcome.out), [TOO_BIG, 3, 1]);
    session(&outcome);
    for code in [2, 3, 7, 99] {
        let length_bytes = (16 << 20) + 1;
        let error = ProtocolError::OptionTooLarge {
            option: code,
            length_bytes,
        };
        assert_eq!(serve(&[&option_header(code, length_bytes)]).end, Err(error));
        assert_eq!(
            serve(&[&option_header(code, 16 << 20)]).end,
            Ok(ServerProgress::NeedMore)
        );
    }
}

#[test]
fn a_handshake_has_at_most_1024_options() {
    let mut options = option(3, &[]).repeat(1024);
    assert_eq!(serve(&[&options]).end, Ok(ServerProgress::NeedMore));
    options.extend(option(7, &go_data("vol", &[])));
    assert_eq!(serve(&[&options]).end, Err(ProtocolError::EndlessHandshake));
}

#[test]
fn nothing_is_taken_after_the_end() {
    let mut out = Vec::new();
    let mut server = ServerHandshake::start(&mut out);
    let input = [&[0, 0, 0, 3], &option(2, &[])[..]].concat();
    let (taken, progress) = server.feed(&input, &mut out, &Two).unwrap();
    assert_eq!((taken, progress), (input.len(), ServerProgress::Closed));
    assert_eq!(
        server.feed(b"x", &mut out, &Two),
        Err(ProtocolError::HandshakeOver)
    );
}

#[test]
fn structured_replies_offer_df() {
    let outcome = serve(&[&option(8, &[]), &option(7, &go_data("vol", &[]))]);
    assert_eq!(types(&outcome.out), [1, 3, 1]);
    assert!(session(&outcome).negotiated.structured_replies);
    assert_eq!(session(&outcome).info.transmission_flags, FLAGS);
    assert_eq!(session(&outcome).negotiated.base_allocation_id, None);
}

#[test]
fn meta_context_needs_structured_replies() {
    for code in [9, 10] {
        let set = option(code, &meta_data("vol", &["base:allocation"]));
        assert_eq!(answer(&set), [INVALID]);
    }
}

#[test]
fn meta_context_listing() {
    let listed = [&[0, 0, 0, 0][..], b"base:allocation"].concat();
    let cases: [(&[&str], bool); 6] = [
        (&[], true),
        (&["base:"], true),
        (&["base:allocation"], true),
        (&["x-other:y", "base:allocation", "base:"], true),
        (&["base:unknown"], false),
        (&["qemu:dirty-bitmap:b"], false),
    ];
    for (queries, found) in cases {
        let outcome = serve(&[&option(8, &[]), &option(9, &meta_data("", queries))]);
        let mut expected = option_reply(8, 1, &[]);
        if found {
            expected.extend(option_reply(9, 4, &listed));
        }
        expected.extend(option_reply(9, 1, &[]));
        assert_eq!(outcome.out, expected, "{queries:?}");
    }
}

#[test]
fn meta_context_selection() {
    // Each case has the export for which the context is selected, the queries of the selection, the
    // export that GO opens, and whether the context is then negotiated.
    let cases: [(&str, &[&str], &str, bool); 7] = [
        ("vol", &["base:allocation"], "vol", true),
        (
            "vol",
            &["x-a:", "base:allocation", "base:allocation"],
            "vol",
            true,
        ),
        ("vol", &["base:allocation"], "aux", false),
        ("", &["base:allocation"], "vol", true),
        ("vol", &["base:"], "vol", false),
        ("vol", &["base:other"], "vol", false),
        ("vol", &[], "vol", false),
    ];
    for (set_name, queries, go_name, negotiated) in cases {
        let set = option(10, &meta_data(set_name, queries));
        let go = option(7, &go_data(go_name, &[]));
        let outcome = serve(&[&option(8, &[]), &set, &go]);
        let id = session(&outcome).negotiated.base_allocation_id;
        assert_eq!(id.is_some(), negotiated, "{set_name} {queries:?} {go_name}");
        if let Some(id) = id {
            let data = [&id.to_be_bytes()[..], b"base:allocation"].concat();
            let contexts: Vec<_> = replies(&outcome.out)
                .into_iter()
                .filter(|r| r.1 == 4)
                .collect();
            assert_eq!(contexts, [(10, 4, data)]);
        }
    }
}

#[test]
fn a_failed_selection_drops_the_earlier_one() {
    let good = option(10, &meta_data("vol", &["base:allocation"]));
    let go = option(7, &go_data("vol", &[]));
    let bad = [
        option(10, b"x"),
        option(10, &vec![0; 70_000]),
        option(10, &meta_data("none", &["base:allocation"])),
        option(10, &meta_data("vol", &[])),
    ];
    for bad in bad {
        let outcome = serve(&[&option(8, &[]), &good, &bad, &go]);
        assert_eq!(session(&outcome).negotiated.base_allocation_id, None);
    }
}

#[test]
fn malformed_meta_context_options() {
    let mut query_too_long = meta_data("vol", &["base:allocation"]);
    query_too_long[14] = 99;
    let mut one_query_more = meta_data("vol", &["base:allocation"]);
    one_query_more[10] = 2;
    let long_query = format!("x-long:{}", "y".repeat(4090));
    let many = vec!["x-a:b"; 65];
    for code in [9, 10] {
        let cases: [(&[u8], u32); 11] = [
            (b"", INVALID),
            (b"\0\0\0\x03vo", INVALID),
            (b"\0\0\0\x03vol\0\0\0", INVALID),
            (&query_too_long, INVALID),
            (&one_query_more, INVALID),
            (
                &[&meta_data("vol", &["base:allocation"])[..], b"x"].concat(),
                INVALID,
            ),
            (&meta_data("vol", &["base"]), INVALID),
            (b"\0\0\0\x03vol\0\0\0\x01\0\0\0\x03a:\xff", INVALID),
            (&meta_data("none", &["base:allocation"]), UNKNOWN),
            (&meta_data("vol", &[&long_query]), TOO_BIG),
            (&meta_data("vol", &many), TOO_BIG),
        ];
        for (data, expected) in cases {
            assert_eq!(
                answer_structured(&option(code, data)),
                [expected],
                "{code} {data:?}"
            );
        }
    }
}

#[test]
fn fragments_do_not_matter() {
    let input = [
        &[0, 0, 0, 3][..],
        &option(3, &[]),
        &option(99, b"skipped data"),
        &option(6, &go_data("aux", &[1, 3])),
        &option(8, &[]),
        &option(8, b"x"),
        &option(9, &meta_data("vol", &[])),
        &option(10, &meta_data("vol", &["base:allocation"])),
        &option(7, &go_data("none", &[])),
        &option(7, &go_data("vol", &[3])),
        b"transmission",
    ]
    .concat();
    let whole = serve_with(&Two, &input, usize::MAX);
    session(&whole);
    assert_eq!(whole.left, b"transmission");
    for fragment_bytes in [1, 2, 3, 7, 16, 100] {
        assert_eq!(serve_with(&Two, &input, fragment_bytes), whole);
    }
}

#[test]
fn an_announced_length_alone_reserves_nothing() {
    let mut out = Vec::new();
    let mut server = ServerHandshake::start(&mut out);
    let input = [&[0, 0, 0, 3], &option_header(7, 65_536)[..], b"abc"].concat();
    let (taken, progress) = server.feed(&input, &mut out, &Two).unwrap();
    assert_eq!((taken, progress), (input.len(), ServerProgress::NeedMore));
    assert_eq!(server.buffered_bytes(), 3);
}
