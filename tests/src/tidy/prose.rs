//! Rules about prose, in comments and in pages.

use super::{Complaint, File, Tree};

/// Maximum width of a line of prose in columns; the same as that of code (`rustfmt.toml`).
const COLUMNS_MAX: usize = 100;

/// Complains about a line of a Rust comment or of a page that is wider than 100 columns. Code,
/// tables, headings and lines that cannot be broken may be wider.
pub fn prose_columns(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.rust() {
        wide_lines(file, &mut complaints, |line| {
            let text = line.trim_start();
            text.starts_with("//")
                .then(|| text.trim_start_matches(['/', '!']))
                .map(|text| text.strip_prefix(' ').unwrap_or(text))
        });
    }
    for file in tree.markdown() {
        wide_lines(file, &mut complaints, Some);
    }
    complaints
}

/// Complains about the wide lines of a file. `prose` strips the comment marks from a line, and
/// returns `None` for a line of code, which ends the comment block before it.
fn wide_lines<'a>(
    file: &'a File,
    complaints: &mut Vec<Complaint>,
    prose: impl Fn(&'a str) -> Option<&'a str>,
) {
    let mut block = Block::default();
    for (number, line) in (1..).zip(file.text.lines()) {
        let Some(text) = prose(line) else {
            block = Block::default();
            continue;
        };
        let columns = line.chars().count();
        if block.is_prose(text) && columns > COLUMNS_MAX && text.trim().contains(' ') {
            let path = &file.path;
            complaints.push(format!("{path}:{number}: {columns} columns of prose"));
        }
    }
}

/// Position of a line in the structure of a text.
pub(super) struct Block {
    /// The line is between two code fences.
    is_fenced: bool,
    /// The line belongs to a block indented by four columns, which is code if it follows an empty
    /// line.
    is_indented: bool,
    /// The line before was empty, or there was no line before.
    is_after_empty: bool,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            is_fenced: false,
            is_indented: false,
            is_after_empty: true,
        }
    }
}

impl Block {
    /// Advances by one line, and returns whether the line is prose.
    pub(super) fn is_prose(&mut self, text: &str) -> bool {
        let trimmed = text.trim();
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            self.is_fenced = !self.is_fenced;
            return false;
        }
        if trimmed.is_empty() {
            self.is_after_empty = true;
            return false;
        }
        let may_begin = self.is_after_empty || self.is_indented;
        self.is_indented = may_begin && text.starts_with("    ");
        self.is_after_empty = false;
        !self.is_fenced && !self.is_indented && !trimmed.starts_with(['|', '#'])
    }
}
