//! The bytes of a trace in pieces: lines of text, or records of a fixed length.
//!
//! The input has one buffer, which is refilled in place. A line longer than [`LINE_BYTES_MAX`] is
//! an error, so a long line uses no additional memory.

use std::io::{self, Read};

/// Maximum length of a line.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// A buffered reader of lines and records from a stream.
pub(crate) struct Input {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
}

/// Result of [`Input::line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line without its line end: the range of the line in the buffer, as the two arguments of
    /// [`Input::bytes`].
    Here(usize, usize),
    /// A line that is too long; it has been skipped.
    TooLong,
    /// No more lines.
    End,
}

impl Input {
    pub(crate) fn new(source: Box<dyn Read + Send>) -> Input {
        Input {
            source,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            at_end: false,
        }
    }

    /// Reads more bytes from the stream and appends them to the buffered bytes. Returns false if
    /// the stream has ended.
    fn refill(&mut self) -> io::Result<bool> {
        if self.at_end {
            return Ok(false);
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.at_end = true;
                    return Ok(false);
                }
                Ok(count) => {
                    self.end += count;
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next bytes without consuming them: at most `bytes` bytes, and at most
    /// [`LINE_BYTES_MAX`].
    pub(crate) fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        let wanted = bytes.min(LINE_BYTES_MAX);
        while self.end - self.start < wanted && self.refill()? {}
        let here = wanted.min(self.end - self.start);
        Ok(&self.buffer[self.start..self.start + here])
    }

    /// Returns the bytes of the most recently returned line, which has the range `from..to` in the
    /// buffer.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        &self.buffer[from..to]
    }

    /// Returns the next line. A line ends with LF or CR LF; the last line of the stream can lack
    /// this end.
    pub(crate) fn line(&mut self) -> io::Result<Line> {
        let mut searched = 0;
        loop {
            let unsearched = &self.buffer[self.start + searched..self.end];
            if let Some(at) = memchr::memchr(b'\n', unsearched) {
                let (from, to) = (self.start, self.start + searched + at);
                self.start = to + 1;
                return Ok(self.checked(from, to));
            }
            searched = self.end - self.start;
            if searched > LINE_BYTES_MAX {
                return self.pass_over();
            }
            if !self.refill()? {
                let (from, to) = (self.start, self.end);
                self.start = to;
                return Ok(if from == to {
                    Line::End
                } else {
                    self.checked(from, to)
                });
            }
        }
    }

    fn checked(&self, from: usize, to: usize) -> Line {
        if to - from > LINE_BYTES_MAX {
            return Line::TooLong;
        }
        let carriage = to > from && self.buffer[to - 1] == b'\r';
        Line::Here(from, to - usize::from(carriage))
    }

    /// Skips bytes up to the end of a line.
    fn pass_over(&mut self) -> io::Result<Line> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.start..self.end]) {
                self.start += at + 1;
                return Ok(Line::TooLong);
            }
            self.start = self.end;
            if !self.refill()? {
                return Ok(Line::TooLong);
            }
        }
    }

    /// Consumes and returns the next `length` bytes, which must be at most [`LINE_BYTES_MAX`].
    /// Returns fewer bytes at the end of the stream, and none after the end.
    pub(crate) fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.end - self.start < length && self.refill()? {}
        let here = length.min(self.end - self.start);
        self.start += here;
        Ok(&self.buffer[self.start - here..self.start])
    }
}
