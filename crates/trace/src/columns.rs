//! Plain text in columns, for traces in none of the known formats.
//!
//! A description names the columns in order, such as `time_ms,-,op,offset_sectors,length_bytes`;
//! `-` is a column to ignore. In the text, commas, semicolons or white space separate the columns.

use crate::layouts::{
    Holds, Parsed, bytes, is_heading, length_is_possible, op_named, time_of, whole,
};
use crate::tally::Ignored;
use crate::{Op, Record};
use std::str::FromStr;

/// Meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Ignored,
    /// Time in units of this number of nanoseconds.
    Time(u64),
    Op,
    /// Offset in units of this number of bytes, or in pages if it is `None`. `Length` has the same
    /// units.
    Offset(Option<u64>),
    Length(Option<u64>),
}

/// The columns of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    columns: Vec<Column>,
}

/// An invalid description of columns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; columns are `-`, `op`, `time_UNIT` (s, ms, us, ns), `offset_UNIT` and `length_UNIT` \
     (bytes, sectors, pages)"
)]
pub struct InvalidColumns(String);

impl FromStr for Columns {
    type Err = InvalidColumns;

    fn from_str(text: &str) -> Result<Columns, InvalidColumns> {
        let size = |unit: &str| match unit {
            "bytes" => Some(Some(1)),
            "sectors" => Some(Some(512)),
            "pages" => Some(None),
            _ => None,
        };
        let column = |name: &str| match name.split_once('_') {
            None if name == "-" => Some(Column::Ignored),
            None if name == "op" => Some(Column::Op),
            Some(("time", "s")) => Some(Column::Time(1_000_000_000)),
            Some(("time", "ms")) => Some(Column::Time(1_000_000)),
            Some(("time", "us")) => Some(Column::Time(1000)),
            Some(("time", "ns")) => Some(Column::Time(1)),
            Some(("offset", unit)) => size(unit).map(Column::Offset),
            Some(("length", unit)) => size(unit).map(Column::Length),
            _ => None,
        };
        let mut columns = Vec::new();
        for name in text.split(',').map(str::trim) {
            let unknown = || InvalidColumns(format!("no column `{name}`"));
            columns.push(column(name).ok_or_else(unknown)?);
        }
        if !columns.iter().any(|c| matches!(c, Column::Offset(_))) {
            return Err(InvalidColumns("no offset".to_owned()));
        }
        Ok(Columns { columns })
    }
}

impl Columns {
    /// Parses one line. The first line can be a heading. A record without an operation is a read,
    /// and a record without a length is one page long.
    pub(crate) fn parse(&self, line: &[u8], unit: u64, is_first: bool) -> Result<Parsed, String> {
        let separators = |b: &u8| matches!(b, b',' | b';') || b.is_ascii_whitespace();
        let mut fields = line.split(separators).filter(|field| !field.is_empty());
        if is_first && is_heading(&self.holds(), &mut fields.clone()) {
            return Ok(Parsed::Ignored(Ignored::Heading));
        }
        let mut record = Record {
            time_ns: 0,
            op: Op::Read,
            offset_bytes: 0,
            length_bytes: unit,
        };
        for (number, column) in (1..).zip(&self.columns) {
            let field = fields.next().ok_or_else(|| format!("no column {number}"))?;
            self.apply(*column, field, unit, &mut record)
                .map_err(|what| format!("column {number}: {what}"))?;
        }
        length_is_possible(record.length_bytes)?;
        let end = record.offset_bytes.checked_add(record.length_bytes);
        end.ok_or("the end of the request overflows")?;
        Ok(Parsed::Record(record))
    }

    /// Returns the kind of content of each column.
    fn holds(&self) -> Vec<Holds> {
        let holds = |column: &Column| match column {
            Column::Ignored => Holds::Any,
            Column::Op => Holds::Type,
            Column::Time(_) | Column::Offset(_) | Column::Length(_) => Holds::Number,
        };
        self.columns.iter().map(holds).collect()
    }

    fn apply(
        &self,
        column: Column,
        field: &[u8],
        unit: u64,
        record: &mut Record,
    ) -> Result<(), String> {
        let count = || {
            let text = String::from_utf8_lossy(&field[..field.len().min(24)]).into_owned();
            whole(field).ok_or(format!("`{}` is not a number", text.escape_debug()))
        };
        match column {
            Column::Ignored => {}
            Column::Op => record.op = op_named(field)?,
            Column::Time(unit_ns) => {
                record.time_ns = time_of(field, unit_ns).ok_or("not a time")?;
            }
            Column::Offset(size) => {
                record.offset_bytes = bytes(count()?, size.unwrap_or(unit), "offset")?;
            }
            Column::Length(size) => {
                record.length_bytes = bytes(count()?, size.unwrap_or(unit), "length")?;
            }
        }
        Ok(())
    }
}
