//! What happens below that an operator should know, from where it happens to whoever writes lines.
//!
//! A device that loses its connection, a client that is refused: each posts a notice, which costs
//! it no waiting. Whoever talks to the operator takes the notices now and then. Notices of one kind
//! and subject are told at most once in ten seconds, with how many there were besides, so a
//! peer can fill neither memory nor a log. All runtimes that are made from the options of one share
//! its notices, since a part of a device may be on a thread of its own.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::time::Instant;

/// Notices of one kind and subject are told at most this often.
const REPEAT_AFTER: Duration = Duration::from_secs(10);
/// Kinds and subjects that are remembered at a time; further ones are counted.
const KEPT_MAX: usize = 64;

/// A line for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about: a device, an export, an address.
    pub subject: String,
    /// What kind of thing happened, as a word for programs.
    pub kind: &'static str,
    /// What happened, and what can be done about it.
    pub message: String,
    /// Others of its kind that came before it and were not told.
    pub others: u64,
}

impl Notice {
    /// What happened, with how often it did besides.
    pub fn words(&self) -> String {
        match self.others {
            0 => self.message.clone(),
            others => format!("{} (and {others} times more before)", self.message),
        }
    }
}

impl Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject, self.words())
    }
}

/// See the module. Cloning gives another handle to the same notices.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    kept: Vec<Kept>,
    /// Notices for which there was no room.
    dropped: u64,
}

/// The notices of one kind and subject.
#[derive(Debug)]
struct Kept {
    subject: String,
    kind: &'static str,
    /// The newest, unless it has been told.
    message: Option<String>,
    others: u64,
    /// Nothing of the kind is told before this.
    quiet_until: Instant,
}

impl Notices {
    /// Leaves a notice about `subject`. `kind` tells apart what a subject has to say: of one kind
    /// only the newest is kept.
    pub fn post(&self, subject: &str, kind: &'static str, message: impl Display) {
        let mut inner = self.lock();
        let same = |kept: &&mut Kept| kept.kind == kind && kept.subject == subject;
        if let Some(kept) = inner.kept.iter_mut().find(same) {
            if kept.message.replace(message.to_string()).is_some() {
                kept.others = kept.others.saturating_add(1);
            }
            return;
        }
        if inner.kept.len() == KEPT_MAX {
            inner.dropped = inner.dropped.saturating_add(1);
            return;
        }
        inner.kept.push(Kept {
            subject: subject.to_owned(),
            kind,
            message: Some(message.to_string()),
            others: 0,
            quiet_until: Instant::ZERO,
        });
    }

    /// Takes what is to be told at `now`, by the clock of the runtime that tells it.
    pub fn take(&self, now: Instant) -> Vec<Notice> {
        let mut inner = self.lock();
        let mut told = Vec::new();
        for kept in inner.kept.iter_mut().filter(|k| k.quiet_until <= now) {
            if let Some(message) = kept.message.take() {
                kept.quiet_until = now + REPEAT_AFTER;
                told.push(Notice {
                    subject: kept.subject.clone(),
                    kind: kept.kind,
                    message,
                    others: std::mem::take(&mut kept.others),
                });
            }
        }
        let is_needed = |kept: &Kept| kept.message.is_some() || kept.quiet_until > now;
        inner.kept.retain(is_needed);
        let dropped = std::mem::take(&mut inner.dropped);
        if dropped > 0 {
            told.push(Notice {
                subject: "notices".to_owned(),
                kind: "notices-dropped",
                message: format!("there was no room for {dropped} more"),
                others: 0,
            });
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock, so poison carries no meaning here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(notices: &Notices, at_s: u64) -> Vec<String> {
        let taken = notices.take(Instant::from_ns(at_s * 1_000_000_000));
        taken.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn notices_of_one_kind_are_told_now_and_then_with_their_count() {
        let notices = Notices::default();
        notices.post("b", "lost", "is lost");
        assert_eq!(lines(&notices, 1), ["b: is lost"]);
        for attempt in 1..=3 {
            notices
                .clone()
                .post("b", "lost", format!("is lost, {attempt}"));
        }
        notices.post("b", "found", "is back");
        notices.post("c", "lost", "is lost");
        assert_eq!(lines(&notices, 2), ["b: is back", "c: is lost"]);
        assert_eq!(lines(&notices, 10), [""; 0]);
        // Ten seconds after the last one.
        let words = ["b: is lost, 3 (and 2 times more before)"];
        assert_eq!(lines(&notices, 11), words);
        assert_eq!(lines(&notices, 100), [""; 0]);
    }

    #[test]
    fn what_peers_cause_has_a_bound() {
        let notices = Notices::default();
        for subject in 0..1000 {
            notices.post(&subject.to_string(), "refused", "a client");
        }
        let told = lines(&notices, 1);
        // 64 subjects, and a line for the other 936.
        assert_eq!(told.len(), 65);
        assert_eq!(told[64], "notices: there was no room for 936 more");
    }
}
