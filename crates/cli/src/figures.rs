//! Access to the figures of a device or a side in the answer of the control socket. A figure that
//! is not there, or is of another kind, counts as none: the answer may be of another version of the
//! server.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The figures of a device, or of a side of one.
#[derive(Clone, Copy)]
pub(crate) struct Figures<'a> {
    device: &'a Value,
    own: &'a Value,
}

/// The requests of one operation.
#[derive(Clone, Copy)]
pub(crate) struct Latency<'a>(&'a Value);

/// The requests of one operation in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Window {
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    pub(crate) queue: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
}

impl<'a> Figures<'a> {
    /// Returns the figures of a device.
    pub(crate) fn of(device: &'a Value) -> Figures<'a> {
        Figures {
            device,
            own: &device["statistics"],
        }
    }

    /// Returns the parts of the device, by name.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'a str, Figures<'a>)> {
        let parts = entries(&self.device["parts"]);
        parts.map(|(name, own)| (name.as_str(), Figures { device: own, own }))
    }

    /// Returns the type of the device.
    pub(crate) fn kind(&self) -> &'a str {
        self.device["type"].as_str().unwrap_or_default()
    }

    /// Returns the size of the device in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.device["size_bytes"].as_u64().unwrap_or(0)
    }

    /// Returns the names of the devices below the device.
    pub(crate) fn children(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let children = self.device["children"].as_array();
        children.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns all figures of its own, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        entries(self.own)
    }

    /// Returns a figure in words.
    pub(crate) fn word(&self, name: &str) -> Option<&'a str> {
        self.own[name].as_str()
    }

    /// Returns a figure that is a number, if there is one.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.own[name].as_f64()
    }

    /// Returns a figure that is a number; 0 if there is none.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.figure(name).unwrap_or(0.0)
    }

    /// Returns the requests of an operation, such as `write`.
    pub(crate) fn latency(&self, op: &str) -> Latency<'a> {
        Latency(&self.device["latency"][op])
    }

    /// Returns the operations that occurred, with their requests.
    pub(crate) fn latencies(&self) -> impl Iterator<Item = (&'a str, Latency<'a>)> {
        let all = entries(&self.device["latency"]);
        all.map(|(op, latency)| (op.as_str(), Latency(latency)))
    }

    /// Returns the age of the oldest request without an answer, in ns, discards excepted.
    pub(crate) fn waiting_ns(&self) -> u64 {
        let waited_for = self.latencies().filter(|(op, _)| *op != "discard");
        waited_for
            .map(|(_, of_op)| of_op.waiting_ns())
            .max()
            .unwrap_or(0)
    }
}

impl<'a> Latency<'a> {
    /// Returns the requests of an operation from their JSON.
    pub(crate) fn of(latency: &'a Value) -> Latency<'a> {
        Latency(latency)
    }

    /// Returns the number of requests since the start, by the longest latency of their bucket.
    pub(crate) fn buckets(&self) -> BTreeMap<u64, u64> {
        let buckets = self.0["buckets"].as_array().into_iter().flatten();
        let bucket = |bucket: &Value| Some((bucket[0].as_u64()?, bucket[1].as_u64()?));
        buckets.filter_map(bucket).collect()
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }

    /// Returns the number of requests without an answer.
    pub(crate) fn in_flight(&self) -> u64 {
        self.number("in_flight")
    }

    /// Returns the age of the oldest request without an answer, in ns.
    pub(crate) fn waiting_ns(&self) -> u64 {
        self.number("waiting_ns")
    }

    /// Returns the requests of a window, such as `last_10_s`.
    pub(crate) fn window(&self, name: &str) -> Window {
        let window = &self.0[name];
        let whole = |name: &str| window[name].as_u64().unwrap_or(0);
        let number = |name: &str| window[name].as_f64().unwrap_or(0.0);
        Window {
            seconds: number("seconds"),
            requests: whole("requests"),
            errors: whole("errors"),
            bytes: whole("bytes"),
            queue: number("queue"),
            p50_ns: whole("p50_ns"),
            p99_ns: whole("p99_ns"),
            max_ns: whole("max_ns"),
        }
    }
}

impl Window {
    /// Returns the number of requests in each second.
    pub(crate) fn requests_per_s(&self) -> f64 {
        per_s(self.requests, self.seconds)
    }

    /// Returns the number of bytes in each second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        per_s(self.bytes, self.seconds)
    }
}

fn per_s(count: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => count as f64 / seconds,
        false => 0.0,
    }
}

/// Returns the entries of a JSON object; none if it is something else.
pub(crate) fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> + use<'_> {
    let object: Option<&Map<String, Value>> = value.as_object();
    object.into_iter().flatten()
}
