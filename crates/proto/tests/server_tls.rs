//! Tests of the handshake of an NBD server that requires TLS before anything else (NBD, section
//! "TLS support", FORCEDTLS).

use crate::common::*;
use bimetal_proto::nbd::{ProtocolError, ServerHandshake, ServerProgress};

const ERR_UNSUP: u32 = (1 << 31) + 1;
const ERR_INVALID: u32 = (1 << 31) + 3;
const ERR_TLS_REQD: u32 = (1 << 31) + 5;
const FLAGS: [u8; 4] = [0, 0, 0, 3];

/// Returns a server that has received the client's flags.
fn server() -> (ServerHandshake, Vec<u8>) {
    let mut out = Vec::new();
    let mut server = ServerHandshake::start_requiring_tls(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    out.clear();
    let fed = server.feed(&FLAGS, &mut out, &Two);
    assert_eq!(fed, Ok((4, ServerProgress::NeedMore)));
    (server, out)
}

#[test]
fn before_tls_every_option_but_two_is_answered_with_the_same_error() {
    let (mut server, mut out) = server();
    // The options in this list are refused before TLS: LIST, INFO, GO, STRUCTURED_REPLY, both
    // metadata options, EXTENDED_HEADERS, and an undefined option.
    for number in [3, 6, 7, 8, 9, 10, 11, 4711] {
        for data in [&b""[..], &go_data("vol", &[]), &[0xff; 70_000]] {
            let input = option(number, data);
            let fed = server.feed(&input, &mut out, &Two);
            assert_eq!(fed, Ok((input.len(), ServerProgress::Answered)), "{number}");
            assert_eq!(types(&out), [ERR_TLS_REQD], "{number}");
            assert_eq!(replies(&out)[0].0, number);
            assert_eq!(server.buffered_bytes(), 0, "nothing is kept of it");
            out.clear();
        }
    }
}

#[test]
fn before_tls_no_export_is_opened_and_a_client_may_leave() {
    let (mut refusing, mut out) = server();
    let opened = refusing.feed(&option(1, b"vol"), &mut out, &Two);
    assert_eq!(opened, Err(ProtocolError::NeedsTls));
    assert_eq!(out, []);
    let (mut leaving, mut out) = server();
    let left = leaving.feed(&option(2, &[]), &mut out, &Two).unwrap();
    assert_eq!(left.1, ServerProgress::Closed);
    assert_eq!(out, option_reply(2, 1, &[]));
    let (mut server, mut out) = server();
    let too_long = server.feed(&option_header(3, (16 << 20) + 1), &mut out, &Two);
    let expected = ProtocolError::OptionTooLarge {
        option: 3,
        length_bytes: (16 << 20) + 1,
    };
    assert_eq!(too_long, Err(expected));
}

#[test]
fn tls_begins_once_and_then_options_are_taken() {
    let (mut server, mut out) = server();
    let with_data = option(5, b"x");
    server.feed(&with_data, &mut out, &Two).unwrap();
    assert_eq!(types(&out), [ERR_INVALID]);
    out.clear();
    // The server does not consume the bytes after `STARTTLS`, since they did not come through TLS.
    let input = [option(5, &[]), option(3, &[])].concat();
    let fed = server.feed(&input, &mut out, &Two);
    assert_eq!(fed, Ok((16, ServerProgress::StartTls)));
    assert_eq!(out, option_reply(5, 1, &[]));
    out.clear();
    server.feed(&option(5, &[]), &mut out, &Two).unwrap();
    assert_eq!(types(&out), [ERR_INVALID]);
    out.clear();
    server.feed(&option(8, &[]), &mut out, &Two).unwrap();
    assert_eq!(types(&out), [1]);
    out.clear();
    let input = option(7, &go_data("vol", &[]));
    let (_, progress) = server.feed(&input, &mut out, &Two).unwrap();
    let ServerProgress::Transmission(session) = progress else {
        panic!("{progress:?}");
    };
    assert!(session.negotiated.structured_replies && session.negotiated.no_zeroes);
}

#[test]
fn a_server_without_tls_says_so() {
    assert_eq!(types(&serve(&[&option(5, &[])]).out), [ERR_UNSUP]);
}
