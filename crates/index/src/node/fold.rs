//! Merging a leaf's image and delta into the rows of its next image.

use super::{Delta, Image, Row, Seq};

/// Gives the rows of `base` and `delta` to `sink`, in the order of an image, without what no reader
/// at `oldest` or above can see: of each key all versions above `oldest`, and the newest at or
/// below it with the number 0. A range deletion counts as a deletion of each key in it. A deletion
/// with no older version behind it is dropped. `freed` is given the values of the dropped rows of
/// kind [`Blob`](super::Kind::Blob).
pub fn fold(
    _base: Option<&Image>,
    _delta: &Delta,
    _oldest: Seq,
    _sink: &mut dyn FnMut(Row<'_>),
    _freed: &mut dyn FnMut(&[u8]),
) {
}
