//! Logs the start and the end of every request, one line each. In real time the log is a file, in
//! virtual time it is in memory.
//!
//! ```text
//! 0.000120000 17 start write 8192 4096 fua
//! 0.000370000 17 end write 8192 4096 ok 250000
//! ```
//!
//! The columns: seconds since the runtime started, the number of the request, `start`, `end` or
//! `dropped`, the operation, offset and length in bytes, then the flags at the start, and at the
//! end `ok` or the error and the duration in ns.
//!
//! The layer must never make a request wait for its log: lines go into a bounded buffer that a task
//! writes out, and when the disk under the log cannot keep up, lines are lost and counted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bimetal_rt::real_time::{File, OpenOptions};
use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rt, Task};
use serde::Deserialize;

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::{Flags, IoResult, Op, Request};

/// Maximum total size of the lines that wait to be written, in bytes. A line is lost if it would
/// exceed this maximum.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Maximum number of lines in a [`MemorySink`]; the oldest are dropped first.
const MEMORY_LINES_MAX: usize = 1 << 16;

/// The configuration of `type = "log"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Path of the log file, which is created if missing and appended to; relative to the
    /// configuration file. In virtual time no file is written.
    pub path: PathBuf,
}

/// A destination of lines.
pub trait LogSink {
    /// Accepts a line, given without its newline. Never waits.
    fn line(&self, line: &str);

    /// Returns the number of lost lines.
    fn lost_lines(&self) -> u64;

    /// Waits until every accepted line is written to the destination.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>>;
}

/// A sink that keeps the last lines in memory.
#[derive(Default)]
pub struct MemorySink {
    lines: RefCell<VecDeque<String>>,
    lost_lines: Cell<u64>,
}

impl MemorySink {
    /// Returns the lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().iter().cloned().collect()
    }
}

impl LogSink for MemorySink {
    fn line(&self, line: &str) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() == MEMORY_LINES_MAX {
            lines.pop_front();
            self.lost_lines.set(self.lost_lines.get() + 1);
        }
        lines.push_back(line.to_owned());
    }

    fn lost_lines(&self) -> u64 {
        self.lost_lines.get()
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A sink that appends lines to a file through the ring.
pub struct FileSink {
    state: Rc<FileState>,
    /// Task that writes lines until the sink is closed.
    _writer: Task<()>,
}

struct FileState {
    rt: Rt,
    file: File,
    waiting: RefCell<String>,
    lost_lines: Cell<u64>,
    closing: Cell<bool>,
    /// Result of the writer task, once it has ended.
    ended: Cell<Option<Result<(), IoError>>>,
    changed: Event,
}

impl FileSink {
    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    /// When the file cannot be opened or created.
    pub fn open(rt: &Rt, path: &Path) -> Result<FileSink, OpenError> {
        let fail = |e: std::io::Error| {
            OpenError::new(format!("{}: cannot open the log: {e}", path.display()))
        };
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(fail)?;
        let options = OpenOptions {
            write: true,
            direct: false,
        };
        let file = File::open(rt, path, options).map_err(fail)?;
        let end = file.size_bytes().map_err(fail)?;
        let state = Rc::new(FileState {
            rt: rt.clone(),
            file,
            waiting: RefCell::new(String::new()),
            lost_lines: Cell::new(0),
            closing: Cell::new(false),
            ended: Cell::new(None),
            changed: Event::new(),
        });
        let writer = Rc::clone(&state);
        Ok(FileSink {
            _writer: rt.spawn(async move {
                let outcome = writer.write_until_closed(end).await;
                writer.ended.set(Some(outcome));
                writer.changed.notify();
            }),
            state,
        })
    }
}

impl FileState {
    /// Writes lines until the sink is closed. Lines that arrive during a write are all written by
    /// the next write, so on a slow disk the writes become larger, not more numerous.
    async fn write_until_closed(&self, mut offset: u64) -> Result<(), IoError> {
        loop {
            self.changed
                .until(|| self.closing.get() || !self.waiting.borrow().is_empty())
                .await;
            let text = self.waiting.take();
            if text.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.append(&text, &mut offset).await {
                let unwritten = text.lines().count() + self.waiting.take().lines().count();
                self.lost_lines
                    .set(self.lost_lines.get() + unwritten as u64);
                return Err(error);
            }
        }
    }

    async fn append(&self, text: &str, offset: &mut u64) -> Result<(), IoError> {
        let buf = self.rt.pool().copy_of(text.as_bytes());
        let mut written = 0;
        while written < buf.len() {
            let rest = buf.slice(written..buf.len());
            let count = self.file.write_at(*offset, rest.into(), false).await?;
            if count == 0 {
                return Err(IoError::NoSpace);
            }
            written += count;
            *offset += count as u64;
        }
        Ok(())
    }
}

impl LogSink for FileSink {
    fn line(&self, line: &str) {
        let state = &self.state;
        let mut waiting = state.waiting.borrow_mut();
        let full = waiting.len() + line.len() >= BUFFER_BYTES_MAX;
        if full || state.ended.get().is_some() {
            state.lost_lines.set(state.lost_lines.get() + 1);
            return;
        }
        let was_empty = waiting.is_empty();
        waiting.push_str(line);
        waiting.push('\n');
        drop(waiting);
        if was_empty {
            state.changed.notify();
        }
    }

    fn lost_lines(&self) -> u64 {
        self.state.lost_lines.get()
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async {
            let state = &self.state;
            state.closing.set(true);
            state.changed.notify();
            state.changed.until_some(|| state.ended.get()).await
        })
    }
}

/// A logging layer; see the module.
pub struct Log {
    rt: Rt,
    below: Rc<dyn Device>,
    sink: Rc<dyn LogSink>,
    requests: Cell<u64>,
    /// Buffer for the current line, kept to reuse its memory.
    scratch: RefCell<String>,
}

/// A request whose start has been logged, and whose end will be logged.
struct Entry<'a> {
    log: &'a Log,
    number: u64,
    op: Op,
    offset: u64,
    len: u64,
    started: Instant,
    ended: bool,
}

impl Log {
    /// Creates a layer over `below` that logs to `sink`.
    pub fn new(rt: &Rt, below: Rc<dyn Device>, sink: Rc<dyn LogSink>) -> Log {
        Log {
            rt: rt.clone(),
            below,
            sink,
            requests: Cell::new(0),
            scratch: RefCell::new(String::new()),
        }
    }

    /// Creates a layer that logs to the file `path`, or to memory in virtual time.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(rt: &Rt, below: Rc<dyn Device>, path: &Path) -> Result<Log, OpenError> {
        let sink: Rc<dyn LogSink> = if rt.is_virtual() {
            Rc::new(MemorySink::default())
        } else {
            Rc::new(FileSink::open(rt, path)?)
        };
        Ok(Log::new(rt, below, sink))
    }

    async fn run(&self, request: Request) -> IoResult {
        let entry = self.start(&request);
        let result = self.below.submit(request).await;
        entry.end(&result);
        result
    }

    fn start(&self, request: &Request) -> Entry<'_> {
        let number = self.requests.get();
        self.requests.set(number + 1);
        let entry = Entry {
            log: self,
            number,
            op: request.op,
            offset: request.offset,
            len: request.len,
            started: self.rt.now(),
            ended: false,
        };
        let Flags {
            fua,
            keep_allocated,
            advisory,
        } = request.flags;
        let fua = if fua { " fua" } else { "" };
        let keep = if keep_allocated {
            " keep-allocated"
        } else {
            ""
        };
        let advice = if advisory { " advisory" } else { "" };
        entry.write_line("start", format_args!("{fua}{keep}{advice}"));
        entry
    }
}

impl Entry<'_> {
    fn end(mut self, result: &IoResult) {
        self.ended = true;
        let took_ns = self.log.rt.now().ns_since(self.started);
        match result {
            Ok(_) => self.write_line("end", format_args!(" ok {took_ns}")),
            Err(error) => self.write_line("end", format_args!(" {error:?} {took_ns}")),
        }
    }

    fn write_line(&self, what: &str, rest: std::fmt::Arguments<'_>) {
        let now_ns = self.log.rt.now().as_ns();
        let (seconds, ns) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
        let (number, op, offset, len) = (self.number, self.op.name(), self.offset, self.len);
        let mut line = self.log.scratch.borrow_mut();
        line.clear();
        write!(
            line,
            "{seconds}.{ns:09} {number} {what} {op} {offset} {len}{rest}"
        )
        .expect("text can always be added to a string");
        self.log.sink.line(&line);
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.write_line("dropped", format_args!(""));
        }
    }
}

impl Device for Log {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(self.run(request))
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.sink.close()
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        out.statistic("", "requests", Statistic::Counter(self.requests.get()));
        out.statistic("", "lost_lines", Statistic::Counter(self.sink.lost_lines()));
    }
}
