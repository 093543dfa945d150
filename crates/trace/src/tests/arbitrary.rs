//! Tests of every reader with arbitrary bytes, and of properties of round trips and counts.

use super::*;
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Trim)]
}

fn record() -> impl Strategy<Value = Record> {
    let offset = prop_oneof![0..1u64 << 20, any::<u64>().prop_map(|n| n >> 1)];
    let length = prop_oneof![1..9000u64, Just(4096), 1..=4u64 << 30];
    (any::<u64>(), op(), offset, length).prop_map(|(time_ns, op, offset_bytes, length_bytes)| {
        Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        }
    })
}

fn compact(all: &[Record]) -> Vec<u8> {
    let mut writer = CompactWriter::new(Vec::new()).expect("memory takes everything");
    for record in all {
        writer.push(record).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything")
}

/// Reads a trace to its end or the first error, and checks that every record is possible.
fn exhaust(name: &str, bytes: &[u8], options: &Options) {
    let Ok(mut reader) = reader(name, bytes, options) else {
        return;
    };
    for _ in 0..100_000 {
        match reader.next_record() {
            Ok(Some(record)) => {
                assert!(record.length_bytes > 0);
                assert!(
                    record
                        .offset_bytes
                        .checked_add(record.length_bytes)
                        .is_some()
                );
            }
            Ok(None) | Err(_) => {
                assert!(
                    matches!(reader.next_record(), Ok(None)),
                    "nothing comes after the end"
                );
                return;
            }
        }
    }
}

fn all_options() -> impl Iterator<Item = Options> {
    Format::ALL.into_iter().flat_map(|(_, format)| {
        [SkipBad::None, SkipBad::All].map(|skip_bad| Options {
            columns: "time_us,op,offset_bytes,length_pages".parse().ok(),
            skip_bad,
            ..in_format(format)
        })
    })
}

/// Generates text from pieces that readers recognise.
fn texty() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just("Read"),
        Just("W"),
        Just(","),
        Just(" "),
        Just("\n"),
        Just("."),
        Just("0"),
        Just("1"),
        Just("8,0"),
        Just("+"),
        Just("Q"),
        Just("4096"),
        Just("99999999999999999999"),
        Just("-1"),
        Just("fio version 2 iolog\n"),
        Just("op,lpn,npages\n"),
        Just("*"),
        Just("18446744073709551615"),
    ];
    proptest::collection::vec(piece, 0..80).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_panic_a_reader(
        bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..400), texty()],
        magic in prop_oneof![
            Just(&b""[..]), Just(&b"BMTRACE1"[..]), Just(&[0x28, 0xb5, 0x2f, 0xfd][..]),
            Just(&[0x1f, 0x8b, 8][..]), Just(&[0xfd, b'7', b'z', b'X', b'Z', 0][..]),
        ],
    ) {
        let bytes = [magic, &bytes].concat();
        for name in ["x", "x.lis", "x.oracleGeneral"] {
            exhaust(name, &bytes, &Options::default());
        }
        for options in all_options() {
            exhaust("x", &bytes, &options);
        }
    }

    #[test]
    fn damage_to_packed_bytes_panics_nothing(at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let text = "123\n456\n".repeat(200);
        for mut bytes in [gzip(text.as_bytes()), zstd(text.as_bytes()), XZ_OF_7_8.to_vec()] {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            exhaust("x", &bytes, &in_format(Format::Lirs));
        }
    }

    #[test]
    fn the_compact_form_gives_back_what_it_was_given(
        all in proptest::collection::vec(record(), 0..300),
    ) {
        let bytes = compact(&all);
        prop_assert_eq!(records("x", &bytes, &Options::default()).expect("well formed"), all);
    }

    #[test]
    fn damage_to_the_compact_form_is_never_another_trace(
        all in proptest::collection::vec(record(), 1..50),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let whole = compact(&all);
        let mut damaged = whole.clone();
        let at = at.index(damaged.len());
        damaged[at] ^= 1 << bit;
        let read = records("x", &damaged, &in_format(Format::Compact));
        prop_assert!(read.is_err());
        let cut = records("x", &whole[..at], &in_format(Format::Compact));
        prop_assert!(cut.is_err());
    }

    #[test]
    fn stack_distances_are_those_counted_by_hand(
        pages in proptest::collection::vec(0..30u32, 1..300),
    ) {
        let mut distances = StackDistances::new();
        let mut stack: Vec<u32> = Vec::new();
        for page in &pages {
            let naive = stack.iter().position(|held| held == page);
            prop_assert_eq!(distances.access(*page), naive);
            if let Some(at) = naive {
                stack.remove(at);
            }
            stack.insert(0, *page);
        }
    }
}

#[test]
fn stack_distances_outlive_the_packing_of_their_times() {
    // Two pages are used alternately. Each access takes a new time, and there are more accesses
    // than times in the tree over the last uses. So the times are renumbered. The distance of every
    // repeated use is 1.
    let mut distances = StackDistances::new();
    for step in 0..200_000u32 {
        let distance = distances.access(step % 2);
        assert_eq!(distance, (step > 1).then_some(1));
    }
    assert_eq!((distances.misses(1), distances.misses(2)), (200_000, 2));
}
