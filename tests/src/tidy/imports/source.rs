//! The references of one Rust file to other modules: the paths that it names, in `use` and
//! elsewhere in code, the names that it imports, and the items that it defines. Code under
//! `#[cfg(test)]` is ignored.

use crate::rust_text::code_only;

use super::Path;

/// A path as the source spells it, with the module in which it occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The module in which the path occurs.
    pub module: Path,
    /// The parts of the path, including `crate`, `self` and `super`.
    pub path: Path,
    /// Whether the source has the glob `path::*`.
    pub all: bool,
    /// The line, counted from 1.
    pub line: usize,
}

/// A name that a module imports, as by `use path as name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brought {
    /// The imported path.
    pub named: Named,
    /// The name of the import in the importing module; `*` for a glob.
    pub name: String,
}

/// All module references of one file.
#[derive(Debug, Default)]
pub struct Source {
    /// The module of the file, and the inline modules in the file.
    pub modules: Vec<Path>,
    /// Paths in code that begin with `crate`, `self` or `super`, outside `use`.
    pub paths: Vec<Named>,
    /// Names that `use` imports into the modules of the file.
    pub brought: Vec<Brought>,
    /// Items that the modules of the file define, each with its module.
    pub items: Vec<(Path, String)>,
    /// Modules that are declared under `#[cfg(test)]`.
    pub tests: Vec<Path>,
}

/// Returns the module references in `text`, the content of the file of `module`.
pub fn read(module: &Path, text: &str) -> Source {
    let mut reader = Reader {
        tokens: tokens_of(&code_only(text)),
        at: 0,
        depth: 0,
        open: Vec::new(),
        root: module.clone(),
        source: Source::default(),
    };
    reader.source.modules.push(module.clone());
    while reader.at < reader.tokens.len() {
        reader.step();
    }
    reader.source
}

/// A word or a punctuation token, with its line.
struct Token {
    text: String,
    line: usize,
}

/// Splits code into words, `::`, and single punctuation characters.
fn tokens_of(code: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let length = match word.unwrap_or(rest.len()) {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                word => word,
            };
            let text = rest[..length].to_owned();
            tokens.push(Token { text, line });
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    /// Number of open braces.
    depth: usize,
    /// Inline modules that contain the current position. Each has the brace depth of its content
    /// and its name.
    open: Vec<(usize, String)>,
    /// The module of the file.
    root: Path,
    source: Source,
}

impl Reader {
    /// Returns the text of the token that is `ahead` tokens after the current one; empty after the
    /// last token.
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |t| &t.text)
    }

    fn module(&self) -> Path {
        let open = self.open.iter().map(|(_, name)| name.clone());
        self.root.iter().cloned().chain(open).collect()
    }

    fn step(&mut self) {
        match self.peek(0) {
            "#" => self.attribute(),
            "{" => {
                self.depth += 1;
                self.at += 1;
            }
            "}" => {
                if self
                    .open
                    .last()
                    .is_some_and(|(depth, _)| *depth == self.depth)
                {
                    self.open.pop();
                }
                self.depth = self.depth.saturating_sub(1);
                self.at += 1;
            }
            // `pub(in crate::layers)` contains a path, but is a visibility and not an import.
            "pub" if self.peek(1) == "(" => self.skip_group(1),
            "mod" if is_word(self.peek(1)) => self.inner_module(),
            // `use<'a>` lists the lifetimes that a type captures, and imports no name.
            "use" if self.peek(1) != "<" => self.import(),
            "crate" | "self" | "super" if self.peek(1) == "::" => self.path(),
            "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" => {
                if is_word(self.peek(1)) {
                    let item = (self.module(), self.peek(1).to_owned());
                    self.source.items.push(item);
                }
                self.at += 1;
            }
            _ => self.at += 1,
        }
    }

    /// Moves past the group in brackets or braces whose opening token is `ahead` tokens after the
    /// current one.
    fn skip_group(&mut self, ahead: usize) {
        self.at += ahead;
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Moves past an attribute. If the attribute is `#[cfg(test)]` or `#[cfg(all(test, ..))]`, also
    /// moves past the item after it.
    fn attribute(&mut self) {
        let start = self.at;
        // The attribute `#![..]` applies to the enclosing item.
        let inner = self.peek(1) == "!";
        self.skip_group(if inner { 2 } else { 1 });
        let words: String = self.tokens[start..self.at]
            .iter()
            .map(|t| t.text.as_str())
            .collect();
        if words == "#[cfg(test)]" || words.starts_with("#[cfg(all(test,") {
            self.skip_item();
        }
    }

    /// Moves past an item, a field or a statement that exists for tests only.
    fn skip_item(&mut self) {
        while self.peek(0) == "#" {
            self.skip_group(1);
        }
        let name = (0..8)
            .take_while(|ahead| !["{", ";", "="].contains(&self.peek(*ahead)))
            .find(|ahead| self.peek(*ahead) == "mod")
            .map(|ahead| self.peek(ahead + 1).to_owned());
        if let Some(name) = name {
            let mut module = self.module();
            module.push(name);
            self.source.tests.push(module);
        }
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "{" => return self.skip_group(0),
                "(" | "[" => self.skip_group(0),
                ";" | "," => {
                    self.at += 1;
                    return;
                }
                "}" => return,
                _ => self.at += 1,
            }
        }
    }

    /// Reads `mod name;` or `mod name {`.
    fn inner_module(&mut self) {
        if self.peek(2) == "{" {
            self.open.push((self.depth + 1, self.peek(1).to_owned()));
            let module = self.module();
            self.source.modules.push(module);
        }
        self.at += 2;
    }

    /// Reads a path outside `use`.
    fn path(&mut self) {
        let line = self.tokens[self.at].line;
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_word(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        let module = self.module();
        self.source.paths.push(Named {
            module,
            path,
            all: false,
            line,
        });
    }

    /// Reads a `use` with all of its imports.
    fn import(&mut self) {
        self.at += 1;
        self.branch(&[]);
    }

    /// Reads one branch of a `use`. `before` is the part of the path that precedes the branch.
    fn branch(&mut self, before: &[String]) {
        let line = self.tokens.get(self.at).map_or(0, |t| t.line);
        let mut path = before.to_vec();
        loop {
            match self.peek(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.peek(0)) {
                        self.branch(&path);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    return self.bring(path, "*".to_owned(), line);
                }
                "as" => {
                    let name = self.peek(1).to_owned();
                    self.at += 2;
                    return self.bring(path, name, line);
                }
                word if is_word(word) => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => {
                    // `use a::{self}` imports `a`.
                    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    let name = path.last().cloned().unwrap_or_default();
                    // The token belongs to no path, so it is skipped.
                    if ![",", "}", ";", ""].contains(&self.peek(0)) {
                        self.at += 1;
                    }
                    return self.bring(path, name, line);
                }
            }
        }
    }

    fn bring(&mut self, path: Path, name: String, line: usize) {
        let module = self.module();
        let all = name == "*";
        let named = Named {
            module,
            path,
            all,
            line,
        };
        self.source.brought.push(Brought { named, name });
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
