//! Checksums of files that a load reads. A plan contains the checksum of a file, because the
//! content of the file at a path can change later.

use std::io::Read as _;
use std::path::Path;

use crate::layer::LoadError;

/// Checks that a checksum in a plan is well-formed.
///
/// # Errors
/// A description of the mistake.
pub(super) fn check_digits(wanted: Option<&str>) -> Result<(), String> {
    let is_sum = |text: &str| text.len() == 8 && u32::from_str_radix(text, 16).is_ok();
    match wanted.is_none_or(is_sum) {
        true => Ok(()),
        false => Err("`crc32c` must be eight hexadecimal digits".to_owned()),
    }
}

/// Checks that a file has the CRC-32C `wanted`, in hexadecimal digits; `None` accepts any content.
///
/// # Errors
/// If the checksum differs, or the file cannot be read.
pub(super) fn check(path: &Path, wanted: Option<&str>) -> Result<(), LoadError> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let found = sum_of(path).map_err(|error| LoadError::Io {
        what: path.display().to_string(),
        error,
    })?;
    match wanted == found {
        true => Ok(()),
        false => Err(LoadError::Trace(format!(
            "{}: this is not the expected file: its CRC-32C is {found}, not {wanted}",
            path.display()
        ))),
    }
}

fn sum_of(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let (mut sum, mut bytes) = (0, vec![0; 1 << 20]);
    loop {
        let count = file.read(&mut bytes)?;
        if count == 0 {
            return Ok(format!("{sum:08x}"));
        }
        sum = crc32c::crc32c_append(sum, &bytes[..count]);
    }
}
