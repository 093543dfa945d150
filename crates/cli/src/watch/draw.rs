//! Drawing of lines on the screen: text that is wrapped, and tables whose columns fit into the
//! width. Everything that does not fit is left out, so that no size of a terminal is an error.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

/// Draws `lines` from the top of `area` on. Returns the number of rows used.
pub(super) fn lines(buffer: &mut Buffer, area: Rect, lines: &[Line]) -> u16 {
    let shown = lines.iter().zip(area.top()..area.bottom());
    let mut used = 0;
    for (line, y) in shown {
        buffer.set_line(area.x, y, line, area.width);
        used += 1;
    }
    used
}

/// Draws `line` in the last row of `area`.
pub(super) fn last_line(buffer: &mut Buffer, area: Rect, line: &Line) {
    if let Some(y) = area.bottom().checked_sub(1).filter(|y| *y >= area.top()) {
        buffer.set_line(area.x, y, line, area.width);
    }
}

/// Marks a row as the selected one.
pub(super) fn select(line: &mut Line, width: u16) {
    let used = line.width();
    let rest = usize::from(width).saturating_sub(used);
    line.spans.push(Span::raw(" ".repeat(rest)));
    for span in &mut line.spans {
        span.style = span.style.add_modifier(Modifier::REVERSED);
    }
}

/// Breaks `text` between words into lines of at most `width` columns. Each line but the first has
/// `indent` columns less.
pub(super) fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut left = width;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        let line = lines.last_mut().expect("there is a line");
        let gap = usize::from(!line.is_empty());
        if length + gap <= left || line.is_empty() {
            if gap > 0 {
                line.push(' ');
            }
            line.push_str(word);
            left = left.saturating_sub(length + gap);
        } else {
            lines.push(word.to_owned());
            left = width.saturating_sub(indent + length);
        }
    }
    lines
}

/// Returns a word in a style, followed by a text that is wrapped to `width` columns, in at most
/// `rows` lines.
pub(super) fn heading(
    (word, style): (&str, Style),
    text: &str,
    width: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let word = format!(" {word} ");
    let indent = word.chars().count() + 1;
    let mut wrapped = wrap(text, width.saturating_sub(indent), 0);
    if wrapped.len() > rows {
        wrapped.truncate(rows);
        if let Some(last) = wrapped.last_mut() {
            let room = width.saturating_sub(indent + 3);
            let cut: String = last.chars().take(room).collect();
            *last = format!("{} ..", cut.trim_end());
        }
    }
    let mut lines = Vec::new();
    for (at, text) in wrapped.into_iter().enumerate() {
        let first = match at {
            0 => vec![Span::styled(word.clone(), style), Span::raw(" ")],
            _ => vec![Span::raw(" ".repeat(indent))],
        };
        let mut line = Line::from(first);
        line.push_span(Span::raw(text));
        lines.push(line);
    }
    lines
}

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) width: usize,
    pub(super) is_left: bool,
}

impl Column {
    pub(super) const fn left(name: &'static str, width: usize) -> Column {
        Column {
            name,
            width,
            is_left: true,
        }
    }

    pub(super) const fn right(name: &'static str, width: usize) -> Column {
        Column {
            name,
            width,
            is_left: false,
        }
    }
}

/// Returns the first columns that fit into `width`.
pub(super) fn fitting(columns: &[Column], width: usize) -> &[Column] {
    let mut used = 0;
    let fits = |column: &&Column| {
        used += column.width + 1;
        used <= width + 1
    };
    let count = columns.iter().take_while(fits).count();
    &columns[..count]
}

/// Returns the row of a table. Cells beyond the columns are left out, and so is what is longer than
/// its column.
pub(super) fn row(columns: &[Column], cells: &[(String, Style)]) -> Line<'static> {
    let mut line = Line::default();
    for (at, (column, (text, style))) in columns.iter().zip(cells).enumerate() {
        if at > 0 {
            line.push_span(Span::raw(" "));
        }
        let text: String = text.chars().take(column.width).collect();
        let gap = " ".repeat(column.width - text.chars().count());
        let (before, after) = match column.is_left {
            true => (String::new(), gap),
            false => (gap, String::new()),
        };
        line.push_span(Span::raw(before));
        line.push_span(Span::styled(text, *style));
        line.push_span(Span::raw(after));
    }
    line
}

/// Returns the headings of a table.
pub(super) fn headings(columns: &[Column], style: Style) -> Line<'static> {
    let names: Vec<(String, Style)> = columns
        .iter()
        .map(|column| (column.name.to_owned(), style))
        .collect();
    row(columns, &names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrap("one two three", 7, 0), ["one two", "three"]);
        assert_eq!(wrap("one two three", 9, 3), ["one two", "three"]);
        assert_eq!(wrap("longer-than-that x", 4, 0), ["longer-than-that", "x"]);
        assert_eq!(wrap("", 4, 0), [""]);
    }

    #[test]
    fn a_text_that_is_too_long_says_so() {
        let lines = heading(("slow", Style::new()), "a b c d e f g h", 12, 2);
        let text: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert_eq!(text, [" slow  a b c", "       d .."]);
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        let columns = [
            Column::left("a", 4),
            Column::right("b", 3),
            Column::right("c", 3),
        ];
        let count = |width| fitting(&columns, width).len();
        assert_eq!([0, 3, 4, 7, 8, 12].map(count), [0, 0, 1, 1, 2, 3]);
        let cells = ["ab", "1", "12345"].map(|text| (text.to_owned(), Style::new()));
        assert_eq!(row(&columns, &cells).to_string(), "ab     1 123");
    }
}
