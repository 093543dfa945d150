//! Shared code of the black-box tests of layers: a runtime in virtual time, and a stack that is
//! opened from a configuration.

pub mod modelled;
pub mod segments;
pub mod sides;
pub mod volume;

use std::cell::Cell;
use std::ops::Deref;
use std::path::Path;
use std::rc::Rc;

use bimetal_block::graph::{OpenOptions, Stack, read_graph};
use bimetal_block::{Device, Flags, Geometry, IoFuture, IoResult, Request, Statistic};
use bimetal_rt::{Rt, VirtualOptions};

/// A runtime whose tasks end with it. The tasks of a mirror that was not closed keep its devices
/// otherwise, so tests of large volumes would need more than 20 GiB of memory together.
pub struct EndingRt(Rt);

impl Deref for EndingRt {
    type Target = Rt;

    fn deref(&self) -> &Rt {
        &self.0
    }
}

impl Drop for EndingRt {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A device that counts the requests that it is given.
pub struct Counted {
    pub below: Rc<dyn Device>,
    pub requests: Rc<Cell<u64>>,
}

impl Device for Counted {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        self.requests.set(self.requests.get() + 1);
        self.below.submit(request)
    }
}

/// Returns a runtime in virtual time that polls ready tasks in a random order, which `seed`
/// determines.
pub fn virtual_rt(seed: u64) -> Rt {
    Rt::virtual_time(VirtualOptions {
        seed,
        shuffle: true,
    })
}

/// Returns a runtime as [`virtual_rt`] does, whose tasks end with it.
pub fn ending_rt(seed: u64) -> EndingRt {
    EndingRt(virtual_rt(seed))
}

/// Opens the device `top` of a configuration. Returns its stack and the device.
pub async fn open(rt: &Rt, text: &str) -> (Stack, Rc<dyn Device>) {
    let graph = read_graph(Path::new("test.toml"), text).expect("the configuration is right");
    let stack = Stack::open(rt, &graph, &["top"], &OpenOptions::default())
        .await
        .expect("the stack opens");
    let top = Rc::clone(stack.get("top").expect("there is a device `top`"));
    (stack, top)
}

/// Returns the error message with which a configuration is refused; panics if it is accepted.
pub fn refusal(text: &str) -> String {
    let error = read_graph(Path::new("test.toml"), text).expect_err("the configuration is wrong");
    error.to_string()
}

/// Returns a write of `len` bytes that all equal `byte`.
pub fn write(rt: &Rt, offset: u64, len: usize, byte: u8) -> Request {
    let mut buf = rt.pool().alloc_now(len);
    buf.fill(byte);
    Request::write(offset, buf.freeze(), Flags::NONE)
}

/// Runs a request, and returns its result and its completion time in ns.
pub async fn timed(rt: Rt, device: Rc<dyn Device>, request: Request) -> (IoResult, u64) {
    let result = device.submit(request).await;
    (result, rt.now().as_ns())
}

/// Returns a counter or gauge of the device itself, not of one of its parts.
pub fn statistic(device: &Rc<dyn Device>, name: &str) -> f64 {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    device.statistics(&mut statistics);
    let found = statistics
        .iter()
        .find(|(part, n, _)| part.is_empty() && n == name);
    match found.unwrap_or_else(|| panic!("no figure {name} in {statistics:?}")) {
        (_, _, Statistic::Counter(value)) => *value as f64,
        (_, _, Statistic::Gauge(value)) => *value,
        (_, _, other) => panic!("{name} is {other:?}"),
    }
}

/// Polls a request once, which starts it; returns true if it is still pending.
pub async fn starts(request: &mut IoFuture<'_>) -> bool {
    std::future::poll_fn(|context| {
        let pending = std::pin::Pin::new(&mut *request).poll(context).is_pending();
        std::task::Poll::Ready(pending)
    })
    .await
}

/// Reads a block that is filled with one byte, and returns that byte.
pub async fn byte_of(device: &Rc<dyn Device>, offset: u64) -> u8 {
    let data = device
        .submit(Request::read(offset, 4096))
        .await
        .expect("memory can be read");
    let bytes = data.into_data().to_vec();
    assert!(
        bytes.iter().all(|byte| *byte == bytes[0]),
        "a block is of one write"
    );
    bytes[0]
}
