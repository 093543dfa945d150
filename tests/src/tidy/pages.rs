//! Rules about the pages: code blocks end, links resolve, and TOML examples parse.

use super::{Complaint, File, Tree};

/// Complains about a page with an odd number of lines that begin or end a code block. Such a page
/// would show the rest of its text as code.
pub fn code_blocks_end(tree: &Tree) -> Vec<Complaint> {
    let is_odd = |file: &&File| {
        let fences = file.text.lines().filter(|line| is_fence(line));
        fences.count() % 2 == 1
    };
    let odd = tree.markdown().filter(is_odd);
    odd.map(|file| format!("{}: a code block has no beginning or no end", file.path))
        .collect()
}

fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Complains about a relative link of a page that leads to no file or folder of the tree.
pub fn links_resolve(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.markdown() {
        for (number, line) in prose(file) {
            for target in link_targets(line) {
                let target = target.split('#').next().unwrap_or("");
                let elsewhere = target.contains("://") || target.starts_with("mailto:");
                if elsewhere || target.is_empty() {
                    continue;
                }
                let resolved = resolve(&file.path, target);
                if !resolved.as_deref().is_some_and(|path| tree.holds(path)) {
                    complaints.push(format!("{}:{number}: {target} leads nowhere", file.path));
                }
            }
        }
    }
    complaints
}

/// Returns the lines of a page outside its code blocks, numbered from 1.
fn prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(file.text.lines()).filter(move |(_, line)| {
        let fence = is_fence(line);
        in_code ^= fence;
        !in_code && !fence
    })
}

/// Returns the target of each link `[text](target)` in a line.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
}

/// Returns the path, relative to the root of the tree, to which a link in `page` leads; `None` if
/// it leads out of the tree.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Complains about a block fenced as `toml` in a page that does not parse as TOML.
pub fn toml_examples_parse(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.markdown() {
        for (line, text) in toml_blocks(&file.text) {
            if let Err(e) = text.parse::<toml::Table>() {
                complaints.push(format!("{}:{line}: {}", file.path, e.message()));
            }
        }
    }
    complaints
}

/// Returns the blocks fenced as `toml`, each with the number of its first line.
pub fn toml_blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(page.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, text)), None) => *text += &format!("{line}\n"),
            (None, Some(word)) if word.trim() == "toml" => open = Some((number, String::new())),
            (None, _) => {}
        }
    }
    // A block that is not closed by a fence is still an example.
    blocks.extend(open);
    blocks
}
