//! The BRP initiator for C programs: the functions of `include/bimetal_brp.h`.
//!
//! The header is the interface and specifies each function. This crate validates all arguments and
//! passes them to `bimetal_client`, which does the work. It must never let a panic escape, never
//! trust a number from the program, and never touch a buffer of the program after the request has
//! been completed.
//!
//! This crate may use `unsafe`, because memory that a C program points to cannot be read otherwise.
//! `unsafe` is used in this file, where pointers become references; in `memory.rs`, where pointers
//! are kept for the duration of a request; and where an event descriptor is created.

#![allow(unsafe_code)]

mod completions;
mod failure;
mod memory;
mod request;
mod session;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use failure::Failure;
use request::RawRequest;
use session::Session;

/// `struct brp_volume`.
#[repr(C)]
pub struct RawVolume {
    size_bytes: u64,
    block_bytes: u32,
    preferred_bytes: u32,
    transfer_bytes_max: u32,
    range_bytes_max: u32,
    rights: u32,
    reserved: u32,
}

/// `struct brp_completion`.
#[repr(C)]
pub struct RawCompletion {
    user: *mut c_void,
    result: i32,
    reserved: u32,
}

/// Runs the body of a function of the C interface. A panic is returned as -EIO. A failure is
/// returned as its error number and stored as the thread's last error.
fn at_the_boundary(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // A session remains usable after a panic: locks that the panic poisoned are used as they are
    // (see `completions`).
    let outcome = catch_unwind(AssertUnwindSafe(body));
    match outcome.unwrap_or_else(|_panic| Err(Failure::panicked())) {
        Ok(value) => value,
        Err(failure) => failure.remember(),
    }
}

fn null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is NULL"))
}

/// Returns the session that a pointer of the program refers to.
///
/// # Safety
/// The pointer is NULL, or comes from `brp_open` and has not been passed to `brp_close`.
unsafe fn session<'a>(session: *const Session) -> Result<&'a Session, Failure> {
    // SAFETY: `brp_open` made the pointer from a box, and the caller guarantees that the box has
    // not been dropped. Only shared references to the session are made, and `Session` is `Sync`.
    unsafe { session.as_ref() }.ok_or_else(|| null("session"))
}

/// Opens a session. The header specifies this function.
///
/// # Safety
/// `uri` is NULL or points to a string that ends with a NUL; `out` is NULL or points to writable
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_open(uri: *const c_char, out: *mut *mut Session) -> c_int {
    at_the_boundary(|| {
        if out.is_null() {
            return Err(null("session"));
        }
        // SAFETY: not NULL, and the caller guarantees that `out` may be written.
        unsafe { out.write(std::ptr::null_mut()) };
        if uri.is_null() {
            return Err(null("uri"));
        }
        // SAFETY: not NULL, and the caller guarantees that the string ends with a NUL.
        let uri = unsafe { CStr::from_ptr(uri) };
        let uri = uri
            .to_str()
            .map_err(|_| Failure::invalid("the URI is not UTF-8"))?;
        let opened = Box::new(Session::open(uri)?);
        // SAFETY: not NULL, and the caller guarantees that `out` may be written.
        unsafe { out.write(Box::into_raw(opened)) };
        Ok(0)
    })
}

/// Closes a session. The header specifies this function.
///
/// # Safety
/// `session` is NULL, or comes from `brp_open` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_close(session: *mut Session) {
    at_the_boundary(|| {
        if !session.is_null() {
            // SAFETY: `brp_open` made the pointer from a box, and the caller passes it here only
            // once.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(0)
    });
}

/// Describes the volume of a session. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`; `volume` is NULL or points to writable
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_get_volume(session: *const Session, volume: *mut RawVolume) -> c_int {
    at_the_boundary(|| {
        // SAFETY: the caller guarantees that the session is NULL or open.
        let session = unsafe { self::session(session) }?;
        if volume.is_null() {
            return Err(null("volume"));
        }
        let export = session.export();
        let description = RawVolume {
            size_bytes: export.size_bytes,
            block_bytes: export.block_bytes,
            preferred_bytes: export.preferred_bytes,
            transfer_bytes_max: export.transfer_bytes_max,
            range_bytes_max: export.range_bytes_max,
            rights: export.rights,
            reserved: 0,
        };
        // SAFETY: not NULL, and the caller guarantees that `volume` may be written.
        unsafe { volume.write(description) };
        Ok(0)
    })
}

/// Submits requests. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`. `requests` is NULL or an array of `count`
/// requests, whose buffers belong to the library until the requests are reaped or the session is
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_submit(
    session: *mut Session,
    requests: *const RawRequest,
    count: u32,
) -> c_int {
    at_the_boundary(|| {
        // SAFETY: the caller guarantees that the session is NULL or open.
        let session = unsafe { self::session(session) }?;
        if count == 0 {
            return Ok(0);
        }
        if requests.is_null() {
            return Err(null("requests"));
        }
        // SAFETY: not NULL, and the caller guarantees that the array has `count` requests; every
        // bit pattern is valid for their fields.
        let requests = unsafe { std::slice::from_raw_parts(requests, count as usize) };
        let requests = requests
            .iter()
            .map(|raw| raw.checked(session.export()))
            .collect::<Result<Vec<_>, _>>()?;
        let taken = session.submit(requests)?;
        Ok(taken as c_int)
    })
}

/// Takes completions. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`; `completions` is NULL or points to a
/// writable array of `max` completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_reap(
    session: *mut Session,
    completions: *mut RawCompletion,
    min: u32,
    max: u32,
    timeout_ms: c_int,
) -> c_int {
    at_the_boundary(|| {
        // SAFETY: the caller guarantees that the session is NULL or open.
        let session = unsafe { self::session(session) }?;
        if min > max {
            return Err(Failure::invalid("min is more than max"));
        }
        if max == 0 {
            return Ok(0);
        }
        if completions.is_null() {
            return Err(null("completions"));
        }
        let mut place = completions;
        let taken = session.reap(min as usize, max as usize, timeout_ms, |user, result| {
            let completion = RawCompletion {
                user: user.pointer(),
                result: result.map_or_else(|failure| failure.remember(), |()| 0),
                reserved: 0,
            };
            // SAFETY: not NULL, the caller guarantees that `max` completions may be written, and at
            // most `max` completions are reaped.
            unsafe {
                place.write(completion);
                place = place.add(1);
            }
        })?;
        Ok(taken as c_int)
    })
}

/// Returns the event descriptor of a session. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_event_fd(session: *mut Session) -> c_int {
    at_the_boundary(|| {
        // SAFETY: the caller guarantees that the session is NULL or open.
        unsafe { self::session(session) }?.event_fd()
    })
}

/// Carries out a request and waits for its result.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`; the buffer of the request is valid until
/// this returns.
unsafe fn wait_for(session: *mut Session, raw: &RawRequest) -> c_int {
    at_the_boundary(|| {
        // SAFETY: the caller guarantees that the session is NULL or open.
        let session = unsafe { self::session(session) }?;
        session.run(raw.checked(session.export())?)?;
        Ok(0)
    })
}

/// Reads from the volume and waits. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`; `data` is NULL or points to `length_bytes`
/// writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_read(
    session: *mut Session,
    data: *mut c_void,
    length_bytes: u32,
    offset_bytes: u64,
) -> c_int {
    let raw = RawRequest::new(request::READ, data, offset_bytes, length_bytes, 0);
    // SAFETY: the caller guarantees that the session is NULL or open, and that the buffer may be
    // written.
    unsafe { wait_for(session, &raw) }
}

/// Writes to the volume and waits. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`; `data` is NULL or points to `length_bytes`
/// readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_write(
    session: *mut Session,
    data: *const c_void,
    length_bytes: u32,
    offset_bytes: u64,
    flags: u32,
) -> c_int {
    // The buffer of a write is only ever read.
    let data = data.cast_mut();
    let raw = RawRequest::new(request::WRITE, data, offset_bytes, length_bytes, flags);
    // SAFETY: the caller guarantees that the session is NULL or open, and that the buffer may be
    // read.
    unsafe { wait_for(session, &raw) }
}

/// Flushes the volume and waits. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_flush(session: *mut Session) -> c_int {
    let raw = RawRequest::new(request::FLUSH, std::ptr::null_mut(), 0, 0, 0);
    // SAFETY: the caller guarantees that the session is NULL or open.
    unsafe { wait_for(session, &raw) }
}

/// Discards a range of the volume and waits. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_discard(
    session: *mut Session,
    length_bytes: u32,
    offset_bytes: u64,
    flags: u32,
) -> c_int {
    let none = std::ptr::null_mut();
    let raw = RawRequest::new(request::DISCARD, none, offset_bytes, length_bytes, flags);
    // SAFETY: the caller guarantees that the session is NULL or open.
    unsafe { wait_for(session, &raw) }
}

/// Makes a range of the volume read as zeroes and waits. The header specifies this function.
///
/// # Safety
/// `session` is NULL or an open session from `brp_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brp_write_zeroes(
    session: *mut Session,
    length_bytes: u32,
    offset_bytes: u64,
    flags: u32,
) -> c_int {
    let none = std::ptr::null_mut();
    let raw = RawRequest::new(
        request::WRITE_ZEROES,
        none,
        offset_bytes,
        length_bytes,
        flags,
    );
    // SAFETY: the caller guarantees that the session is NULL or open.
    unsafe { wait_for(session, &raw) }
}

/// Returns the message of the thread's last failure. The header specifies this function.
#[unsafe(no_mangle)]
pub extern "C" fn brp_last_error() -> *const c_char {
    // If `last_words` panics, only a static message can be returned.
    catch_unwind(failure::last_words).unwrap_or(c"an unexpected panic".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_comes_out_as_a_number_with_words() {
        let result = at_the_boundary(|| panic!("a fault"));
        assert_eq!(result, -libc::EIO);
        // SAFETY: the message of this thread ends with a NUL and stays valid until the thread's
        // next failure.
        let words = unsafe { CStr::from_ptr(brp_last_error()) };
        assert!(words.to_str().unwrap().contains("panicked"));
    }
}
