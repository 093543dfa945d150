//! A configuration that is being served, with its devices, exports and control socket, from its
//! start to an orderly end. The verbs `serve`, `attach`, `mount` and `demo` each run one
//! configuration.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use bimetal_block::graph::{Node, OpenError, OpenOptions, Stack};
use bimetal_block::layers::mirror::sides_line;
use bimetal_block::{BLOCK_BYTES, Device, IoError, Statistic};
use bimetal_control::record;
use bimetal_control::{Answer, Control};
use bimetal_export::fuse::{MountOptions, Mounted};
use bimetal_export::ublk::{AttachOptions, Attachment};
use bimetal_export::{Server, StartError};
use bimetal_rt::growth::Growth;
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, Task};
use futures_util::future::{Either, select};
use serde_json::{Value, json};

use crate::alerts;
use crate::config::Config;
use crate::events::Events;
use crate::exposure;
use crate::history::History;
use crate::local::Local;
use crate::memory::{self, Need};
use crate::metrics::{Metrics, Source};
use crate::operation::Operation;
use crate::operations;
use crate::shown::{Attached, Shown};
use crate::whereabouts::Whereabouts;
use bimetal_console::stderr::say;

/// `ADDRESS_PATIENCE` is the time for which the server keeps trying to listen at an address in use,
/// and `ADDRESS_RETRY` is the interval between its attempts.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(1);
const ADDRESS_RETRY: Duration = Duration::from_millis(50);

/// A configuration that is being served.
pub(crate) struct Running {
    shown: Rc<Shown>,
    control: Control,
    alerts: Task<()>,
    metrics: Option<Metrics>,
    /// What the devices may need in memory, and the growth of the buffers.
    need: Need,
    growth: Option<Growth>,
}

impl Running {
    /// Opens the devices `roots` and all devices below them, creates the control socket, and starts
    /// every export. After a failure, everything that was opened is closed again.
    ///
    /// # Errors
    /// The first device, socket or export that cannot be opened.
    pub(crate) async fn start(
        rt: &Rt,
        config: Config,
        roots: &[&str],
        options: &OpenOptions,
    ) -> Result<Running> {
        let started = rt.now();
        let whereabouts = Whereabouts::find(&config);
        let stack = Stack::open(rt, &config.graph, roots, options)
            .await
            .map_err(|error| not_opened(&config, &whereabouts, &error))?;
        let need = memory::need(&config, &stack);
        let growth = match memory::let_grow(rt, need) {
            Ok(growth) => growth,
            Err(error) => return Err(undo(&stack, error).await),
        };
        let server = match listen(rt, &config, &stack, need).await {
            Ok(server) => server,
            Err(error) => return Err(undo(&stack, error).await),
        };
        let is_read = config.server.metrics.is_some();
        let shown = Rc::new(Shown {
            history: is_read.then(History::default),
            latest: RefCell::default(),
            rt: rt.clone(),
            started,
            started_unix_s: rt.unix_seconds(),
            config,
            stack,
            operation: Operation::default(),
            server,
            attached: RefCell::new(None),
            stopping: Cell::new(false),
            events: Events::default(),
            whereabouts,
        });
        let metrics = match listen_for_metrics(rt, &shown).await {
            Ok(metrics) => metrics,
            Err(error) => {
                shown.server.stop().await;
                return Err(undo(&shown.stack, error).await);
            }
        };
        let answering = Rc::clone(&shown);
        let answers: Answer = Rc::new(move |request| answer(&answering, request));
        match Control::start(rt, &shown.config.server.control, answers) {
            Ok(control) => {
                let teller = alerts::Teller::start(
                    shown.config.server.alert.clone(),
                    shown.config.server.log,
                );
                let alerts = rt.spawn(alerts::watch(Rc::clone(&shown), teller));
                Ok(Running {
                    shown,
                    control,
                    alerts,
                    metrics,
                    need,
                    growth,
                })
            }
            Err(error) => {
                if let Some(metrics) = metrics {
                    metrics.stop().await;
                }
                shown.server.stop().await;
                Err(undo(&shown.stack, error.into()).await)
            }
        }
    }

    /// Returns the number of bytes of heap that serving may need.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.need.heap_bytes
    }

    /// Returns the open devices.
    pub(crate) fn stack(&self) -> &Stack {
        &self.shown.stack
    }

    /// Exposes an open device as a block device of this machine. `stop` removes the block device
    /// before it closes the devices.
    ///
    /// # Errors
    /// If the device is not open, or the kernel refuses the block device.
    pub(crate) async fn attach(
        &self,
        device: &str,
        options: AttachOptions,
    ) -> Result<Rc<Attachment>> {
        let block = Attachment::attach(&self.shown.rt, self.open(device)?, options).await?;
        let block = Rc::new(block);
        self.keep(device, Local::Block(Rc::clone(&block)));
        Ok(block)
    }

    /// Exposes an open device as a file of this machine. `stop` removes the mount before it closes
    /// the devices.
    ///
    /// # Errors
    /// If the device is not open, or the kernel refuses the mount.
    pub(crate) async fn mount(&self, device: &str, options: &MountOptions) -> Result<Rc<Mounted>> {
        let file = Mounted::mount(&self.shown.rt, self.open(device)?, options).await?;
        let file = Rc::new(file);
        self.keep(device, Local::File(Rc::clone(&file)));
        Ok(file)
    }

    fn open(&self, device: &str) -> Result<Rc<dyn Device>> {
        let open = self.shown.stack.get(device);
        let open = open.ok_or_else(|| anyhow!("device {device} is not open"))?;
        Ok(Rc::clone(open))
    }

    /// Returns the physical block size of an open device in bytes, or 4 KiB if the device is not
    /// open.
    pub(crate) fn physical_bytes(&self, device: &str) -> u32 {
        let open = self.shown.stack.get(device);
        open.map_or(BLOCK_BYTES as u32, |open| open.geometry().physical_bytes)
    }

    fn keep(&self, device: &str, local: Local) {
        *self.shown.attached.borrow_mut() = Some(Attached {
            device: device.to_owned(),
            local,
        });
    }

    /// Writes a warning for each side that its mirror does not use. The operator must know if a
    /// volume starts without a side.
    pub(crate) fn warn_of_missing_sides(&self) {
        self.warn_of_other_sides();
        for (name, device) in self.shown.stack.devices() {
            let mut seen: Vec<(String, String, Statistic)> = Vec::new();
            device.statistics(&mut seen);
            for (side, statistic, value) in seen {
                let Statistic::State(health) = value else {
                    continue;
                };
                if side.is_empty() || statistic != "health" || health == "healthy" {
                    continue;
                }
                let error = self.shown.stack.missing(&side).map(ToString::to_string);
                let is_absent = health == "absent";
                let found = self.shown.whereabouts.of_side(name, &side);
                let why = error.into_iter().chain(found.filter(|_| is_absent));
                let why = match why.collect::<Vec<_>>().join("; ") {
                    none if none.is_empty() => none,
                    why => format!(" ({why})"),
                };
                say(format_args!(
                    "bimetal: warning: device {name}: degraded: side {side} is {health}{why}"
                ));
            }
        }
    }

    /// Writes a warning for each volume whose sides differ from the sides in the configuration. The
    /// warning contains the line that the configuration needs.
    fn warn_of_other_sides(&self) {
        for (name, mirror) in self.shown.stack.mirrors() {
            let nodes = self.shown.config.graph.nodes();
            let is_unknown = |side: &&String| !nodes.contains_key(side.as_str());
            let status = mirror.status();
            let Some(mut sides) = status.sides_to_name else {
                continue;
            };
            let unknown: Vec<String> = sides.iter().filter(is_unknown).cloned().collect();
            for side in sides.iter_mut().filter(|side| unknown.contains(side)) {
                *side = "NAME".to_owned();
            }
            let operations: Vec<String> = status.operations.iter().map(|o| o.words()).collect();
            let doing = match operations.join(", ") {
                none if none.is_empty() => String::new(),
                words => format!(" after its operations are complete ({words})"),
            };
            let describe = unknown.first().map_or(String::new(), |side| {
                format!(
                    "; add a section [device.NAME] for the device of side {side}, or remove that \
                    side with `bimetal side remove {} {name} {side}`",
                    self.shown.config.path.display()
                )
            });
            say(format_args!(
                "bimetal: warning: device {name}: the sides in the configuration differ from the \
                sides of the volume{doing}; write into [device.{name}]: {}{describe}",
                sides_line(&sides)
            ));
        }
    }

    /// Reports each open mirror whose logs bound its exposure (acknowledged bytes that are not on
    /// every side yet) below the configured value.
    pub(crate) fn tell_reduced_exposure(&self) {
        for (name, device) in self.shown.stack.devices() {
            let Some(Node::Mirror(config)) = self.shown.config.graph.nodes().get(name) else {
                continue;
            };
            let mut seen: Vec<(String, String, Statistic)> = Vec::new();
            device.statistics(&mut seen);
            let bound = seen
                .into_iter()
                .find_map(|(part, statistic, value)| match value {
                    Statistic::Gauge(bound)
                        if part.is_empty() && statistic == "exposed_bytes_max" =>
                    {
                        Some(bound as u64)
                    }
                    _ => None,
                });
            if let Some(line) = bound.and_then(|bound| exposure::reduced(config, bound)) {
                say(format_args!("bimetal: device {name}: {line}"));
            }
        }
    }

    /// Ends the exports, completes the requests in flight, and closes the devices. The control
    /// socket answers until all this is done, and is removed last.
    pub(crate) async fn stop(self) -> Result<()> {
        self.shown.stopping.set(true);
        let taken_away = self.shown.take_away().await;
        self.shown.server.stop().await;
        self.shown.operation.cancel().await;
        let closed = self.shown.stack.close().await;
        self.alerts.cancel().await;
        if let Some(metrics) = self.metrics {
            metrics.stop().await;
        }
        self.control.stop().await;
        drop(self.growth);
        closed.map_err(|(device, error)| not_closed(&device, error))?;
        taken_away
    }

    /// Stops as [`stop`](Running::stop) does, but abandons the attempt after `deadline` or after
    /// two further signals. After an error the runtime must not be used, because requests may still
    /// be in flight.
    ///
    /// # Errors
    /// The errors of `stop`, or a description of the work that was not completed.
    pub(crate) async fn stop_within(self, deadline: Duration, signals: &Signals) -> Result<()> {
        let shown = Rc::clone(&self.shown);
        let config = self.shown.config.path.clone();
        let stop: Task<Result<()>> = self.shown.rt.clone().spawn(self.stop());
        let give_up = give_up(&shown, &config, deadline, signals);
        match select(std::pin::pin!(stop), std::pin::pin!(give_up)).await {
            Either::Left((stopped, _)) => stopped,
            Either::Right((why, _)) => bail!(why),
        }
    }
}

/// Returns the error for devices that were not opened. For a mirror, the message names the paths
/// of its sides, and the paths at which missing sides were found: names of devices change, and the
/// message of the mirror knows only its sides.
fn not_opened(config: &Config, whereabouts: &Whereabouts, error: &OpenError) -> anyhow::Error {
    let text = format!("{}: {error}", config.path.display());
    let device = error.device.as_deref();
    let more = device.map_or(String::new(), |device| whereabouts.of_mirror(device));
    if more.is_empty() {
        return anyhow!(text);
    }
    // A list of ranges, if there is one, stays at the end.
    match text.split_once('\n') {
        Some((line, list)) => anyhow!("{line} ({more});\n{list}"),
        None => anyhow!("{text} ({more})"),
    }
}

/// Starts to listen for readers of metrics, if it is configured.
async fn listen_for_metrics(rt: &Rt, shown: &Rc<Shown>) -> Result<Option<Metrics>> {
    let Some(address) = shown.config.server.metrics.as_ref() else {
        return Ok(None);
    };
    let source = Rc::clone(shown) as Rc<dyn Source>;
    let metrics = Metrics::start(rt, address, source).await;
    let metrics = metrics.map_err(|error| {
        let file = shown.config.path.display();
        anyhow!("{file}: `metrics` in [server]: cannot listen at {address}: {error}")
    });
    metrics.map(Some)
}

/// Waits until the deadline has passed or the user has sent two further signals. Returns a message
/// that lists the work that is not completed.
async fn give_up(shown: &Shown, config: &Path, deadline: Duration, signals: &Signals) -> String {
    let patience = std::pin::pin!(shown.rt.sleep(deadline));
    let insisting = std::pin::pin!(async {
        // This signal is the second one, because the first signal has started the stop. A failure
        // to read signals is not a reason to abandon the stop.
        if signals.next().await.is_err() {
            std::future::pending::<()>().await;
        }
        say(format_args!(
            "bimetal: still stopping: {}; another signal abandons the stop, and then {}",
            shown.left_to_do(),
            shown.afterwards()
        ));
        if signals.next().await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    let why = match select(patience, insisting).await {
        Either::Left(_) => format!("within {} s", deadline.as_secs_f64()),
        Either::Right(_) => "before the third signal".to_owned(),
    };
    format!(
        "{}: not stopped {why}: {}; {}",
        config.display(),
        shown.left_to_do(),
        shown.afterwards()
    )
}

async fn listen(rt: &Rt, config: &Config, stack: &Stack, need: Need) -> Result<Server> {
    let limits = config.server.limits(need.exposure_bytes);
    let mut exports = Vec::new();
    for export in &config.exports {
        let device = stack.get(&export.device).ok_or_else(|| {
            anyhow!(
                "export {}: device {} is not open",
                export.name,
                export.device
            )
        })?;
        exports.push((export.clone(), Rc::clone(device)));
    }
    // The listening socket of a killed server accepts connections until the kernel has destroyed
    // the server's ring, which happens a little after the exit of the process. So the attempts are
    // repeated for a while.
    let deadline = rt.now() + ADDRESS_PATIENCE;
    loop {
        match Server::start_within(rt, exports.clone(), limits).await {
            Err(StartError::InUse { .. }) if rt.now() < deadline => rt.sleep(ADDRESS_RETRY).await,
            outcome => return Ok(outcome?),
        }
    }
}

/// Closes the devices after the start has failed with `error`. Returns that error, together with an
/// error of the close.
async fn undo(stack: &Stack, error: anyhow::Error) -> anyhow::Error {
    match stack.close().await {
        Ok(()) => error,
        Err((device, second)) => error.context(not_closed(&device, second)),
    }
}

fn not_closed(device: &str, error: IoError) -> anyhow::Error {
    anyhow!("device {device}: could not be closed cleanly: {error}")
}

/// Returns the answer to a request that was received over the control socket.
fn answer(shown: &Rc<Shown>, request: &Value) -> Value {
    match request["verb"].as_str() {
        Some("status") => shown.status(),
        Some("events") => shown.events.answer(request),
        Some("scrub") => operations::scrub(&shown.stack, request),
        Some("rebuild") => operations::rebuild(&shown.stack, request),
        Some("cache") => operations::cache(&shown.stack, request),
        Some("record") => record::answer(&shown.stack, request),
        Some("side") => operations::change_sides(shown, request),
        Some("grow") => operations::grow(shown, request),
        Some("operation") => shown.operation.show(),
        Some(other) => json!({ "error": format!(
            "unknown verb `{other}`, expected status, events, scrub, rebuild, cache, record, side, grow or operation"
        ) }),
        None => json!({ "error": "expected an object with a `verb`" }),
    }
}
