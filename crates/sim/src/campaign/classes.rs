//! Sets of fault classes for any tester, with their textual form on a command line.

use std::marker::PhantomData;

use serde::{Serialize, Serializer};

/// A class of faults or of checks that can be switched on and off.
pub trait FaultClass: Copy + 'static {
    /// Returns all classes, at most 32.
    fn all() -> &'static [Self];

    /// Returns the classes that the tested program withstands, which are on by default.
    fn withstood() -> Vec<Self>;

    /// Returns the name of the class on a command line.
    fn name(self) -> &'static str;

    /// Returns the number of the class, unique among all classes and below 32.
    fn number(self) -> u32;
}

/// A set of classes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClassSet<C>(u32, PhantomData<C>);

impl<C: FaultClass> ClassSet<C> {
    /// The empty set.
    pub const NONE: ClassSet<C> = ClassSet(0, PhantomData);

    /// Returns the set of classes that are on by default.
    pub fn withstood() -> ClassSet<C> {
        C::withstood().into_iter().collect()
    }

    /// Returns the set of all classes.
    pub fn all() -> ClassSet<C> {
        C::all().iter().copied().collect()
    }

    /// Returns true if the class is in the set.
    pub fn has(self, class: C) -> bool {
        self.0 & bit(class) != 0
    }

    /// Returns the classes in the set.
    pub fn iter(self) -> impl Iterator<Item = C> {
        let all = C::all().iter().copied();
        all.filter(move |class| self.has(*class))
    }

    /// Parses a set from a command line: names of classes separated by commas, applied from left to
    /// right. The names `withstood`, `all` and `none` denote sets. A name with the prefix `-` is
    /// removed from the set.
    ///
    /// # Errors
    /// The part of the text that is not the name of a class.
    pub fn parse(text: &str) -> Result<ClassSet<C>, String> {
        let mut classes = ClassSet::NONE;
        for part in text.split(',') {
            let (name, out) = match part.strip_prefix('-') {
                Some(name) => (name, true),
                None => (part, false),
            };
            let named = match name {
                "none" => ClassSet::NONE,
                "withstood" => ClassSet::withstood(),
                "all" => ClassSet::all(),
                name => {
                    let class = C::all().iter().find(|class| class.name() == name);
                    let class =
                        class.ok_or_else(|| format!("`{name}` is not a class of faults"))?;
                    [*class].into_iter().collect()
                }
            };
            classes.0 = if out {
                classes.0 & !named.0
            } else {
                classes.0 | named.0
            };
        }
        Ok(classes)
    }

    /// Returns the set in the form that [`parse`](Self::parse) accepts.
    pub fn text(self) -> String {
        let names: Vec<&str> = self.iter().map(C::name).collect();
        if names.is_empty() {
            return "none".to_owned();
        }
        names.join(",")
    }
}

fn bit<C: FaultClass>(class: C) -> u32 {
    1 << class.number()
}

impl<C: FaultClass> FromIterator<C> for ClassSet<C> {
    fn from_iter<I: IntoIterator<Item = C>>(classes: I) -> ClassSet<C> {
        let bits = classes.into_iter().fold(0, |set, class| set | bit(class));
        ClassSet(bits, PhantomData)
    }
}

impl<C: FaultClass> Default for ClassSet<C> {
    fn default() -> ClassSet<C> {
        ClassSet::withstood()
    }
}

impl<C: FaultClass> std::fmt::Debug for ClassSet<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl<C: FaultClass> Serialize for ClassSet<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}
