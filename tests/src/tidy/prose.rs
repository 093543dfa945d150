//! Rules about prose, in comments as in pages.

use super::{Complaint, File, Tree};

/// Widest line of prose in columns, which is also that of code (`rustfmt.toml`).
const COLUMNS_MAX: usize = 100;

/// No line of a comment in Rust or of a page is wider than 100 columns. Code, tables, headings and
/// lines that cannot be broken may be.
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

/// Complains about the wide lines of a file. `prose` takes the marks of a comment off a line, and
/// returns none for a line of code, which ends whatever block the comment before it was in.
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

/// Where in a text a line is.
struct Block {
    /// Between two fences of code.
    is_fenced: bool,
    /// In lines indented by four columns, which are code after an empty line.
    is_indented: bool,
    /// The line before was empty, or there was none.
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
    /// Takes the next line, and returns whether it is one of prose.
    fn is_prose(&mut self, text: &str) -> bool {
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
