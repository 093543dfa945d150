//! The form of recorded requests in an answer.

use std::fmt::Write as _;

use bimetal_trace::{Op, Record};

/// Formats each record as `TIME_NS OP OFFSET LENGTH;`.
pub(super) fn to_text(records: &[Record]) -> String {
    let mut text = String::with_capacity(records.len() * 40);
    for record in records {
        let op = match record.op {
            Op::Read => 'r',
            Op::Write => 'w',
            Op::Trim => 't',
        };
        let (time, offset, length) = (record.time_ns, record.offset_bytes, record.length_bytes);
        write!(text, "{time} {op} {offset} {length};").expect("a string takes text");
    }
    text
}

pub(super) fn from_text(text: &str) -> Option<Vec<Record>> {
    let record = |words: &str| {
        let mut words = words.split(' ');
        let time_ns = words.next()?.parse().ok()?;
        let op = match words.next()? {
            "r" => Op::Read,
            "w" => Op::Write,
            "t" => Op::Trim,
            _ => return None,
        };
        let offset_bytes: u64 = words.next()?.parse().ok()?;
        let length_bytes: u64 = words.next()?.parse().ok()?;
        offset_bytes.checked_add(length_bytes)?;
        Some(Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        })
    };
    text.split_terminator(';').map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let record = |time_ns, op, offset_bytes, length_bytes| Record {
            time_ns,
            op,
            offset_bytes,
            length_bytes,
        };
        vec![
            record(0, Op::Trim, 1 << 40, 1 << 32),
            record(100, Op::Write, 0, 4096),
            record(18_446_744_073_709_551_600, Op::Read, 512, 1),
        ]
    }

    #[test]
    fn records_go_through_an_answer_unchanged() {
        let text = to_text(&records());
        assert!(text.starts_with("0 t 1099511627776 4294967296;100 w 0 4096;"));
        assert_eq!(from_text(&text), Some(records()));
        assert_eq!(from_text(""), Some(Vec::new()));
    }

    #[test]
    fn answers_that_make_no_sense_are_no_records() {
        for bad in [
            "1 x 0 1;",
            "1 r 0;",
            "r 0 1;",
            "1 r 18446744073709551615 2;",
            ";;",
        ] {
            assert_eq!(from_text(bad), None, "{bad}");
        }
    }
}
