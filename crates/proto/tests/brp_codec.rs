//! Tests of the encoding of BRP: encoded messages can be decoded, the bytes are those of the
//! specification, any input yields a message or an error, and fragmentation makes no difference.

use bimetal_proto::brp::command::encode_command;
use bimetal_proto::brp::frame::check_of;
use bimetal_proto::brp::greeting::RefusalCode;
use bimetal_proto::brp::inbound::{ToInitiator, ToTarget};
use bimetal_proto::brp::response::{Run, decode_runs, encode_response, encode_runs};
use bimetal_proto::brp::wire::{feature, kind, right};
use bimetal_proto::brp::{
    Completion, Hello, InitiatorInbound, Listed, Op, Outbound, ProtocolError, Purpose, Refusal,
    Request, Status, TargetInbound, Welcome,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        features: feature::ALL,
        session: *b"0123456789abcdef",
        path: 3,
        purpose: Purpose::Open,
        name: "vol".to_owned(),
    }
}

fn welcome(features: u32) -> Welcome {
    Welcome {
        features,
        instance: [1; 16],
        host: [2; 16],
        size_bytes: 1 << 30,
        block_bytes: 512,
        preferred_bytes: 4096,
        transfer_bytes_max: 1 << 20,
        range_bytes_max: 1 << 30,
        requests_max: 256,
        data_bytes_max: 64 << 20,
        rights: right::VOLATILE,
    }
}

/// Result of decoding a stream that was passed to a reader in pieces: the messages, each with its
/// entries, and the error that ended the stream.
type Made<M, E> = (Vec<(M, Vec<E>)>, Option<ProtocolError>);

/// Feeds a stream to a target's reader in pieces of `cut` bytes. The data of commands is skipped
/// here, as a target consumes it before the next message.
fn target(features: Option<u32>, stream: &[u8], cut: usize) -> Made<ToTarget, Request> {
    let mut inbound = TargetInbound::new();
    if let Some(features) = features {
        inbound.open(features);
    }
    let (mut made, mut requests) = (Vec::new(), Vec::new());
    let (mut unread, mut skip) = (Vec::new(), 0);
    for piece in stream.chunks(cut) {
        unread.extend_from_slice(piece);
        loop {
            let skipped = skip.min(unread.len());
            unread.drain(..skipped);
            skip -= skipped;
            if skip > 0 {
                break;
            }
            match inbound.next(&unread, &mut requests) {
                Ok(None) => break,
                Err(error) => return (made, Some(error)),
                Ok(Some((message, taken))) => {
                    unread.drain(..taken);
                    if let ToTarget::Command { .. } = message {
                        skip = requests.iter().map(|r| r.data_bytes() as usize).sum();
                    } else {
                        requests.clear();
                    }
                    made.push((message, requests.clone()));
                }
            }
        }
    }
    (made, None)
}

fn initiator(open: Option<u32>, stream: &[u8], cut: usize) -> Made<ToInitiator, Completion> {
    let mut inbound = InitiatorInbound::new(feature::ALL);
    let mut stream = stream.to_vec();
    if let Some(features) = open {
        let mut first = Vec::new();
        welcome(features).encode(&mut Outbound::new(), &mut first);
        first.append(&mut stream);
        stream = first;
    }
    let (mut made, mut completions) = (Vec::new(), Vec::new());
    let (mut unread, mut skip) = (Vec::new(), 0);
    for piece in stream.chunks(cut) {
        unread.extend_from_slice(piece);
        loop {
            let skipped = skip.min(unread.len());
            unread.drain(..skipped);
            skip -= skipped;
            if skip > 0 {
                break;
            }
            match inbound.next(&unread, &mut completions) {
                Ok(None) => break,
                Err(error) => return (made, Some(error)),
                Ok(Some((message, taken))) => {
                    unread.drain(..taken);
                    if message == ToInitiator::Response {
                        skip = completions.iter().map(|c| c.length_bytes as usize).sum();
                    } else {
                        completions.clear();
                    }
                    if let ToInitiator::Welcome(_) = message {
                        inbound.expect_fenced();
                        inbound.expect_fenced();
                    }
                    made.push((message, completions.clone()));
                }
            }
        }
    }
    (made, None)
}

/// Returns the encoder of the path that [`target`] decodes. The encoder has already encoded `skip`
/// frames.
fn outbound(features: u32, skip: u32) -> Outbound {
    let mut outbound = Outbound::new();
    (0..skip).for_each(|_| outbound.control(&mut Vec::new(), kind::CLOSE, &[]));
    outbound.open(features);
    outbound
}

#[test]
fn a_hello_is_on_the_wire_as_the_page_draws_it() {
    let mut out = Vec::new();
    hello().encode(&mut Outbound::new(), &mut out);
    assert_eq!(out[..12], [1, 0, 0, 0, 43, 0, 0, 0, 0, 0, 0, 0]);
    let body = [
        &b"BRPhello"[..],
        &[1, 0, 1, 0, 7, 0, 0, 0],
        b"0123456789abcdef",
        &[3, 0, 0, 0, 1, 0, 3, 0],
        b"vol",
    ]
    .concat();
    assert_eq!(out[16..], body);
    let check = check_of(&[&out[..12], &body[..]].concat());
    assert_eq!(out[12..16], check.to_le_bytes());
    // Compare the checksum with the test vector of RFC 3720, appendix B.4, which consists of 32
    // zero bytes.
    assert_eq!(check_of(&[0; 32]), 0x8a91_36aa);
}

#[test]
fn a_jumbo_command_is_on_the_wire_as_the_page_draws_it() {
    let mut write = Request::new(Op::Write, 0x0102, 512);
    (write.tag, write.flags, write.check) = (9, 1, 0xaabb_ccdd);
    let read = Request::new(Op::Read, 1 << 40, 4096);
    let mut out = Vec::new();
    encode_command(&mut outbound(0, 0), &mut out, &[write, read], true);
    assert_eq!(
        out,
        [
            &[16, 2, 1, 0, 0x30, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[2, 1, 0, 0, 9, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0],
            &[0, 2, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa],
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
            &[0, 16, 0, 0, 0, 0, 0, 0],
        ]
        .concat()
    );
}

#[test]
fn what_may_not_be_is_refused() {
    let small = Request::new(Op::Write, 0, 512);
    let command = |requests: &[Request], features| {
        let mut out = Vec::new();
        encode_command(&mut outbound(features, 0), &mut out, requests, false);
        out
    };
    let refused = |bytes: &[u8], features| target(Some(features), bytes, 1 << 20).1;
    let merged = command(&[small, small], feature::MERGE);
    assert_eq!(refused(&merged, feature::MERGE), None);
    assert_eq!(refused(&merged, 0), Some(ProtocolError::BadCount(2)));
    // Frames without the checksum that was negotiated, and frames with a checksum that was not
    // negotiated, are rejected.
    assert_eq!(
        refused(&merged, feature::ALL),
        Some(ProtocolError::WrongCheck)
    );
    let checked = command(&[small], feature::CRC);
    assert_eq!(refused(&checked, 0), Some(ProtocolError::WrongCheck));
    // One wrong byte at any offset of a command with a checksum is always detected.
    for place in 0..checked.len() {
        let mut wrong = checked.clone();
        wrong[place] ^= 0x10;
        assert!(refused(&wrong, feature::CRC).is_some(), "{place}");
    }
    let wrong = |place: usize, value: u8, features| {
        let mut bytes = merged.clone();
        bytes[place] = value;
        refused(&bytes, features)
    };
    let merge = feature::MERGE;
    assert_eq!(wrong(1, 0, merge), Some(ProtocolError::BadCount(0)));
    assert_eq!(wrong(1, 65, merge), Some(ProtocolError::BadCount(65)));
    assert_eq!(wrong(2, 2, merge), Some(ProtocolError::BadField("flags")));
    assert_eq!(wrong(4, 1, merge), Some(ProtocolError::BadLength(0x0401)));
    let sequence = ProtocolError::OutOfSequence {
        expected: 0,
        got: 1,
    };
    assert_eq!(wrong(8, 1, merge), Some(sequence));
    assert_eq!(wrong(16, 7, merge), Some(ProtocolError::BadField("op")));
    assert_eq!(wrong(16, 3, merge), Some(ProtocolError::NotMergeable));
    assert_eq!(wrong(17, 2, merge), Some(ProtocolError::BadField("flags")));
    assert_eq!(
        wrong(18, 1, merge),
        Some(ProtocolError::BadField("reserved"))
    );
    assert_eq!(wrong(33, 32, merge), Some(ProtocolError::NotMergeable));
    assert_eq!(wrong(36, 1, merge), Some(ProtocolError::BadField("check")));
    // Commands before the greeting, and a greeting after it.
    assert_eq!(target(None, &merged, 99).1, Some(ProtocolError::NotBrp));
    let mut greeting = Vec::new();
    hello().encode(&mut Outbound::new(), &mut greeting);
    assert_eq!(
        target(Some(0), &greeting, 99).1,
        Some(ProtocolError::UnexpectedFrame(kind::HELLO))
    );
    // If the head of a control frame announces an excessive length, the frame is rejected when its
    // head has arrived, before its body.
    greeting[5] = 0xff;
    assert_eq!(
        target(None, &greeting[..16], 99).1,
        Some(ProtocolError::BadLength(0xff2b))
    );
}

#[test]
fn a_later_version_is_recognised_whatever_follows() {
    let mut body = b"BRPhello".to_vec();
    body.extend_from_slice(&[2, 0, 9, 0]);
    body.extend_from_slice(&[0xee; 77]);
    let mut out = Vec::new();
    Outbound::new().control(&mut out, kind::HELLO, &body);
    assert_eq!(target(None, &out, 5).0[0].0, ToTarget::LaterVersion);
}

#[test]
fn requests_are_validated_in_the_order_of_the_page() {
    let export = welcome(0);
    let read_only = Welcome {
        rights: right::READ_ONLY,
        ..export
    };
    let at = |op, offset, length| export.validate(&Request::new(op, offset, length));
    assert_eq!(at(Op::Read, 0, 512), Ok(()));
    assert_eq!(at(Op::Flush, 0, 0), Ok(()));
    assert_eq!(at(Op::Flush, 512, 0), Err(Status::Invalid));
    assert_eq!(at(Op::Read, 0, 0), Err(Status::Invalid));
    assert_eq!(at(Op::Read, 1 << 30, 512), Err(Status::OutOfRange));
    assert_eq!(at(Op::Write, u64::MAX, 512), Err(Status::OutOfRange));
    assert_eq!(at(Op::Read, 0, 100), Err(Status::Invalid));
    assert_eq!(at(Op::Read, 0, (1 << 20) + 512), Err(Status::Invalid));
    assert_eq!(at(Op::Discard, 0, 1 << 30), Ok(()));
    let write = Request::new(Op::Write, 0, 0);
    assert_eq!(read_only.validate(&write), Err(Status::ReadOnly));
}

#[test]
fn runs_stay_within_what_was_asked() {
    let asked = Request::new(Op::Extents, 0, 8192);
    let run = |length_bytes, data| Run { length_bytes, data };
    let runs = [run(4096, true), run(4096, false)];
    assert_eq!(
        decode_runs(&asked, &encode_runs(&runs)).unwrap(),
        runs.to_vec()
    );
    for wrong in [vec![run(0, true)], vec![run(8193, true)]] {
        assert!(decode_runs(&asked, &encode_runs(&wrong)).is_err());
    }
    assert!(decode_runs(&asked, &[0, 1, 0, 0, 2, 0, 0, 0]).is_err());
    // No run, and a partial run after a whole one.
    assert!(decode_runs(&asked, &[]).is_err());
    assert!(decode_runs(&asked, &[0, 1, 0, 0, 1, 0, 0, 0, 9]).is_err());
}

fn text(max: usize) -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-zA-Z0-9 ._\u{e4}-]{0,40}")
        .unwrap()
        .prop_map(move |mut text| {
            while text.len() > max {
                text.pop();
            }
            text
        })
}

fn any_request(merged: bool) -> impl Strategy<Value = Request> {
    let op = prop::sample::select(&Op::ALL[..]);
    (op, any::<u8>(), any::<u32>(), any::<u64>(), 0..9000_u32).prop_map(
        move |(op, flags, tag, offset_bytes, length_bytes)| {
            let op = match op {
                Op::Flush | Op::Extents if merged => Op::Read,
                op => op,
            };
            Request {
                op,
                flags: flags & op.flags(),
                tag,
                offset_bytes,
                length_bytes: if merged {
                    length_bytes.min(4096)
                } else {
                    length_bytes
                },
                check: 0,
            }
        },
    )
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    prop_oneof![
        vec(any_request(true), 1..=64),
        vec(any_request(false), 1..=1)
    ]
}

fn completions() -> impl Strategy<Value = Vec<Completion>> {
    let status = prop::sample::select(&Status::ALL[..]);
    let completion =
        (any::<u32>(), status, 0..5000_u32).prop_map(|(tag, status, length_bytes)| Completion {
            tag,
            status,
            length_bytes,
            check: 0,
        });
    vec(completion, 1..=64)
}

/// Generates a stream to a target: commands with their data, fences, and a close. In half of the
/// cases, one byte of the stream is wrong.
fn to_target() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let frames = vec(requests(), 0..6);
    let damage = prop::option::of((any::<prop::sample::Index>(), 1_u8..));
    (frames, any::<bool>(), damage).prop_map(|(frames, crc, damage)| {
        let features = feature::MERGE | if crc { feature::CRC } else { 0 };
        let mut outbound = outbound(features, 0);
        let mut stream = Vec::new();
        for requests in frames {
            encode_command(&mut outbound, &mut stream, &requests, false);
            let data: u32 = requests.iter().map(Request::data_bytes).sum();
            stream.resize(stream.len() + data as usize, 0xda);
            outbound.control(&mut stream, kind::FENCE, &[1, 0, 0, 0, 0, 0, 0, 0]);
        }
        outbound.control(&mut stream, kind::CLOSE, &[]);
        if let Some((place, change)) = damage {
            let place = place.index(stream.len());
            stream[place] ^= change;
        }
        (features, stream)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(41),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn commands_round_trip(requests in requests(), in_turn: bool, crc: bool) {
        let features = feature::MERGE | if crc { feature::CRC } else { 0 };
        let mut out = Vec::new();
        encode_command(&mut outbound(features, 0), &mut out, &requests, in_turn);
        let (made, error) = target(Some(features), &out, 1 << 20);
        prop_assert_eq!(error, None);
        prop_assert_eq!(&made, &[(ToTarget::Command { in_turn }, requests)]);
    }

    #[test]
    fn responses_round_trip(completions in completions(), crc: bool) {
        let features = feature::MERGE | if crc { feature::CRC } else { 0 };
        let mut out = Vec::new();
        // The welcome was the first frame of this direction.
        encode_response(&mut outbound(features, 1), &mut out, &completions);
        let (made, error) = initiator(Some(features), &out, 1 << 20);
        prop_assert_eq!(error, None);
        prop_assert_eq!(&made[1], &(ToInitiator::Response, completions));
    }

    #[test]
    fn greetings_round_trip(
        name in text(1024), words in text(1024), path in 1_u32.., features: u32, size: u64, rights: u32,
        session in any::<[u8; 16]>().prop_filter("a session is not zero", |s| *s != [0; 16]),
    ) {
        let hello = Hello { features, path, session, name: name.clone(), ..hello() };
        let mut out = Vec::new();
        hello.encode(&mut Outbound::new(), &mut out);
        prop_assert_eq!(&target(None, &out, 7).0[0].0, &ToTarget::Hello(hello));

        let (mut out, mut outbound) = (Vec::new(), Outbound::new());
        let listed = Listed { size_bytes: size, rights, name, description: words.clone() };
        listed.encode(&mut outbound, &mut out);
        Listed::end(&mut outbound, &mut out);
        let refusal = Refusal { code: RefusalCode::Full, words };
        refusal.encode(&mut outbound, &mut out);
        let (made, error) = initiator(None, &out, 3);
        prop_assert_eq!(error, None);
        let messages: Vec<_> = made.into_iter().map(|(message, _)| message).collect();
        let expected = [
            ToInitiator::Listed(listed), ToInitiator::ListEnd, ToInitiator::Refused(refusal),
        ];
        prop_assert_eq!(messages, expected);
    }

    #[test]
    fn how_a_stream_to_the_target_is_cut_makes_no_difference(
        (features, stream) in to_target(), cut in 1_usize..400,
    ) {
        let whole = target(Some(features), &stream, stream.len().max(1));
        prop_assert_eq!(target(Some(features), &stream, cut), whole);
    }

    #[test]
    fn how_a_stream_to_the_initiator_is_cut_makes_no_difference(
        frames in vec(completions(), 0..6), cut in 1_usize..400, damage: Option<(prop::sample::Index, u8)>,
    ) {
        let mut outbound = outbound(feature::MERGE, 1);
        let mut stream = Vec::new();
        outbound.control(&mut stream, kind::FENCED, &[1, 0, 0, 0, 0, 0, 0, 0]);
        for completions in frames {
            encode_response(&mut outbound, &mut stream, &completions);
            let data: u32 = completions.iter().map(|c| c.length_bytes).sum();
            stream.resize(stream.len() + data as usize, 0xda);
        }
        if let Some((place, change)) = damage {
            let place = place.index(stream.len());
            stream[place] ^= change;
        }
        let whole = initiator(Some(feature::MERGE), &stream, 1 << 24);
        prop_assert_eq!(initiator(Some(feature::MERGE), &stream, cut), whole);
    }

    #[test]
    fn any_bytes_are_answered(
        mut stream in vec(any::<u8>(), 0..300), first in 0_u8..20, open: bool, cut in 1_usize..40,
    ) {
        if let Some(byte) = stream.first_mut() {
            *byte = first;
        }
        let features = open.then_some(feature::ALL);
        let whole = target(features, &stream, 1 << 20);
        prop_assert_eq!(target(features, &stream, cut), whole);
        let whole = initiator(features, &stream, 1 << 20);
        prop_assert_eq!(initiator(features, &stream, cut), whole);
    }
}
