//! Rules about prose, in comments and in pages.

use super::{Complaint, File, Tree};

/// Maximum width of a line of prose in columns. It equals the maximum width of a line of code
/// (`rustfmt.toml`).
const COLUMNS_MAX: usize = 100;

/// Complains about a line of a Rust comment or of a page that is wider than 100 columns. The rule
/// does not apply to code, tables, headings and lines that cannot be broken.
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

/// Adds a complaint for each line of prose in `file` that is too wide. `prose` strips the comment
/// marks from a line. It returns `None` for a line of code, which ends the comment block before it.
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

/// State of the parser between two lines of a text, which decides whether the next line is prose.
pub(super) struct Block {
    /// Whether the position is between two code fences.
    is_fenced: bool,
    /// Whether the last line belongs to a code block: a block that is indented by four columns and
    /// follows an empty line.
    is_indented: bool,
    /// Whether the last line is empty, or there is no line yet.
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
    /// Advances the state by the line `text`, and returns whether that line is prose.
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
