//! The target's state of the sessions: their paths, the requests in progress on each path, and the
//! fenced paths (section "Sessions, fences and replay").
//!
//! This module must never report that a path has ended while a request that came over it is still
//! in progress. It must never accept a request from a fenced path: an older change could then
//! overwrite a newer one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::greeting::{Refusal, RefusalCode};

/// One connection of a session.
#[derive(Debug)]
pub struct Path {
    session: [u8; 16],
    number: u32,
    under_way: Cell<u32>,
    fenced: Cell<bool>,
    closed: Cell<bool>,
}

impl Path {
    /// The number of the path in its session.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds a request that is about to be started to the number of requests in progress. Returns
    /// false if the request must not be started, because the path is fenced or closed.
    #[must_use = "a request of a fenced path must not be started"]
    pub fn start(&self) -> bool {
        if self.fenced.get() || self.closed.get() {
            return false;
        }
        self.under_way.set(self.under_way.get() + 1);
        true
    }

    /// Records that a request has ended, whether or not its result is delivered.
    ///
    /// # Panics
    /// If more requests ended than were started.
    pub fn end(&self) {
        let left = self.under_way.get().checked_sub(1);
        self.under_way
            .set(left.expect("a request that ends was started"));
    }

    /// Returns true when the path is fenced, so that no further request is accepted from it.
    pub fn is_fenced(&self) -> bool {
        self.fenced.get()
    }

    /// Returns the number of requests that have not ended.
    pub fn under_way(&self) -> u32 {
        self.under_way.get()
    }

    /// Returns true when the path has ended: it is fenced or closed, so no request can start, and
    /// no request of the path is in progress.
    pub fn is_over(&self) -> bool {
        (self.fenced.get() || self.closed.get()) && self.under_way.get() == 0
    }
}

#[derive(Debug, Default)]
struct Session {
    /// The highest number that a path of the session has had.
    newest: u32,
    /// The paths that are not over.
    paths: BTreeMap<u32, Rc<Path>>,
}

/// The sessions that have a path.
#[derive(Debug)]
pub struct Sessions {
    sessions: RefCell<BTreeMap<[u8; 16], Session>>,
    paths_max: usize,
}

impl Sessions {
    /// Creates the state without sessions; each session is allowed at most `paths_max` paths.
    pub fn new(paths_max: usize) -> Sessions {
        Sessions {
            sessions: RefCell::default(),
            paths_max,
        }
    }

    /// Adds a connection to a session, as the path `number`.
    ///
    /// # Errors
    /// The refusal with which the connection is answered.
    pub fn open(&self, session: [u8; 16], number: u32) -> Result<Rc<Path>, Refusal> {
        let mut sessions = self.sessions.borrow_mut();
        let known = sessions.entry(session).or_default();
        if number <= known.newest {
            let words = "the session has had a path of this number";
            return Err(Refusal::new(RefusalCode::StalePath, words));
        }
        if known.paths.len() >= self.paths_max {
            let words = "the session has too many paths";
            return Err(Refusal::new(RefusalCode::Full, words));
        }
        let path = Rc::new(Path {
            session,
            number,
            under_way: Cell::new(0),
            fenced: Cell::new(false),
            closed: Cell::new(false),
        });
        known.newest = number;
        known.paths.insert(number, Rc::clone(&path));
        Ok(path)
    }

    /// Fences path `number` of the session that `asker` belongs to: the path accepts no further
    /// request. Returns `None` if the session no longer has that path. The caller must cut the
    /// connection of the returned path and wait until the path [has ended](Path::is_over).
    pub fn fence(&self, asker: &Path, number: u32) -> Option<Rc<Path>> {
        let sessions = self.sessions.borrow();
        let known = sessions.get(&asker.session)?;
        let path = known.paths.get(&number)?;
        path.fenced.set(true);
        Some(Rc::clone(path))
    }

    /// Closes a path whose connection has ended and whose requests have all ended. Removes the
    /// path, and also removes the session if this was its last path.
    ///
    /// # Panics
    /// If a request of the path is still in progress.
    pub fn close(&self, path: &Path) {
        path.closed.set(true);
        assert!(path.is_over(), "a path is closed when it is over");
        let mut sessions = self.sessions.borrow_mut();
        if let Some(known) = sessions.get_mut(&path.session) {
            known.paths.remove(&path.number);
            if known.paths.is_empty() {
                sessions.remove(&path.session);
            }
        }
    }

    /// Returns the number of sessions that have a path.
    pub fn len(&self) -> usize {
        self.sessions.borrow().len()
    }

    /// Returns true when no session has a path.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
