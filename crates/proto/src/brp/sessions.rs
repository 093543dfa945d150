//! What a target knows of the sessions: their paths, what each path has under way, and which of
//! them are fenced (section "Sessions, fences and replay").
//!
//! It must never say that a path has ended while a request that came over it has not, and never
//! take a request from a path that was fenced: a newer change could then be undone by an older one.

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

    /// Counts a request that is about to be started; false when it must not be, because the path is
    /// fenced or closed.
    #[must_use = "a request of a fenced path must not be started"]
    pub fn start(&self) -> bool {
        if self.fenced.get() || self.closed.get() {
            return false;
        }
        self.under_way.set(self.under_way.get() + 1);
        true
    }

    /// A request has ended, whether or not anybody hears of it.
    ///
    /// # Panics
    /// When more ended than were started.
    pub fn end(&self) {
        let left = self.under_way.get().checked_sub(1);
        self.under_way
            .set(left.expect("a request that ends was started"));
    }

    /// True when no further request is taken from the path.
    pub fn is_fenced(&self) -> bool {
        self.fenced.get()
    }

    /// Requests that have not ended.
    pub fn under_way(&self) -> u32 {
        self.under_way.get()
    }

    /// True when no request of the path is or can come under way.
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
    /// No session yet, and never more than so many paths to one.
    pub fn new(paths_max: usize) -> Sessions {
        Sessions {
            sessions: RefCell::default(),
            paths_max,
        }
    }

    /// Takes a connection as a path of a session.
    ///
    /// # Errors
    /// The refusal to answer with.
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

    /// Fences a path of the same session as `asker`. `None` when there is no such path: it has
    /// ended. The caller cuts what it gets and waits until it [is over](Path::is_over).
    pub fn fence(&self, asker: &Path, number: u32) -> Option<Rc<Path>> {
        let sessions = self.sessions.borrow();
        let known = sessions.get(&asker.session)?;
        let path = known.paths.get(&number)?;
        path.fenced.set(true);
        Some(Rc::clone(path))
    }

    /// Nothing more comes over a path, and everything that came has ended: it is forgotten, and
    /// with the last path its session.
    ///
    /// # Panics
    /// When a request of the path is under way.
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

    /// Sessions that have a path.
    pub fn len(&self) -> usize {
        self.sessions.borrow().len()
    }

    /// True when no session has a path.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
