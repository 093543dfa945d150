//! The long-running operation on a volume. Only one runs at a time, and the outcome of the last one
//! is kept.

use std::cell::RefCell;

use bimetal_rt::Task;
use serde_json::{Value, json};

/// Outcome of an operation: a message for the operator, or the reason why the operation failed.
pub(crate) type Outcome = Result<String, String>;

/// The long-running operation on a volume: the running one, or the last one if none is running.
#[derive(Default)]
pub(crate) struct Operation {
    /// Description and outcome of the running or last operation; `None` before the first operation.
    /// The outcome is `None` while the operation is running.
    pub(crate) last: RefCell<Option<(String, Option<Outcome>)>>,
    pub(crate) task: RefCell<Option<Task<()>>>,
}

impl Operation {
    /// Returns the operation as the control socket shows it.
    pub(crate) fn show(&self) -> Value {
        let last = self.last.borrow();
        let shown = last.as_ref().map(|(what, outcome)| match outcome {
            None => json!({ "description": what, "state": "running" }),
            Some(Ok(note)) => json!({ "description": what, "state": "done", "note": note }),
            Some(Err(why)) => json!({ "description": what, "state": "failed", "reason": why }),
        });
        json!({ "operation": shown })
    }

    /// Returns true while the operation is running.
    pub(crate) fn is_running(&self) -> bool {
        let last = self.last.borrow();
        last.as_ref().is_some_and(|(_, outcome)| outcome.is_none())
    }

    /// Cancels the operation at its current await point.
    pub(crate) async fn cancel(&self) {
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.cancel().await;
        }
    }
}
