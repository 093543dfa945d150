//! State shared by all BRP connections of a server: the identity of the target, and the sessions.

use std::cell::OnceCell;
use std::io;
use std::ops::Deref;
use std::rc::Rc;

use bimetal_proto::brp::{Path, Refusal, Sessions};
use bimetal_rt::Rt;
use bimetal_rt::sync::Event;

/// Maximum number of paths of one session.
const PATHS_MAX: usize = 64;

/// Identity that a target reports to initiators (`docs/brp.md`, section "Greeting").
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) instance: [u8; 16],
    pub(crate) host: [u8; 16],
}

/// State shared by all BRP connections: the identity of the target, and its sessions.
pub(crate) struct Target {
    rt: Rt,
    identity: OnceCell<Identity>,
    sessions: Sessions,
    /// Notified when a path is fenced (stopped by a message over another path), and when a request
    /// of a fenced path has ended. The tasks of the server also wait for other conditions with this
    /// event.
    changed: Rc<Event>,
}

impl Target {
    pub(crate) fn new(rt: &Rt, changed: Rc<Event>) -> Rc<Target> {
        Rc::new(Target {
            rt: rt.clone(),
            identity: OnceCell::new(),
            sessions: Sessions::new(PATHS_MAX),
            changed,
        })
    }

    /// Returns the identity of the target. The first call creates the identity, and later calls
    /// return the same one.
    ///
    /// # Errors
    /// If the operating system provides no random numbers, or does not identify the machine.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        if let Some(identity) = self.identity.get() {
            return Ok(*identity);
        }
        let identity = Identity {
            instance: self.rt.random_uuid()?,
            host: self.rt.boot_id()?,
        };
        Ok(*self.identity.get_or_init(|| identity))
    }

    /// Adds a connection to a session as the path `number`.
    ///
    /// # Errors
    /// The refusal that the initiator must get as its answer.
    pub(crate) fn open(
        self: &Rc<Target>,
        session: [u8; 16],
        number: u32,
    ) -> Result<OpenPath, Refusal> {
        Ok(OpenPath {
            path: self.sessions.open(session, number)?,
            target: Rc::clone(self),
        })
    }

    /// Fences the path `number` of the session that contains `asker`: from then on, the path
    /// `number` starts no further request. Returns `None` if the session has no such path.
    pub(crate) fn fence(&self, asker: &OpenPath, number: u32) -> Option<Rc<Path>> {
        let fenced = self.sessions.fence(&asker.path, number)?;
        self.changed.notify();
        Some(fenced)
    }

    /// Returns the number of sessions that have a path.
    #[cfg(test)]
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Signals that a request of a fenced path has ended.
    pub(crate) fn notify(&self) {
        self.changed.notify();
    }

    /// Waits until the path has no request in progress and can start no further request.
    pub(crate) async fn until_over(&self, path: &Path) {
        self.changed.until(|| path.is_over()).await;
    }
}

/// A path in use. It must not be dropped before all its requests have ended. Dropping the
/// `OpenPath` closes the path and removes it from its session.
pub(crate) struct OpenPath {
    path: Rc<Path>,
    target: Rc<Target>,
}

impl Deref for OpenPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for OpenPath {
    fn drop(&mut self) {
        self.target.sessions.close(&self.path);
        self.target.notify();
    }
}
