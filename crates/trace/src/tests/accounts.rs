//! Tests that every line of every format is a request, is bad, or is skipped for a reason, so that
//! no line is dropped without being counted.

use super::*;
use proptest::prelude::*;

/// Expected outcome of a line, according to the description of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Request,
    Bad,
    Ignored(Ignored),
}

use Is::{Bad, Request};

const BLANK: Is = Is::Ignored(Ignored::Blank);
const COMMENT: Is = Is::Ignored(Ignored::Comment);
const HEADING: Is = Is::Ignored(Ignored::Heading);
const MARK: Is = Is::Ignored(Ignored::Mark);
const OTHER_EVENT: Is = Is::Ignored(Ignored::OtherEvent);
const NO_SECTORS: Is = Is::Ignored(Ignored::NoSectors);
const NO_EVENT: Is = Is::Ignored(Ignored::NoEvent);
const NO_DATA: Is = Is::Ignored(Ignored::NoData);

/// A text format, as the tests generate it: the lines that can come first, and the lines that can
/// follow.
struct Text {
    format: Format,
    first: &'static [(&'static str, Is)],
    lines: &'static [(&'static str, Is)],
}

const ANY: [(&str, Is); 3] = [("", BLANK), (" \t ", BLANK), ("# a comment", COMMENT)];

const TEXTS: [Text; 10] = [
    Text {
        format: Format::Msr,
        first: &[
            (
                "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
                HEADING,
            ),
            ("9,h,0,Peek,0,512,3", Bad),
            ("9,h,0,Read,0,512,3", Request),
        ],
        lines: &[
            ("1,h,0,Read,0,512,3", Request),
            ("2,h,1,Write,8192,4096,3", Request),
            ("3,h,0,Reap,0,512,3", Bad),
            ("Timestamp,Hostname,DiskNumber,Type,Offset,Size", Bad),
            ("4,h", Bad),
        ],
    },
    Text {
        format: Format::Ssdsim,
        first: &[("5 0 8 8 1", Request)],
        lines: &[
            ("938 3 16 16 0", Request),
            ("938 3 16 16 2", Bad),
            ("time", Bad),
        ],
    },
    Text {
        format: Format::Disksim,
        first: &[("5.25 0 8 8 1", Request)],
        lines: &[("938.5 3 16 16 0", Request), ("938.5 3 16 0 0", Bad)],
    },
    Text {
        format: Format::Arc,
        first: &[("5 3 0 0", Request)],
        lines: &[("7 1 0 1", Request), ("7 x 0 1", Bad), ("*", Bad)],
    },
    Text {
        format: Format::Lirs,
        first: &[("5", Request), ("*", MARK)],
        lines: &[("6", Request), ("*", MARK), ("x", Bad), ("-1", Bad)],
    },
    Text {
        format: Format::Spc,
        first: &[("0,1,512,w,0.5", Request)],
        lines: &[
            ("0,1,512,R,0.5", Request),
            ("0,1,512,x,0.5", Bad),
            ("0,1,512", Bad),
        ],
    },
    Text {
        format: Format::Blkparse,
        // The first line has the event Q, so only lines with the event Q are read as requests.
        first: &[("8,0 0 1 0.0 7 Q R 8 + 8 [cat]", Request)],
        lines: &[
            (
                "  8,0    3   2  0.000001829   697  Q   W 16 + 8 [kjournald]",
                Request,
            ),
            ("8,0 0 1 0.0 7 Q FWS [fsync]", NO_SECTORS),
            ("8,0 0 1 0.0 7 Q WS 8 + 0 [fsync]", NO_SECTORS),
            ("8,0 0 1 0.0 7 D R 8 + 8 [cat]", OTHER_EVENT),
            ("8,0 0 1 0.0 7 C R 8 + 8 [0]", OTHER_EVENT),
            ("8,0 0 1 0.0 7 P N [cat]", OTHER_EVENT),
            ("8,0 0 1 0.0 7 Q R x + 8 [cat]", Bad),
            ("8,0 0 1 soon 7 Q R 8 + 8 [cat]", Bad),
            ("8,0 0", Bad),
            ("CPU3 (8,0):", NO_EVENT),
            (" Reads Queued:           0,        0KiB", NO_EVENT),
        ],
    },
    Text {
        format: Format::Fio,
        first: &[("fio version 2 iolog", MARK)],
        lines: &[
            ("/dev/sda read 0 4096", Request),
            ("/dev/sda write 4096 4096", Request),
            ("/dev/sda trim 4096 4096", Request),
            ("/dev/sda add", NO_DATA),
            ("/dev/sda open", NO_DATA),
            ("/dev/sda close", NO_DATA),
            ("/dev/sda sync 0 0", NO_DATA),
            ("/dev/sda datasync 0 0", NO_DATA),
            ("/dev/sda sync_file_range 0 4096", NO_DATA),
            ("/dev/sda wait 100 0", NO_DATA),
            ("/dev/sda munch 0 4096", Bad),
            ("/dev/sda read 0", Bad),
        ],
    },
    Text {
        format: Format::Pages,
        first: &[
            ("op,lpn,npages", MARK),
            ("type,page,pages", HEADING),
            ("op,1,1", Bad),
            ("R,1,1", Request),
        ],
        lines: &[
            ("W,2,1", Request),
            ("op,lpn,npages", Bad),
            ("op,1,1", Bad),
            ("R,1,x", Bad),
        ],
    },
    Text {
        format: Format::Columns,
        first: &[
            ("when,who,what,where,much", HEADING),
            ("\"when\",\"who\",\"what\",\"where\",\"much\"", HEADING),
            // Each of these has data in some column.
            ("1.5,x,peek,8,512", Bad),
            ("when,x,write,8,512", Bad),
            ("noon,x,peek,8,512", Bad),
            ("noon,x,peek,eight,512", Bad),
            ("noon,x,write,eight,much", Bad),
            ("1.5,x,write,8,512", Request),
        ],
        lines: &[
            ("1.5,x,write,8,512", Request),
            ("1.5;x;RA;8;512", Request),
            ("1.5,x,rubbish,8,512", Bad),
            ("1.5,x,write", Bad),
            ("when,who,what,where,much", Bad),
        ],
    },
];

fn options(format: Format) -> Options {
    let columns = "time_ms,-,op,offset_sectors,length_bytes";
    Options {
        columns: Some(columns.parse().expect("columns")),
        skip_bad: SkipBad::All,
        ..in_format(format)
    }
}

/// Reads `bytes` as a trace. Returns the numbers of lines by outcome, and the number of requests.
fn read(bytes: &[u8], format: Format) -> (Tally, u64) {
    let mut reader = reader("t", bytes, &options(format)).expect("it opens");
    let mut requests = 0;
    while reader
        .next_record()
        .expect("bad lines are passed over")
        .is_some()
    {
        requests += 1;
    }
    (*reader.tally(), requests)
}

/// Generates the lines of a trace in some format: blank lines and comments, then one line that is
/// valid as the first line of the format, then any lines.
fn lines() -> impl Strategy<Value = (Format, Vec<(&'static str, Is)>)> {
    (0..TEXTS.len()).prop_flat_map(|number| {
        let text = &TEXTS[number];
        let blanks = proptest::collection::vec(proptest::sample::select(&ANY[..]), 0..3);
        let first = proptest::sample::select(text.first);
        let rest = proptest::sample::select([text.lines, &ANY].concat());
        let rest = proptest::collection::vec(rest, 0..40);
        (blanks, first, rest)
            .prop_map(|(blanks, first, rest)| (text.format, [blanks, vec![first], rest].concat()))
    })
}

proptest! {
    #[test]
    fn every_line_is_counted_as_what_it_is((format, lines) in lines(), ends_with_lf: bool) {
        let mut text = lines.iter().map(|(line, _)| *line).collect::<Vec<_>>().join("\n");
        // An empty last line without a line end is not counted as a line.
        let has_end = ends_with_lf || lines.last().is_some_and(|(line, _)| line.is_empty());
        if has_end {
            text.push('\n');
        }
        let (tally, _) = read(text.as_bytes(), format);
        let count = |is: Is| lines.iter().filter(|(_, line)| *line == is).count() as u64;
        prop_assert_eq!(tally.requests, count(Request), "{}", text);
        prop_assert_eq!(tally.bad, count(Bad), "{}", text);
        for why in Ignored::ALL {
            prop_assert_eq!(tally.ignored(why), count(Is::Ignored(why)), "{:?}: {}", why, text);
        }
        prop_assert_eq!(tally.total(), lines.len() as u64);
    }

    #[test]
    fn any_bytes_are_counted_line_by_line(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut lines = bytes.split(|b| *b == b'\n').count() as u64;
        if bytes.is_empty() || bytes.ends_with(b"\n") {
            lines -= 1;
        }
        for Text { format, .. } in TEXTS {
            // A comment precedes the bytes, because otherwise some of them would be recognised as a
            // compressed file.
            let text = [b"# \n", &bytes[..]].concat();
            let mut reader = reader("t", &text, &options(format)).expect("it opens");
            let mut last = reader.next_record();
            while matches!(last, Ok(Some(_))) {
                last = reader.next_record();
            }
            if !matches!(last, Err(TraceError::NoEvents { .. })) {
                prop_assert!(last.is_ok(), "{:?}", last);
            }
            prop_assert_eq!(reader.tally().total(), lines + 1, "{:?}", format);
        }
    }
}

#[test]
fn records_of_binary_formats_are_counted() {
    let cut = [
        vscsi_record(4096, 0x28, 8),
        vscsi_record(512, 0x12, 1),
        vec![7; 20],
    ]
    .concat();
    // A read, an INQUIRY and a part of a record.
    let (tally, requests) = read(&cut, Format::Vscsi);
    assert_eq!(
        (tally.requests, tally.bad, tally.total(), requests),
        (1, 2, 3, 1)
    );
    let (tally, requests) = read(&[0; 24 * 3 + 5], Format::OracleGeneral);
    assert_eq!(
        (tally.requests, tally.bad, tally.total(), requests),
        (3, 1, 4, 3)
    );
    let mut writer = CompactWriter::new(Vec::new()).expect("memory takes everything");
    let record = Record {
        time_ns: 0,
        op: Op::Trim,
        offset_bytes: 0,
        length_bytes: 1,
    };
    for _ in 0..3 {
        writer.push(&record).expect("memory takes everything");
    }
    let mut compact = writer.finish().expect("memory takes everything");
    let (tally, requests) = read(&compact, Format::Compact);
    assert_eq!((tally.requests, tally.total(), requests), (3, 3, 3));
    // Bytes after the end mark, such as an appended trace, are an error and are not ignored.
    compact.extend(compact.clone());
    let error = records("t", &compact, &in_format(Format::Compact));
    let message = error.expect_err("two in one").to_string();
    assert!(message.ends_with("bytes after the end mark"), "{message}");
}

#[test]
fn a_text_of_blkparse_is_read_by_the_first_event_that_it_has() {
    let line = |time: u32, event: &str| {
        format!("8,0 0 1 0.{time:09} 7 {event} R {} + 8 [cat]\n", time * 8)
    };
    let text = |events: &[&str]| {
        let lines = (1..).zip(events).map(|(time, event)| line(time, event));
        lines.collect::<String>().into_bytes()
    };
    // Each case has three parts: the events in the lines of a trace, the numbers of the lines that
    // must be read as requests, and the event that the reader must choose.
    let cases: [(&[&str], &[u64], &str); 6] = [
        (&["D", "D"], &[1, 2], "D"),
        (&["C", "G", "C"], &[1, 3], "C"),
        (&["C", "D", "C", "D"], &[2, 4], "D"),
        (&["C", "D", "I", "D"], &[3], "I"),
        (&["C", "D", "Q", "D", "C"], &[3], "Q"),
        (&["G", "P", "Q"], &[3], "Q"),
    ];
    for (events, expected, taken) in cases {
        let options = in_format(Format::Blkparse);
        let mut reader = reader("t", &text(events), &options).expect("it opens");
        let mut times = Vec::new();
        while let Some(record) = reader.next_record().expect("well formed") {
            times.push(record.time_ns);
        }
        assert_eq!(times, expected, "{events:?}");
        let note =
            format!("the trace has no events Q, so its events {taken} are used as the requests");
        assert_eq!(reader.notes().contains(&note), taken != "Q", "{events:?}");
    }
    for none in [&text(&["G", "P"])[..], b"CPU3 (8,0):\n"] {
        let error = records("t", none, &in_format(Format::Blkparse));
        let message = error.expect_err("no request").to_string();
        assert_eq!(message, "t: no request: it has no event Q, I, D or C");
    }
}

#[test]
fn an_earlier_event_far_behind_the_choice_is_no_silent_loss() {
    // The reader treats one kind of event as requests. It chooses this kind from the first 64 KiB
    // of the text. The only event Q comes after these 64 KiB.
    let issued = "8,0 0 1 0.1 7 D R 8 + 8 [cat]\n".repeat(4000);
    let text = format!("{issued}8,0 0 1 0.1 7 Q R 8 + 8 [cat]\n");
    let error = records("t", text.as_bytes(), &in_format(Format::Blkparse));
    let message = error.expect_err("queued events as well").to_string();
    assert!(
        message.starts_with("t: line 4001: an event Q "),
        "{message}"
    );
}

#[test]
fn msr_with_a_heading_is_recognised_and_the_heading_is_said() {
    let text = b"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n\
                 1,h,0,Read,8192,4096,1331\n";
    let mut reader = reader("input", text, &Options::default()).expect("it is recognised");
    assert_eq!(reader.format(), Format::Msr);
    let record = reader.next_record().expect("well formed").expect("one");
    assert_eq!((record.offset_bytes, record.length_bytes), (8192, 4096));
    assert_eq!(reader.next_record().expect("well formed"), None);
    assert_eq!(
        reader.notes(),
        ["line 1 is treated as a heading: `Timestamp,Hostname,DiskN`"]
    );
}
