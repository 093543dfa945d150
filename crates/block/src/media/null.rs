//! A device without content, like nbdkit's null plugin: reads return zeroes, writes are discarded.
//! Timing models run over it when only time matters.

use bimetal_rt::{Buf, Payload, Rt};
use serde::Deserialize;

use crate::device::{Device, IoFuture};
use crate::geometry::Geometry;
use crate::request::{BorrowedWrite, Extent, IoResult, Op, Reply, Request};
use crate::units::Size;

/// The configuration of `type = "null"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NullConfig {
    /// Size of the device, a multiple of 4 KiB.
    #[serde(deserialize_with = "crate::units::device_size")]
    pub size: Size,
}

/// A device that stores no data; see the module.
pub struct NullDevice {
    geometry: Geometry,
    zeroes: Buf,
}

impl NullDevice {
    /// Creates a device of `size_bytes`, a multiple of 4 KiB.
    pub fn new(rt: &Rt, size_bytes: u64) -> NullDevice {
        NullDevice {
            geometry: Geometry::of_size(size_bytes),
            zeroes: rt.pool().zeroed(1 << 20),
        }
    }

    fn answer(&self, request: &Request) -> IoResult {
        self.geometry.check(request)?;
        Ok(match request.op {
            Op::Read => Reply::Data(zero_payload(&self.zeroes, request.len)),
            Op::Extents => Reply::Extents(vec![Extent {
                len: request.len,
                data: false,
            }]),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => Reply::Done,
        })
    }
}

/// Returns `len` zero bytes made of slices of one buffer of zeroes.
pub fn zero_payload(zeroes: &Buf, len: u64) -> Payload {
    let mut payload = Payload::empty();
    let mut left = len as usize;
    while left > 0 {
        let count = left.min(zeroes.len());
        payload.push(zeroes.slice(0..count));
        left -= count;
    }
    payload
}

impl Device for NullDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::ready(self.answer(&request))
    }

    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        Ok(self.answer(&request))
    }

    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        Some(self.geometry.check_borrowed(&write).map(|()| Reply::Done))
    }
}
