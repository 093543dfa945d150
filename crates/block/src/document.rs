//! A configuration file parsed into sections that remember their positions in the text, so that
//! every error names a line and a column.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Kinds of sections that carry a name, as in `[device.fast]`.
const NAMED: [&str; 2] = ["device", "export"];
/// Kinds of sections that occur once, without a name, as in `[server]`.
const SINGLE: [&str; 2] = ["server", "tls"];

/// A mistake in a configuration: one line that gives its position and describes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {message}", path.display())]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Description of the mistake and of the text that is expected.
    pub message: String,
}

#[derive(Clone, Copy)]
struct Source<'t> {
    path: &'t Path,
    text: &'t str,
}

/// A parsed configuration file: sections by kind and name.
#[derive(Clone)]
pub struct Document<'t> {
    source: Source<'t>,
    named: BTreeMap<String, BTreeMap<String, Section<'t>>>,
    single: BTreeMap<String, Section<'t>>,
}

/// One section of a file.
#[derive(Clone)]
pub struct Section<'t> {
    source: Source<'t>,
    title: String,
    span: Range<usize>,
    table: DeTable<'t>,
}

/// Reads the text of a configuration file.
///
/// # Errors
/// When the file cannot be read.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|e| ConfigError {
        path: path.to_owned(),
        line: 1,
        column: 1,
        message: format!("cannot read the configuration: {e}"),
    })
}

impl<'t> Document<'t> {
    /// Parses `text`, the content of the file at `path`.
    ///
    /// # Errors
    /// When the text is not TOML, or has an unknown kind of section.
    pub fn parse(path: &'t Path, text: &'t str) -> Result<Document<'t>, ConfigError> {
        let source = Source { path, text };
        let root = DeTable::parse(text).map_err(|e| source.toml_error(&e))?;
        let mut document = Document {
            source,
            named: BTreeMap::new(),
            single: BTreeMap::new(),
        };
        for (key, value) in root.into_inner() {
            let (name, span) = (key.get_ref().to_string(), key.span());
            let table = source.table(&name, span.clone(), value)?;
            if NAMED.contains(&name.as_str()) {
                let sections = source.named_sections(&name, table)?;
                document.named.insert(name, sections);
            } else if SINGLE.contains(&name.as_str()) {
                let section = Section {
                    source,
                    title: format!("[{name}]"),
                    span,
                    table,
                };
                document.single.insert(name, section);
            } else {
                let expected = "expected [device.NAME], [export.NAME], [server] or [tls]";
                return Err(source.error(&span, format!("unknown section `{name}`, {expected}")));
            }
        }
        Ok(document)
    }

    /// Returns the sections `[kind.NAME]`, each with its name.
    pub fn named(&self, kind: &str) -> impl Iterator<Item = (&str, &Section<'t>)> {
        self.named
            .get(kind)
            .into_iter()
            .flatten()
            .map(|(name, s)| (name.as_str(), s))
    }

    /// Returns the section `[name]`, if the file has it.
    pub fn single(&self, name: &str) -> Option<&Section<'t>> {
        self.single.get(name)
    }

    /// Returns the path of the configuration file.
    pub fn path(&self) -> &'t Path {
        self.source.path
    }

    /// Returns an error about the file as a whole.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(&(0..0), message.into())
    }
}

impl<'t> Source<'t> {
    fn error(&self, span: &Range<usize>, message: String) -> ConfigError {
        let before = &self.text[..span.start.min(self.text.len())];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ConfigError {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        }
    }

    fn toml_error(&self, error: &toml::de::Error) -> ConfigError {
        let message = error.message().replace('\n', " ");
        self.error(&error.span().unwrap_or(0..0), message)
    }

    fn table(
        &self,
        name: &str,
        span: Range<usize>,
        value: Spanned<DeValue<'t>>,
    ) -> Result<DeTable<'t>, ConfigError> {
        match value.into_inner() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.error(&span, format!("`{name}` must be a section"))),
        }
    }

    fn named_sections(
        &self,
        kind: &str,
        table: DeTable<'t>,
    ) -> Result<BTreeMap<String, Section<'t>>, ConfigError> {
        let mut sections = BTreeMap::new();
        for (key, value) in table {
            let (name, span) = (key.get_ref().to_string(), key.span());
            let table = self.table(&format!("{kind}.{name}"), span.clone(), value)?;
            let title = format!("[{kind}.{name}]");
            sections.insert(
                name,
                Section {
                    source: *self,
                    title,
                    span,
                    table,
                },
            );
        }
        Ok(sections)
    }
}

/// Keys that have been renamed: the old name, and the new name.
const RENAMED: [(&str, &str); 1] = [("places", "tags")];

/// If the unknown key that `message` reports has been renamed, returns a message with the new name.
/// Otherwise returns `message` unchanged.
fn with_new_name(message: String) -> String {
    let renamed = RENAMED
        .iter()
        .find(|(old, _)| message.starts_with(&format!("unknown field `{old}`")));
    match renamed {
        Some((old, new)) => format!("`{old}` is now called `{new}`"),
        None => message,
    }
}

impl Section<'_> {
    /// Removes `key` from the section and returns its value, which must be text.
    pub fn take_text(&mut self, key: &str) -> Result<String, ConfigError> {
        match self.table.remove(key) {
            Some(value) => match value.get_ref() {
                DeValue::String(text) => Ok(text.to_string()),
                _ => Err(self
                    .source
                    .error(&value.span(), format!("`{key}` must be text"))),
            },
            None => Err(self.error(format!("{} needs a `{key}`", self.title))),
        }
    }

    /// Removes `key` from the section and returns its boolean value; false if the key is absent.
    pub fn take_flag(&mut self, key: &str) -> Result<bool, ConfigError> {
        match self.table.remove(key) {
            None => Ok(false),
            Some(value) => match value.get_ref() {
                DeValue::Boolean(flag) => Ok(*flag),
                _ => {
                    let message = format!("`{key}` must be true or false");
                    Err(self.source.error(&value.span(), message))
                }
            },
        }
    }

    /// Deserializes the whole section into a typed configuration.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, ConfigError> {
        let Section {
            source,
            title,
            span,
            table,
        } = self;
        let deserializer = toml::de::Deserializer::from(Spanned::new(span.clone(), table));
        T::deserialize(deserializer).map_err(|error| {
            let place = error.span().filter(|s| s.end > 0).unwrap_or(span);
            let message = with_new_name(error.message().replace('\n', " "));
            source.error(&place, format!("{message} in {title}"))
        })
    }

    /// Moves the given keys into a separate section, so that different code can read the other
    /// keys.
    pub fn split_off(&mut self, keys: &[&str]) -> Self {
        let mut taken = self.clone();
        let table = std::mem::take(&mut self.table);
        (taken.table, self.table) = table
            .into_iter()
            .partition(|(key, _)| keys.contains(&key.get_ref().as_ref()));
        taken
    }

    /// Returns an error at the position of `key` in this section, or at the section itself if it
    /// has no such key.
    pub fn error_at(&self, key: &str, message: impl Into<String>) -> ConfigError {
        let found = self.table.iter().find(|(k, _)| k.get_ref().as_ref() == key);
        let span = found.map_or_else(|| self.span.clone(), |(k, _)| k.span());
        let message = format!("{} in {}", message.into(), self.title);
        self.source.error(&span, message)
    }

    /// Returns an error about this section.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        self.source.error(&self.span, message.into())
    }

    /// Resolves a path of the configuration: a relative path starts at the directory of the
    /// configuration file.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        resolve(self.source.path, path)
    }
}

/// Resolves `path` relative to the directory of the configuration file.
pub fn resolve(config: &Path, path: &Path) -> PathBuf {
    config
        .parent()
        .map_or_else(|| path.to_owned(), |directory| directory.join(path))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::units::Size;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        bytes: Size,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        size: Size,
        inner: Option<Inner>,
    }

    fn read(body: &str) -> Result<Sample, String> {
        let text = format!("# first line\n[device.a]\n{body}\n");
        let document = Document::parse(Path::new("c.toml"), &text).map_err(|e| e.to_string())?;
        let (_, section) = document
            .named("device")
            .next()
            .expect("the section is there");
        section.clone().read().map_err(|e| e.to_string())
    }

    #[test]
    fn mistakes_have_a_place() {
        assert_eq!(read("size = \"1MiB\"").unwrap().size, Size(1 << 20));
        for (body, place, word) in [
            ("size = \"1MiB\"\nsise = 3", "c.toml:4:1:", "sise"),
            ("size = \"1Mib\"", "c.toml:3:8:", "1Mib"),
            ("size = 5", "c.toml:3:8:", "integer"),
            (
                "size = \"1B\"\ninner = { bytes = \"1B\", byts = 1 }",
                "c.toml:4:25:",
                "byts",
            ),
            (
                "size = \"1MiB\"\nplaces = 3",
                "c.toml:4:1:",
                "`places` is now called `tags`",
            ),
            ("", "c.toml:2:9:", "missing field `size`"),
            ("size = ", "c.toml:3:8:", ""),
            ("size = \"1B\"\nsize = \"1B\"", "c.toml:4:1:", "duplicate"),
        ] {
            let message = read(body).unwrap_err();
            assert!(
                message.starts_with(place) && message.contains(word),
                "{message}"
            );
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn only_known_sections_are_taken() {
        for text in ["[devices.a]\n", "device = 3\n", "[device]\na = 3\n"] {
            assert!(
                Document::parse(Path::new("c.toml"), text).is_err(),
                "{text}"
            );
        }
    }
}
