//! What each end says of itself when a connection is made: the private data of RDMA CM.
//!
//! Nothing here is believed before it is checked: whoever reaches the fabric can say it.

/// How long the words are. RDMA CM may hand out more bytes than were sent; what stands behind these
/// is not looked at.
pub const TERMS_BYTES: usize = 12;
/// The first bytes.
const MAGIC: [u8; 4] = *b"BRPr";
/// The only version.
const VERSION: u16 = 1;
/// The fewest and the most messages that an end may let the other send before it says more.
const CREDITS: std::ops::RangeInclusive<u16> = 2..=1024;
/// The smallest and the largest buffer that a message may fill.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=16 << 20;

/// What an end has for what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Messages with data that the other end may send before any is given back.
    pub credits: u16,
    /// The most bytes in one message.
    pub buffer_bytes: u32,
}

/// Why the words of the other end are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTerms {
    /// Fewer bytes than the words have.
    #[error("the other end sent {0} bytes of private data and not 12")]
    Short(usize),
    /// It is no end of this protocol.
    #[error("the other end does not speak BRP over RDMA")]
    Magic,
    /// It is one of another version.
    #[error("the other end speaks version {0} of BRP over RDMA, this one version 1")]
    Version(u16),
    /// Credits outside of 2 to 1024.
    #[error("the other end offers {0} credits, which are to be 2 to 1024")]
    Credits(u16),
    /// A buffer outside of 4096 bytes to 16 MiB.
    #[error("the other end offers buffers of {0} bytes, which are to be 4096 to 16 MiB")]
    BufferBytes(u32),
}

impl Terms {
    /// The words.
    pub fn encode(&self) -> [u8; TERMS_BYTES] {
        let mut bytes = [0; TERMS_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..].copy_from_slice(&self.buffer_bytes.to_le_bytes());
        bytes
    }

    /// Reads the words of the other end.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Terms, BadTerms> {
        let Some(&[a, b, c, d, v0, v1, c0, c1, b0, b1, b2, b3]) =
            bytes.first_chunk::<TERMS_BYTES>()
        else {
            return Err(BadTerms::Short(bytes.len()));
        };
        if [a, b, c, d] != MAGIC {
            return Err(BadTerms::Magic);
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(BadTerms::Version(version));
        }
        let terms = Terms {
            credits: u16::from_le_bytes([c0, c1]),
            buffer_bytes: u32::from_le_bytes([b0, b1, b2, b3]),
        };
        if !CREDITS.contains(&terms.credits) {
            return Err(BadTerms::Credits(terms.credits));
        }
        if !BUFFER_BYTES.contains(&terms.buffer_bytes) {
            return Err(BadTerms::BufferBytes(terms.buffer_bytes));
        }
        Ok(terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8 credits, buffers of 0x42000 = 270336 bytes.
    const WORDS: [u8; 12] = *b"BRPr\x01\x00\x08\x00\x00\x20\x04\x00";

    #[test]
    fn the_words_are_those_of_the_page() {
        let terms = Terms {
            credits: 8,
            buffer_bytes: 270_336,
        };
        assert_eq!(terms.encode(), WORDS);
        assert_eq!(Terms::decode(&WORDS), Ok(terms));
        // RDMA CM pads to what its own message holds.
        let padded = [&WORDS[..], &[0; 44]].concat();
        assert_eq!(Terms::decode(&padded), Ok(terms));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for end in 0..12 {
            assert_eq!(Terms::decode(&WORDS[..end]), Err(BadTerms::Short(end)));
        }
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = WORDS;
            bytes[at..at + to.len()].copy_from_slice(to);
            Terms::decode(&bytes)
        };
        assert_eq!(changed(3, b"R"), Err(BadTerms::Magic));
        assert_eq!(changed(4, &[2]), Err(BadTerms::Version(2)));
        assert_eq!(changed(6, &[1, 0]), Err(BadTerms::Credits(1)));
        assert_eq!(changed(6, &[1, 4]), Err(BadTerms::Credits(1025)));
        assert_eq!(
            changed(8, &[255, 15, 0, 0]),
            Err(BadTerms::BufferBytes(4095))
        );
        assert_eq!(
            changed(8, &[1, 0, 0, 1]),
            Err(BadTerms::BufferBytes((16 << 20) + 1))
        );
        assert!(changed(6, &[2, 0]).is_ok() && changed(6, &[0, 4]).is_ok());
        assert!(changed(8, &[0, 16, 0, 0]).is_ok() && changed(8, &[0, 0, 0, 1]).is_ok());
    }
}
