//! The rule about the words of this project. Only docs/glossary.md lists the terms and the words
//! that are refused in their place.

use std::collections::BTreeSet;

use super::prose::Block;
use super::{Complaint, File, Tree};
use crate::rust_text::code_only;

/// Page with the terms and the refused words.
const PAGE: &str = "docs/glossary.md";
/// Start of the glossary's paragraph that lists refused words outside of the table.
const MORE: &str = "Words that say nothing";

/// The words that the glossary refuses.
#[derive(Default)]
struct Refused {
    /// Refused words and phrases in lower case, each with a space before and after it. No comment
    /// and no page may contain them.
    phrases: BTreeSet<String>,
    /// The single words among `phrases`. A name in code must not have one of them as a part.
    words: BTreeSet<String>,
}

/// Complains about a comment or page that contains a refused word or phrase outside of code spans
/// and fences. Also complains about a name in code that has a refused word as a part, as in
/// `fold_upkeep` or `FoldUpkeep`.
pub fn old_terms(tree: &Tree) -> Vec<Complaint> {
    let page = tree.files.iter().find(|file| file.path == PAGE);
    let Some(refused) = page.map(|page| refused(&page.text)) else {
        return vec![format!("{PAGE}: missing")];
    };
    let mut complaints = Vec::new();
    if refused.words.is_empty() || refused.phrases.len() == refused.words.len() {
        complaints.push(format!("{PAGE}: no refused words, or no phrases"));
    }
    for file in tree.rust() {
        let comment = |line: &str| {
            let text = line.trim_start();
            let text = text
                .starts_with("//")
                .then(|| text.trim_start_matches(['/', '!']));
            text.map(str::trim).map(str::to_owned)
        };
        let lines: Vec<Option<String>> = file.text.lines().map(comment).collect();
        in_prose(file, &lines, &refused, &mut complaints);
        in_names(file, &refused, &mut complaints);
    }
    for file in tree.markdown().filter(|file| file.path != PAGE) {
        let mut block = Block::default();
        let prose = |line: &str| block.is_prose(line).then(|| line.trim().to_owned());
        let lines: Vec<Option<String>> = file.text.lines().map(prose).collect();
        in_prose(file, &lines, &refused, &mut complaints);
    }
    complaints
}

/// Returns the refused words of the glossary: the code spans in the last cell of each row, and
/// those in the paragraph about words that say nothing.
fn refused(page: &str) -> Refused {
    let mut found = Refused::default();
    let mut is_more = false;
    for line in page.lines() {
        is_more = line.starts_with(MORE) || (is_more && !line.is_empty());
        let cell = if is_more {
            Some(line)
        } else {
            let row = line.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
            row.and_then(|row| row.rsplit('|').next())
        };
        for span in cell
            .into_iter()
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        {
            let phrase = span.to_lowercase();
            if !phrase.contains(' ') {
                found.words.insert(phrase.clone());
            }
            found.phrases.insert(format!(" {phrase} "));
        }
    }
    found
}

/// Complains about refused words and phrases in the lines of a file. A line of code is `None`. A
/// phrase can begin in one line and end in the next.
fn in_prose(
    file: &File,
    lines: &[Option<String>],
    refused: &Refused,
    complaints: &mut Vec<Complaint>,
) {
    let mut is_fenced = false;
    for (at, line) in lines.iter().enumerate() {
        let Some(line) = line else {
            is_fenced = false;
            continue;
        };
        if line.starts_with("```") || line.starts_with("~~~") {
            is_fenced = !is_fenced;
            continue;
        }
        if is_fenced {
            continue;
        }
        let text = words_of(line);
        let next = lines.get(at + 1).and_then(Option::as_deref).map(words_of);
        let both = format!(" {text} {} ", next.unwrap_or_default());
        for phrase in &refused.phrases {
            let found = both.find(phrase.as_str());
            if found.is_some_and(|begin| begin < text.len()) {
                let (path, number, phrase) = (&file.path, at + 1, phrase.trim());
                complaints.push(format!("{path}:{number}: `{phrase}`; {PAGE} has the term"));
            }
        }
    }
}

/// Returns the words of a line in lower case with one space between them, without code spans and
/// punctuation.
fn words_of(line: &str) -> String {
    let prose: Vec<&str> = line.split('`').step_by(2).collect();
    let prose = prose.join(" . ").to_lowercase();
    let words = prose.split(|c: char| !(c.is_alphanumeric() || c == '\''));
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Complains about each name in code that has a refused word as a part.
fn in_names(file: &File, refused: &Refused, complaints: &mut Vec<Complaint>) {
    for (number, line) in (1..).zip(code_only(&file.text).lines()) {
        let names = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        for name in names.filter(|name| !name.is_empty()) {
            let old = parts(name)
                .into_iter()
                .find(|part| refused.words.contains(part));
            complaints.extend(old.map(|part| {
                let path = &file.path;
                format!("{path}:{number}: `{part}` in the name `{name}`; {PAGE} has the term")
            }));
        }
    }
}

/// Returns the parts of a name in lower case: `fold_upkeep`, `FoldUpkeep` and `FOLD_UPKEEP` have
/// the parts `fold` and `upkeep`.
fn parts(name: &str) -> Vec<String> {
    let is_upper = name.chars().all(|c| !c.is_lowercase());
    let mut parts = vec![String::new()];
    for c in name.chars() {
        let begins = c == '_' || (c.is_uppercase() && !is_upper);
        if begins && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| c != '_') {
            part.extend(c.to_lowercase());
        }
    }
    parts
}
