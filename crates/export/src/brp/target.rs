//! What all BRP connections of a server share: who this target is, and the sessions.

use std::cell::OnceCell;
use std::io;
use std::ops::Deref;
use std::rc::Rc;

use bimetal_proto::brp::{Path, Refusal, Sessions};
use bimetal_rt::Rt;
use bimetal_rt::sync::Event;

/// Paths of one session, at most.
const PATHS_MAX: usize = 64;

/// Who a target is (`docs/brp.md`, section "Greeting").
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) instance: [u8; 16],
    pub(crate) host: [u8; 16],
}

/// See the module.
pub(crate) struct Target {
    rt: Rt,
    identity: OnceCell<Identity>,
    sessions: Sessions,
    /// A path was fenced or is over, and whatever else the server's tasks wait for.
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

    /// Drawn when it is first asked for, and the same from then on.
    ///
    /// # Errors
    /// When the operating system has no random numbers, or does not say which machine this is.
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

    /// Takes a connection as a path of a session.
    ///
    /// # Errors
    /// The refusal to answer with.
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

    /// Fences a path of the same session as `asker`; `None` when there is no such path.
    pub(crate) fn fence(&self, asker: &OpenPath, number: u32) -> Option<Rc<Path>> {
        let fenced = self.sessions.fence(&asker.path, number)?;
        self.changed.notify();
        Some(fenced)
    }

    /// Sessions that have a path.
    #[cfg(test)]
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// A request of a fenced path has ended.
    pub(crate) fn notify(&self) {
        self.changed.notify();
    }

    /// Waits until nothing that came over a path is or can come under way.
    pub(crate) async fn until_over(&self, path: &Path) {
        self.changed.until(|| path.is_over()).await;
    }
}

/// A path in use. When this is dropped, which may be only when its requests have ended, the path
/// is closed and its session forgets it.
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
