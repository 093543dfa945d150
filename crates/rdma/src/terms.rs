//! Terms that each end offers when a connection is made. They are sent as the private data of RDMA
//! CM.
//!
//! Received terms must be checked before use, because any machine on the fabric can send them.

/// Length of the encoded terms. RDMA CM can deliver more bytes than were sent, so bytes beyond this
/// length are ignored.
pub const TERMS_BYTES: usize = 12;
/// Magic bytes at the start.
const MAGIC: [u8; 4] = *b"BRPr";
/// The only version.
const VERSION: u16 = 1;
/// Permitted range of the number of credits. The credits of an end are the number of messages with
/// data that the other end is allowed to send before this end gives credits back.
const CREDITS: std::ops::RangeInclusive<u16> = 2..=1024;
/// Permitted range of the size of a message buffer, in bytes.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=16 << 20;

/// Receive capacity that an end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of messages with data that the other end is allowed to send before credits are given
    /// back.
    pub credits: u16,
    /// Maximum length of a message in bytes.
    pub buffer_bytes: u32,
}

/// Reason why the terms of the other end are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTerms {
    /// The terms are too short.
    #[error("the peer sent {0} bytes of private data instead of 12")]
    Short(usize),
    /// The other end does not speak this protocol.
    #[error("the peer does not speak BRP over RDMA")]
    Magic,
    /// The other end speaks another version.
    #[error("the peer speaks version {0} of BRP over RDMA, but this program speaks version 1")]
    Version(u16),
    /// Credits outside of 2 to 1024.
    #[error("the peer offers {0} credits, but 2 to 1024 are allowed")]
    Credits(u16),
    /// A buffer outside of 4096 bytes to 16 MiB.
    #[error("the peer offers buffers of {0} bytes, but 4 KiB to 16 MiB are allowed")]
    BufferBytes(u32),
}

impl Terms {
    /// Encodes the terms.
    pub fn encode(&self) -> [u8; TERMS_BYTES] {
        let mut bytes = [0; TERMS_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..].copy_from_slice(&self.buffer_bytes.to_le_bytes());
        bytes
    }

    /// Decodes and checks the terms of the other end.
    ///
    /// # Errors
    /// The first mistake in the terms.
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
        // RDMA CM fills its own message up with zeroes, so the receiver gets zeroes after the
        // private data.
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
