//! Bytes of a trace in pieces: lines of text, or records of a fixed length.
//!
//! One buffer, refilled in place. A line longer than [`LINE_BYTES_MAX`] is an error and not memory.

use std::io::{self, Read};

/// The longest line that is read.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// A buffer over a stream.
pub(crate) struct Input {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
}

/// What [`Input::line`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line without its end, as a range of [`Input::bytes`].
    Here(usize, usize),
    /// A line that is too long; it has been passed over.
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

    /// Reads more data after the buffered data. Returns false if the stream has ended.
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

    /// As much of the beginning as the buffer takes, at most `bytes`, without consuming it.
    pub(crate) fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        let wanted = bytes.min(LINE_BYTES_MAX);
        while self.end - self.start < wanted && self.refill()? {}
        let here = wanted.min(self.end - self.start);
        Ok(&self.buffer[self.start..self.start + here])
    }

    /// The bytes of a line that was found last.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        &self.buffer[from..to]
    }

    /// The next line. LF and CR LF end one; the last needs no end.
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

    /// Drops bytes up to the end of a line.
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

    /// The next `length` bytes, at most [`LINE_BYTES_MAX`]; fewer at the end, none past it.
    pub(crate) fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.end - self.start < length && self.refill()? {}
        let here = length.min(self.end - self.start);
        self.start += here;
        Ok(&self.buffer[self.start - here..self.start])
    }
}
