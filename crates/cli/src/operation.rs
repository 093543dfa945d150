//! The operation on a volume that takes a while: one at a time, and what came of the last.

use std::cell::RefCell;

use bimetal_rt::Task;
use serde_json::{Value, json};

/// What came of it: what to know, or why it failed.
pub(crate) type Outcome = Result<String, String>;

/// The operation that takes a while and of which there is one at a time: the last one.
#[derive(Default)]
pub(crate) struct Operation {
    /// What it does, and what has come of it: nothing yet, what to know, or why it failed.
    pub(crate) last: RefCell<Option<(String, Option<Outcome>)>>,
    pub(crate) task: RefCell<Option<Task<()>>>,
}

impl Operation {
    /// What the control socket says of it.
    pub(crate) fn show(&self) -> Value {
        let last = self.last.borrow();
        let shown = last.as_ref().map(|(what, outcome)| match outcome {
            None => json!({ "does": what, "state": "running" }),
            Some(Ok(note)) => json!({ "does": what, "state": "done", "note": note }),
            Some(Err(why)) => json!({ "does": what, "state": "failed", "why": why }),
        });
        json!({ "operation": shown })
    }

    /// True until it has come to an end.
    pub(crate) fn is_running(&self) -> bool {
        let last = self.last.borrow();
        last.as_ref().is_some_and(|(_, outcome)| outcome.is_none())
    }

    /// Ends it where it is.
    pub(crate) async fn cancel(&self) {
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.cancel().await;
        }
    }
}
