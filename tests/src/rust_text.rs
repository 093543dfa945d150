//! Rust source whose comments and literals are replaced by spaces.
//!
//! A rule about calls must not complain about a comment or a message that names the call, so the
//! rules of [`crate::tidy`] examine the result of [`code_only`]. The lexer serves only this
//! purpose: it knows comments, strings and character literals, and no other part of the language.

/// Returns the text with every character inside comments, strings and character literals replaced
/// by a space. Line breaks stay, so that line numbers do not change.
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        out.extend(
            chars[at..end]
                .iter()
                .map(|c| if *c == '\n' { '\n' } else { ' ' }),
        );
        at = end;
    }
    out
}

/// Returns the end of the comment or literal that starts at `at`, or `at` if none starts there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |c| c == '\n'),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if !in_word => raw_string_end(chars, at + 1).unwrap_or(at),
        'b' if !in_word && next == Some('r') => raw_string_end(chars, at + 2).unwrap_or(at),
        '\'' => char_end(chars, at),
        _ => at,
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len())
        .find(|i| wanted(chars[*i]))
        .unwrap_or(chars.len())
}

/// Returns the end of a block comment; block comments nest.
fn block_comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0, from);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Returns the end of a raw string whose hashes start at `from`, or `None` if the text is a word
/// that begins with r and not a raw string.
fn raw_string_end(chars: &[char], from: usize) -> Option<usize> {
    let open = find(chars, from, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let hashes = open - from;
    let closes = |i: usize| {
        chars[i] == '"'
            && chars[i + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes
    };
    let quote = (open + 1..chars.len()).find(|i| closes(*i));
    Some(quote.map_or(chars.len(), |i| i + 1 + hashes))
}

/// Returns the end of a character literal, or `at` for a lifetime, which has no closing quote.
fn char_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => (find(chars, at + 3, |c| c == '\'') + 1).min(chars.len()),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::code_only;

    #[test]
    fn comments_and_literals_go_and_code_stays() {
        let text = "a(); // b()\nlet c = \"d() \\\" e()\"; /* f() /* g() */ h() */ i();";
        let code = code_only(text);
        for gone in ["b()", "d()", "e()", "f()", "g()", "h()"] {
            assert!(!code.contains(gone), "{gone} in {code}");
        }
        for kept in ["a();", "let c =", "i();"] {
            assert!(code.contains(kept), "{kept} not in {code}");
        }
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn raw_strings_characters_and_lifetimes() {
        let code = code_only("r#\"x\" y\"# br\"z\" '\"' '\\'' '\\u{41}' &'a str \"q\" for_r(w)");
        for gone in ["x", "y", "z", "41", "q"] {
            assert!(!code.contains(gone), "{gone} in {code}");
        }
        for kept in ["&'a str", "for_r(w)"] {
            assert!(code.contains(kept), "{kept} not in {code}");
        }
    }
}
