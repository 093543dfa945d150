//! Why bytes are not taken for an image.

/// Why bytes are not taken for an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// There are fewer bytes than the image has.
    #[error("the image is cut short")]
    Short,
    /// This is something else than an image.
    #[error("there is no image here")]
    Magic,
    /// Its format is not known.
    #[error("the image has version {0} of the format")]
    Version(u8),
    /// It gives itself a length that no image has.
    #[error("the image has an impossible length")]
    Length,
    /// Its bytes have changed since it was sealed.
    #[error("the checksum of the image is wrong")]
    Checksum,
    /// It belongs elsewhere.
    #[error("the image belongs to location {found}, not to {expected}")]
    Location {
        /// The location that it was sealed for.
        found: u64,
        /// The location that it was read from.
        expected: u64,
    },
    /// It is what was there before the image that belongs there.
    #[error(
        "the image was left by another filling of its segment: it names {found:08x}, not {expected:08x}"
    )]
    Filling {
        /// The filling that it was sealed for.
        found: u32,
        /// The filling that the segment has.
        expected: u32,
    },
    /// Its checksum is right, but what it says cannot be.
    #[error("the image is malformed: {0}")]
    Malformed(&'static str),
}
