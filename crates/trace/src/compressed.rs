//! Decompression. The compression is recognised from the first bytes of a file and never from its
//! name.
//!
//! Every checksum in a file is compared with the content: the decoders do so for gzip and xz, and
//! this module does so for zstd, where it also compares the length of the content. Parts of a file
//! without a checksum are counted, so that they can be reported.
//!
//! The memory that a file can make a decoder allocate is bounded: 128 MiB of zstd window, 256 MiB
//! for xz.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const XZ_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const XZ_MEMORY_KIB: u32 = 256 << 10;
const INPUT_BYTES: usize = 256 << 10;

type Source = Box<dyn Read + Send>;

/// Counter of the parts of a file (frames of zstd, streams of xz) that were read and have no
/// checksum.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unchecked(Arc<AtomicU64>);

impl Unchecked {
    /// Returns the number of parts without a checksum that have been read.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the content of `source`, decompressed if it is compressed. While the content is read,
/// `unchecked` counts the parts without a checksum.
pub(crate) fn decompressed(source: Source, unchecked: &Unchecked) -> io::Result<Source> {
    let mut input = BufReader::with_capacity(INPUT_BYTES, source);
    let start = input.fill_buf()?;
    if start.starts_with(&ZSTD_MAGIC) || is_note(start) {
        return Ok(Box::new(Zstd {
            state: DecoderState::Between(input),
            passed_bytes: 0,
            content_bytes: 0,
            unchecked: unchecked.clone(),
        }));
    }
    if start.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(input)));
    }
    if start.starts_with(&XZ_MAGIC) {
        // The stream flags (section 2.1.1.2 of the format) are a zero byte and the type of the
        // check; type 0 means no check.
        if start[XZ_MAGIC.len()..].starts_with(&[0, 0]) {
            unchecked.add();
        }
        return Ok(Box::new(lzma_rust2::XzReader::new_mem_limit(
            input,
            true,
            XZ_MEMORY_KIB,
        )));
    }
    Ok(Box::new(input))
}

/// Returns true if `start` is the start of a zstd frame without content (a skippable frame).
/// Parallel compressors write such frames.
fn is_note(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Skips the notes (zstd frames without content) at the current position, and returns the number of
/// bytes skipped.
fn pass_over_notes(input: &mut BufReader<Source>) -> io::Result<u64> {
    let mut bytes = 0;
    while is_note(input.fill_buf()?) {
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let [_, _, _, _, length @ ..] = head;
        let length = u64::from(u32::from_le_bytes(length));
        let passed = io::copy(&mut input.take(length), &mut io::sink())?;
        if passed < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes += head.len() as u64 + length;
    }
    Ok(bytes)
}

type Frame = ruzstd::decoding::StreamingDecoder<BufReader<Source>, ruzstd::decoding::FrameDecoder>;

/// The decompressed content of any number of zstd frames in sequence, as the `zstd` program accepts
/// them.
struct Zstd {
    state: DecoderState,
    /// Number of compressed bytes before the current frame.
    passed_bytes: u64,
    /// Number of bytes of content read from the current frame.
    content_bytes: u64,
    unchecked: Unchecked,
}

enum DecoderState {
    /// At the start of a frame, or at the end.
    Between(BufReader<Source>),
    Inside(Box<Frame>),
    /// The end of the input, or an error, has been reached.
    Ended,
}

impl Zstd {
    fn damaged(&self, what: impl std::fmt::Display) -> io::Error {
        let at = self.passed_bytes;
        let message = format!("the zstd frame at byte {at}: {what}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    }

    /// Ends a frame that has been read completely: compares its content with the frame's checksum
    /// and content length (RFC 8878, 3.1.1), and continues with the next frame.
    fn finish(&mut self, frame: Frame) -> io::Result<()> {
        let (input, decoder) = frame.into_parts();
        match decoder.get_checksum_from_data() {
            Some(stored) if decoder.get_calculated_checksum() != Some(stored) => {
                return Err(self.damaged("its content does not match its checksum"));
            }
            Some(_) => {}
            None => self.unchecked.add(),
        }
        // The content size is also 0 if the frame does not state it.
        let said_bytes = decoder.content_size();
        if said_bytes > 0 && said_bytes != self.content_bytes {
            let found = self.content_bytes;
            let what = format!("its content has {found} bytes, but its header says {said_bytes}");
            return Err(self.damaged(what));
        }
        self.passed_bytes += decoder.bytes_read_from_source();
        self.content_bytes = 0;
        self.state = DecoderState::Between(input);
        Ok(())
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.state, DecoderState::Ended) {
                DecoderState::Ended => return Ok(0),
                DecoderState::Between(mut input) => {
                    self.passed_bytes += pass_over_notes(&mut input)?;
                    if input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let frame = Frame::new(input).map_err(|error| self.damaged(error))?;
                    self.state = DecoderState::Inside(Box::new(frame));
                }
                DecoderState::Inside(mut frame) => {
                    let count = frame.read(buffer).map_err(|error| self.damaged(error))?;
                    if count > 0 {
                        self.content_bytes += count as u64;
                        self.state = DecoderState::Inside(frame);
                        return Ok(count);
                    }
                    self.finish(*frame)?;
                }
            }
        }
    }
}
