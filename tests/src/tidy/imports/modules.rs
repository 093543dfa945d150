//! The modules of one crate, and the resolution of paths to modules, also through re-exports.

use std::collections::{BTreeMap, BTreeSet};

use super::Path;
use super::source::{self, Brought, Named, Source};
use crate::tidy::Tree;

/// Maximum number of re-exports through which a name is followed. A longer chain is treated as a
/// cycle: the name is not followed further.
const MOST_STEPS: usize = 8;

/// One import: the importing module, the imported module, and the place of the import.
#[derive(Clone, Debug)]
pub struct Import {
    /// The module that contains the import.
    pub from: Path,
    /// The module that is imported.
    pub to: Path,
    /// The file and line of the import.
    pub place: String,
}

/// The modules of one crate.
pub struct Modules {
    files: Vec<(String, Source)>,
    modules: BTreeSet<Path>,
    /// Imported paths, by the importing module and the name of the import.
    names: BTreeMap<(Path, String), Vec<Named>>,
    /// Glob imports (`use path::*`) of each module.
    globs: BTreeMap<Path, Vec<Named>>,
    items: BTreeSet<(Path, String)>,
}

impl Modules {
    /// Reads the files of a crate, except those for tests only.
    pub fn of_crate(tree: &Tree, name: &str) -> Self {
        let root = format!("crates/{name}/src/");
        let mut files: Vec<(String, Source)> = Vec::new();
        for file in tree.rust() {
            if let Some(inside) = file.path.strip_prefix(&root) {
                files.push((
                    file.path.clone(),
                    source::read(&module_of(inside), &file.text),
                ));
            }
        }
        let tests: BTreeSet<Path> = files.iter().flat_map(|(_, s)| s.tests.clone()).collect();
        files.retain(|(_, source)| {
            let module = &source.modules[0];
            !(0..=module.len()).any(|length| tests.contains(&module[..length]))
        });
        let mut read = Self {
            files: Vec::new(),
            modules: BTreeSet::new(),
            names: BTreeMap::new(),
            globs: BTreeMap::new(),
            items: BTreeSet::new(),
        };
        for (_, source) in &files {
            read.note(source);
        }
        read.files = files;
        read
    }

    fn note(&mut self, source: &Source) {
        for module in &source.modules {
            let prefixes = (1..=module.len()).map(|length| module[..length].to_vec());
            self.modules.extend(prefixes);
        }
        self.items.extend(source.items.iter().cloned());
        for Brought { named, name } in &source.brought {
            let module = named.module.clone();
            let known = match name.as_str() {
                _ if named.all => self.globs.entry(module).or_default(),
                name => self.names.entry((module, name.to_owned())).or_default(),
            };
            known.push(named.clone());
        }
    }

    /// Returns the parts of `folder`: the modules directly inside it.
    pub fn parts(&self, folder: &[String]) -> BTreeSet<String> {
        let inside = self.modules.iter().filter_map(|m| m.strip_prefix(folder));
        inside.filter_map(|rest| rest.first().cloned()).collect()
    }

    /// Returns every import of the crate, except imports between a module and the modules inside
    /// it. So a module is allowed to import the folder that contains the module.
    pub fn imports(&self) -> Vec<Import> {
        let mut found = Vec::new();
        for (file, source) in &self.files {
            let brought = source.brought.iter().map(|b| &b.named);
            for named in brought.chain(&source.paths) {
                let targets = self.targets(named);
                for to in targets {
                    let nested = named.module.starts_with(&to) || to.starts_with(&named.module);
                    if !nested {
                        let (from, place) =
                            (named.module.clone(), format!("{file}:{}", named.line));
                        found.push(Import { from, to, place });
                    }
                }
            }
        }
        found
    }

    /// Returns the modules to which a path leads. A glob import of an enclosing folder leads to the
    /// folder and also to the modules from which the folder imports names.
    fn targets(&self, named: &Named) -> BTreeSet<Path> {
        let mut targets = BTreeSet::new();
        self.follow(named, MOST_STEPS, &mut targets);
        if named.all {
            let folder =
                |module: &Path| targets.contains(module) && named.module.starts_with(module);
            let names = self.names.iter().filter(|((module, _), _)| folder(module));
            for known in names.flat_map(|(_, known)| known).collect::<Vec<_>>() {
                self.follow(known, MOST_STEPS, &mut targets);
            }
        }
        targets
    }

    /// Resolves a path, and adds the modules to which it leads to `targets`: the module that
    /// defines the item of the path, and the modules that re-export this item.
    fn follow(&self, named: &Named, steps: usize, targets: &mut BTreeSet<Path>) {
        if steps == 0 {
            return;
        }
        let Some((mut base, parts)) = self.start(named, steps, targets) else {
            return;
        };
        for (at, part) in parts.iter().enumerate() {
            let mut inner = base.clone();
            inner.push(part.clone());
            if self.modules.contains(&inner) {
                base = inner;
                continue;
            }
            for mut known in self.brought_as(&base, part, steps) {
                known.path.extend_from_slice(&parts[at + 1..]);
                self.follow(&known, steps - 1, targets);
            }
            break;
        }
        targets.insert(base);
    }

    /// Returns the module at which a path starts, and the rest of the path. Returns `None` if the
    /// path leads out of the crate. Also returns `None` if the path starts with an imported name;
    /// the function then follows the import and adds the modules found to `targets`.
    fn start<'a>(
        &self,
        named: &'a Named,
        steps: usize,
        targets: &mut BTreeSet<Path>,
    ) -> Option<(Path, &'a [String])> {
        let mut parts = &named.path[..];
        let first = parts.first()?;
        let mut base = named.module.clone();
        match first.as_str() {
            "crate" => base.clear(),
            "self" | "super" => {}
            _ => {
                let mut inner = base.clone();
                inner.push(first.clone());
                if !self.modules.contains(&inner) {
                    for known in self.names.get(&(base, first.clone())).into_iter().flatten() {
                        let mut path = known.path.clone();
                        path.extend_from_slice(&parts[1..]);
                        let further = Named {
                            path,
                            ..known.clone()
                        };
                        // If the import leads to the same path again, as `use serde;` does, the
                        // name is that of an external crate, and there is no module to follow.
                        if further.path != named.path {
                            self.follow(&further, steps - 1, targets);
                        }
                    }
                    return None;
                }
            }
        }
        while let Some((part, rest)) = parts.split_first() {
            match part.as_str() {
                "super" => _ = base.pop()?,
                "crate" | "self" => {}
                _ => break,
            }
            parts = rest;
        }
        Some((base, parts))
    }

    /// Returns the paths that a module imports as `name`; none if the module itself defines `name`.
    fn brought_as(&self, module: &Path, name: &str, steps: usize) -> Vec<Named> {
        let key = (module.clone(), name.to_owned());
        if self.items.contains(&key) {
            return Vec::new();
        }
        if let Some(known) = self.names.get(&key) {
            return known.clone();
        }
        let globs = self.globs.get(module).into_iter().flatten();
        let exporting = globs.filter(|glob| self.exports(glob, name, steps - 1));
        let with_name = |glob: &Named| {
            let mut named = glob.clone();
            named.path.push(name.to_owned());
            named.all = false;
            named
        };
        exporting.map(with_name).collect()
    }

    /// Returns whether the module to which `glob` leads defines or imports `name`.
    fn exports(&self, glob: &Named, name: &str, steps: usize) -> bool {
        let mut targets = BTreeSet::new();
        self.follow(glob, steps, &mut targets);
        targets.into_iter().any(|target| {
            let key = (target, name.to_owned());
            self.items.contains(&key) || self.names.contains_key(&key)
        })
    }
}

/// Returns the module of a file, as a path from the root of its crate.
fn module_of(inside: &str) -> Path {
    let inside = inside.trim_end_matches(".rs");
    let mut parts: Path = inside.split('/').map(str::to_owned).collect();
    let is_folder = |last: &mut String| *last == "mod";
    let is_root = parts.len() == 1 && ["lib", "main"].contains(&parts[0].as_str());
    if is_root || parts.last_mut().is_some_and(is_folder) {
        parts.pop();
    }
    parts
}
