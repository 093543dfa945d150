//! Decompression, recognised from the first bytes of a file and never from its name.
//!
//! What a file may make a decoder allocate is bounded: 128 MiB of zstd window, 256 MiB for xz.

use std::io::{self, BufRead, BufReader, Read};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const XZ_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const XZ_MEMORY_KIB: u32 = 256 << 10;
const INPUT_BYTES: usize = 256 << 10;

type Source = Box<dyn Read + Send>;

/// The content of `source`, decompressed if it is compressed.
pub(crate) fn decompressed(source: Source) -> io::Result<Source> {
    let mut input = BufReader::with_capacity(INPUT_BYTES, source);
    let start = input.fill_buf()?;
    if start.starts_with(&ZSTD_MAGIC) || is_note(start) {
        return Ok(Box::new(Zstd {
            state: State::Between(input),
        }));
    }
    if start.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(input)));
    }
    if start.starts_with(&XZ_MAGIC) {
        return Ok(Box::new(lzma_rust2::XzReader::new_mem_limit(
            input,
            true,
            XZ_MEMORY_KIB,
        )));
    }
    Ok(Box::new(input))
}

/// True at a frame of zstd that holds no content (a skippable frame), as parallel compressors write.
fn is_note(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Passes over frames without content.
fn pass_over_notes(input: &mut BufReader<Source>) -> io::Result<()> {
    while is_note(input.fill_buf()?) {
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let [_, _, _, _, length @ ..] = head;
        let length = u64::from(u32::from_le_bytes(length));
        let passed = io::copy(&mut input.take(length), &mut io::sink())?;
        if passed < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Any number of zstd frames, one after another, as `zstd` itself reads them.
struct Zstd {
    state: State,
}

enum State {
    /// At the start of a frame, or at the end.
    Between(BufReader<Source>),
    Inside(
        Box<ruzstd::decoding::StreamingDecoder<BufReader<Source>, ruzstd::decoding::FrameDecoder>>,
    ),
    /// Nothing more can be read.
    Ended,
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(0),
                State::Between(mut input) => {
                    pass_over_notes(&mut input)?;
                    if input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let decoder =
                        ruzstd::decoding::StreamingDecoder::new(input).map_err(|error| {
                            io::Error::new(io::ErrorKind::InvalidData, error.to_string())
                        })?;
                    self.state = State::Inside(Box::new(decoder));
                }
                State::Inside(mut decoder) => {
                    let count = decoder.read(buffer)?;
                    if count > 0 {
                        self.state = State::Inside(decoder);
                        return Ok(count);
                    }
                    self.state = State::Between(decoder.into_inner());
                }
            }
        }
    }
}
