//! Pointers of a C program, which requests keep until they are completed.
//!
//! This module may use `unsafe`: it reads and writes memory whose validity only the program
//! guarantees. It must access this memory only through a request in flight, and never beyond the
//! length that was passed with the pointer.

use std::ffi::c_void;

/// The program's own identifier of a request: a pointer that this library never dereferences.
#[derive(Clone, Copy)]
pub(crate) struct User(*mut c_void);

// SAFETY: the pointer is only returned to the program, and this library never dereferences it.
unsafe impl Send for User {}

impl User {
    pub(crate) fn new(pointer: *mut c_void) -> User {
        User(pointer)
    }

    pub(crate) fn pointer(self) -> *mut c_void {
        self.0
    }
}

/// A buffer of the program. For a request without a buffer, this value has a null address and the
/// length 0.
pub(crate) struct Buffer {
    start: *mut u8,
    length_bytes: usize,
}

// SAFETY: by the interface, the buffer belongs to the library until the request is completed,
// whichever thread works on it, and `Buffer` is not cloned.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Returns a value without a buffer.
    pub(crate) fn none() -> Buffer {
        Buffer {
            start: std::ptr::null_mut(),
            length_bytes: 0,
        }
    }

    /// Wraps the buffer of a request that has not been completed; returns `None` for NULL.
    pub(crate) fn new(start: *mut c_void, length_bytes: u32) -> Option<Buffer> {
        (!start.is_null()).then_some(Buffer {
            start: start.cast(),
            length_bytes: length_bytes as usize,
        })
    }

    /// Copies the whole buffer to `into`.
    pub(crate) fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.length_bytes, "a write is copied whole");
        if self.length_bytes > 0 {
            // SAFETY: the program guarantees that `length_bytes` bytes at `start` may be read until
            // the request is completed. `into` is memory of this library, which the program's
            // memory cannot overlap. No reference to the program's memory is made, so a program
            // that writes to its buffer meanwhile only gets torn data.
            unsafe {
                self.start
                    .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
            };
        }
    }

    /// Copies `from` to `offset` in the buffer. A slice that does not fit is a bug of this library.
    pub(crate) fn fill_at(&mut self, offset: usize, from: &[u8]) {
        let fits = offset
            .checked_add(from.len())
            .is_some_and(|end| end <= self.length_bytes);
        assert!(fits, "an answer is as long as was asked for");
        if !from.is_empty() {
            // SAFETY: the program guarantees that `length_bytes` bytes at `start` may be written
            // until the request is completed. The target range lies within them, and `from` is
            // memory of this library.
            unsafe {
                let place = self.start.add(offset);
                place.copy_from_nonoverlapping(from.as_ptr(), from.len());
            }
        }
    }
}
