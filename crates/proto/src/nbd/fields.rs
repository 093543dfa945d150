//! Decodes big-endian fields of a message whose lengths have not been checked.
//!
//! Every method returns `None` instead of reading past the end, so that a malformed length can only
//! lead to a refusal.

/// The unread rest of a message.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Fields(bytes)
    }

    /// The next `count` bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Everything that has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Moves bytes of `input`, from offset `*consumed` on, to `partial` until `partial` holds `need`
/// bytes.
///
/// Returns true when `partial` holds `need` bytes. Only received bytes are stored: an announced
/// length alone reserves no memory.
pub(super) fn gather(
    partial: &mut Vec<u8>,
    need: usize,
    input: &[u8],
    consumed: &mut usize,
) -> bool {
    assert!(partial.len() <= need && *consumed <= input.len());
    let take = (need - partial.len()).min(input.len() - *consumed);
    partial.extend_from_slice(&input[*consumed..*consumed + take]);
    *consumed += take;
    partial.len() == need
}

/// Decodes a string of the protocol: UTF-8 without NUL (section "Conventions"). Returns `None` for
/// other bytes.
pub(super) fn string(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}
