//! Reasons for refusing bytes as an image.

/// Reason for refusing bytes as an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// There are fewer bytes than the image needs.
    #[error("the image is cut short")]
    Short,
    /// The bytes are not an image.
    #[error("there is no image here")]
    Magic,
    /// The version of the format is not known.
    #[error("the image has version {0} of the format")]
    Version(u8),
    /// The length in the header is not a possible length of an image.
    #[error("the image has an impossible length")]
    Length,
    /// The bytes have changed since the image was sealed.
    #[error("the checksum of the image is wrong")]
    Checksum,
    /// The image was sealed for another location.
    #[error("the image belongs to location {found}, not to {expected}")]
    Location {
        /// Location that the image was sealed for.
        found: u64,
        /// Location that the image was read from.
        expected: u64,
    },
    /// The image was sealed for another generation of its segment: it was left over from an earlier
    /// use of the segment.
    #[error(
        "the image belongs to another generation of its segment: it has {found:08x}, not \
        {expected:08x}"
    )]
    Generation {
        /// Generation tag that the image was sealed for.
        found: u32,
        /// Generation tag that the segment has.
        expected: u32,
    },
    /// The checksum is right, but the content is invalid.
    #[error("the image is malformed: {0}")]
    Malformed(&'static str),
}
