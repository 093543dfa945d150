//! The client end of the verb `record`.

use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::time::Duration;

use bimetal_rt::Rt;
use bimetal_trace::Record;
use futures_util::future::{Either, select};
use serde_json::{Value, json};

use super::text::from_text;
use crate::client::{AskError, Client};

/// Time for which the client sleeps after an answer that has left no records on the server.
const PAUSE: Duration = Duration::from_millis(20);

/// Error of a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A request to the server has failed.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// A record could not be written.
    #[error("{0}")]
    Write(io::Error),
    /// The event that ends the recording could not be waited for.
    #[error("cannot wait for signals: {0}")]
    Wait(io::Error),
}

/// Counters of a recording, kept by the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Number of recorded reads, of writes and of trims, indexed by [`bimetal_trace::Op`].
    pub requests: [u64; 3],
    /// Number of requests that were lost because the buffer of the tap was full.
    pub dropped: u64,
    /// Number of flushes and extents requests, which are counted but not recorded.
    pub flushes_and_extents: u64,
}

/// The client's handle to a recording on a server.
pub struct Recording {
    client: Client,
    device: String,
    number: u64,
}

/// State of a recording according to the server's last answer.
struct Answered {
    left: u64,
    is_stopped: bool,
}

impl Recording {
    /// Starts a recording of `device`, a device of the server at the control socket `control`.
    ///
    /// # Errors
    /// If the server cannot be reached, if it refuses the recording (the device is not open, or is
    /// being recorded already), or if its answer contains no number.
    pub fn start(control: &Path, device: &str) -> Result<Recording, AskError> {
        let mut recording = Recording {
            client: Client::connect(control)?,
            device: device.to_owned(),
            number: 0,
        };
        let started = recording.ask("start")?;
        let number = started["number"].as_u64();
        let unnumbered = || AskError::BadAnswer("the recording has no number".to_owned());
        recording.number = number.ok_or_else(unnumbered)?;
        Ok(recording)
    }

    fn ask(&mut self, what: &str) -> Result<Value, AskError> {
        let (device, number) = (&self.device, self.number);
        let request = json!({ "verb": "record", "device": device, "do": what, "number": number });
        Ok(self.client.ask(&request)?["record"].take())
    }

    /// Fetches the records and hands each to `write`, until `over` is ready or another client stops
    /// the recording. Then stops the recording, and fetches the remaining records.
    ///
    /// # Errors
    /// If the server or `write` fails, or if `over` returns an error. `write` has then received
    /// every record that the server has sent.
    pub async fn run(
        mut self,
        rt: &Rt,
        write: &mut dyn FnMut(&Record) -> io::Result<()>,
        mut over: Pin<&mut impl Future<Output = io::Result<()>>>,
    ) -> Result<Recorded, RecordError> {
        let mut recorded = Recorded::default();
        let mut stopping = false;
        loop {
            let answered = self.take(write, &mut recorded)?;
            if answered.is_stopped && answered.left == 0 {
                return Ok(recorded);
            }
            if stopping {
                continue;
            }
            // Even if the pause is zero, `over` is polled after each answer, so that the recording
            // ends under any load.
            let pause = if answered.left > 0 {
                Duration::ZERO
            } else {
                PAUSE
            };
            let paused = pin!(rt.sleep(pause));
            if let Either::Left((ended, _)) = select(over.as_mut(), paused).await {
                ended.map_err(RecordError::Wait)?;
                self.ask("stop")?;
                stopping = true;
            }
        }
    }

    /// Fetches one batch of recorded requests from the server, and hands each to `write`.
    fn take(
        &mut self,
        write: &mut dyn FnMut(&Record) -> io::Result<()>,
        recorded: &mut Recorded,
    ) -> Result<Answered, RecordError> {
        let answer = self.ask("take")?;
        let text = answer["requests"].as_str().unwrap_or_default();
        let records = from_text(text).ok_or_else(|| {
            AskError::BadAnswer("the server sent data that is not a list of requests".to_owned())
        })?;
        for record in &records {
            write(record).map_err(RecordError::Write)?;
            recorded.requests[record.op as usize] += 1;
        }
        let count = |key: &str| answer[key].as_u64().unwrap_or(0);
        recorded.dropped = count("dropped");
        recorded.flushes_and_extents = count("flushes_and_extents");
        Ok(Answered {
            left: count("left"),
            is_stopped: answer["state"] == "stopped",
        })
    }
}
