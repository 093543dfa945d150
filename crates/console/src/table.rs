//! Text tables for terminals and pipes. Each column is as wide as its widest cell, and numbers are
//! aligned right. The caller can add colours to cells; the width of a cell counts only visible
//! characters.

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left, for words.
    Left,
    /// Right, for numbers.
    Right,
}

/// A table that consists of a line of headings and rows.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these headings and no rows.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table {
            columns: columns
                .iter()
                .map(|(name, align)| ((*name).to_owned(), *align))
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, which must have one cell for every column.
    ///
    /// # Panics
    /// If the number of cells differs from the number of columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(
            cells.len(),
            self.columns.len(),
            "a row has a cell for every column"
        );
        self.rows.push(cells);
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines of the table, with the headings first. No line ends with blanks.
    pub fn lines(&self) -> Vec<String> {
        let headings = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&headings).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| {
                all.iter()
                    .map(|row| seen_width(&row[at]))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        all.iter().map(|row| self.line(row, &widths)).collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            let gap = " ".repeat(width - seen_width(cell));
            match align {
                Align::Left => line.extend([cell.as_str(), &gap]),
                Align::Right => line.extend([gap.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Returns the number of visible characters of `text`, without its colour sequences (ESC [ .. m).
pub fn seen_width(text: &str) -> usize {
    let mut width = 0;
    let mut in_sequence = false;
    for c in text.chars() {
        match c {
            '\u{1b}' => in_sequence = true,
            'm' if in_sequence => in_sequence = false,
            _ if in_sequence => {}
            _ => width += 1,
        }
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("device", Align::Left), ("ops", Align::Right)]);
        table.row(vec!["a".into(), "12345".into()]);
        table.row(vec!["longer name".into(), "1".into()]);
        assert_eq!(
            table.lines(),
            [
                "device         ops",
                "a            12345",
                "longer name      1",
            ]
        );
    }

    #[test]
    fn colours_take_no_room_and_lines_no_trailing_space() {
        let mut table = Table::new(&[("a", Align::Left), ("b", Align::Left)]);
        table.row(vec!["\u{1b}[31mred\u{1b}[0m".into(), "x".into()]);
        table.row(vec!["plain".into(), String::new()]);
        let lines = table.lines();
        assert_eq!(lines[0], "a      b");
        assert_eq!(lines[1], "\u{1b}[31mred\u{1b}[0m    x");
        assert_eq!(lines[2], "plain");
    }

    #[test]
    #[should_panic(expected = "a cell for every column")]
    fn a_row_must_fit() {
        Table::new(&[("a", Align::Left)]).row(Vec::new());
    }
}
