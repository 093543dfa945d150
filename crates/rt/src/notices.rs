//! Notices for the operator. Components that detect events post them, and the component that prints
//! lines for the operator takes them.
//!
//! For example, a device that loses its connection posts a notice, and so does a server that
//! refuses a client. Posting never waits. The component that prints takes the notices periodically.
//! Notices of one kind and subject are reported at most once in ten seconds, with the number of
//! suppressed notices, so a peer can fill neither memory nor a log. All runtimes created from the
//! options of one runtime share its notices, since parts of a device can run on their own threads.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::time::Instant;

/// Minimum interval between two reports of the same kind and subject.
const REPEAT_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of pairs of kind and subject that are stored at a time. Notices of further pairs
/// are dropped, and only their number is recorded.
const KEPT_MAX: usize = 64;

/// A line for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The subject of the notice: a device, an export or an address.
    pub subject: String,
    /// Kind of the event: a fixed word that programs can match.
    pub kind: &'static str,
    /// Description of the event, and of the operator's possible reaction.
    pub message: String,
    /// Number of earlier notices of the same kind and subject that were not reported.
    pub others: u64,
}

impl Notice {
    /// Returns the message, with the number of unreported repetitions.
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

/// Shared collection of notices for the operator. A clone is another handle to the same collection.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    kept: Vec<Kept>,
    /// Number of notices dropped for lack of room.
    dropped: u64,
}

/// The notices of one kind and subject.
#[derive(Debug)]
struct Kept {
    subject: String,
    kind: &'static str,
    /// The newest message; `None` when it has been reported.
    message: Option<String>,
    others: u64,
    /// No notice of this kind and subject is reported before this time.
    quiet_until: Instant,
}

impl Notices {
    /// Posts a notice about `subject`. If a notice of the same subject and `kind` has not been
    /// reported yet, its message is replaced by the new message.
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

    /// Takes the notices that are due at `now`. `now` is a time of the clock of the runtime that
    /// reports the notices.
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
        // No thread panics while it holds the lock, so poisoning can be ignored.
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
        // The loss of `b` was last reported at 1 s. The next report of this kind is due ten seconds
        // later.
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
