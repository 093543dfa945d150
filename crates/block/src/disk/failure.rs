//! Texts for the operator about errors that the kernel reports for a failing device: the error with
//! its name, and the remedy.

use std::io;

use bimetal_rt::Rt;
use bimetal_rt::real_time::limit_in_words;

/// Posts a notice to the operator that the operation `what` failed on the device `subject`. Returns
/// the error unchanged.
pub(crate) fn tell(rt: &Rt, subject: &str, what: &str, error: io::Error) -> io::Error {
    let kind = "device-failed";
    let words = in_words(&error);
    rt.notices()
        .post(subject, kind, format_args!("{what} failed: {words}"));
    error
}

/// Returns a text with the error, its name, and the remedy.
fn in_words(error: &io::Error) -> String {
    let Some(number) = error.raw_os_error() else {
        return error.to_string();
    };
    let known = KNOWN.iter().find(|(known, _, _)| *known == number);
    let words = limit_in_words(error);
    match known {
        Some((_, name, "")) => format!("{name}: {words}"),
        Some((_, name, advice)) => format!("{name}: {words}; {advice}"),
        None => words,
    }
}

/// Linux error numbers (`errno-base.h` and `errno.h` of `asm-generic`), with names and remedies.
const KNOWN: [(i32, &str, &str); 10] = [
    (
        5,
        "EIO",
        "see the kernel log; if the error persists, replace the device",
    ),
    (6, "ENXIO", "the device is gone"),
    (
        12,
        "ENOMEM",
        "the machine or its memory cgroup is short of memory",
    ),
    (19, "ENODEV", "the device is gone"),
    (27, "EFBIG", ""),
    (
        28,
        "ENOSPC",
        "free space on the file system, or in the pool, that the device is on",
    ),
    (
        30,
        "EROFS",
        "the file system or device below it has become read-only",
    ),
    (
        52,
        "EBADE",
        "another machine holds a reservation on the device",
    ),
    (
        110,
        "ETIMEDOUT",
        "the device did not answer the kernel in time",
    ),
    (122, "EDQUOT", "raise the quota of the server's user"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_names_and_what_to_do() {
        let words = |number| in_words(&io::Error::from_raw_os_error(number));
        let full = words(28);
        assert!(
            full.starts_with("ENOSPC: No space left on device"),
            "{full}"
        );
        assert!(full.contains("free space"), "{full}");
        assert!(words(122).contains("quota"));
        assert!(words(5).starts_with("EIO: Input/output error"));
        // An error without an entry in the table of this module is described in the kernel's words.
        assert!(words(95).contains("not supported"));
    }
}
