//! Parsing and formatting of sizes such as `"64MiB"` and times such as `"10ms"` in configurations.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use crate::request::BLOCK_BYTES;

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// A rate in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

const SIZES: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

const TIMES: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a size: a whole or decimal number followed by a unit (`B`, `KiB` .. `TiB`, `kB` .. `TB`).
///
/// # Errors
/// A message that says why the text is no size.
pub fn parse_size(text: &str) -> Result<Size, String> {
    scaled(text, &SIZES)
        .map(Size)
        .map_err(|why| format!("size \"{text}\": {why}, as in \"64MiB\""))
}

/// Parses a rate: a size followed by `/s`.
///
/// # Errors
/// A message that says why the text is no rate.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let size = text
        .trim()
        .strip_suffix("/s")
        .map(|size| scaled(size, &SIZES));
    size.unwrap_or(Err("expected a size and `/s`"))
        .map(Rate)
        .map_err(|why| format!("rate \"{text}\": {why}, as in \"20MiB/s\""))
}

/// Parses a time: a whole or decimal number followed by a unit (`ns`, `us`, `ms`, `s`, `min`, `h`).
///
/// # Errors
/// A message that says why the text is no time.
pub fn parse_time(text: &str) -> Result<Time, String> {
    scaled(text, &TIMES)
        .map(|ns| Time(Duration::from_nanos(ns)))
        .map_err(|why| format!("time \"{text}\": {why}, as in \"10ms\""))
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Result<u64, &'static str> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let scale = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or("expected a number and a unit")?
        .1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let too_large = "too large";
    let whole: u64 = whole.parse().map_err(|_| "expected a number and a unit")?;
    let mut value = whole.checked_mul(scale).ok_or(too_large)?;
    if !fraction.is_empty() {
        let digits: u64 = fraction
            .parse()
            .map_err(|_| "expected a number and a unit")?;
        let power = 10u64
            .checked_pow(fraction.len() as u32)
            .ok_or("too many decimals")?;
        let part = u128::from(digits) * u128::from(scale) / u128::from(power);
        value = value.checked_add(part as u64).ok_or(too_large)?;
    }
    Ok(value)
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_size(&text).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_rate(&text).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_time(&text).map_err(de::Error::custom)
    }
}

/// Parses the size of a device in a configuration. Unlike [`parse_size`], rounds the size down to
/// whole blocks, unless the unit is bytes (`B`). So a size printed by this crate, such as
/// `1.1 GiB`, and a decimal size, such as `1 GB`, are accepted.
///
/// # Errors
/// A message that says why the text is no size.
pub fn parse_device_size(text: &str) -> Result<Size, String> {
    let size = parse_size(text)?;
    let unit = text.trim().trim_start_matches(|c: char| !c.is_alphabetic());
    let rest_bytes = match unit {
        "B" => 0,
        _ => size.0 % BLOCK_BYTES,
    };
    Ok(Size(size.0 - rest_bytes))
}

/// Deserializes a field of a configuration that holds the size of a device.
pub(crate) fn device_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_device_size(&text).map_err(de::Error::custom)
}

/// Deserializes an optional field of a configuration that holds the size of a device.
pub(crate) fn device_size_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Size>, D::Error> {
    device_size(deserializer).map(Some)
}

/// Formats a size for display, in the largest unit in which the number is at least one.
pub fn show_size(bytes: u64) -> String {
    let units = [
        ("TiB", 1u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    for (unit, scale) in units {
        if bytes >= scale {
            let value = bytes as f64 / scale as f64;
            return if bytes.is_multiple_of(scale) {
                format!("{} {unit}", bytes / scale)
            } else {
                format!("{value:.1} {unit}")
            };
        }
    }
    format!("{bytes} B")
}

/// Formats a time for display, with a unit.
pub fn show_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Formats a whole number in groups of three digits.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns the year, the month and the day of the month, both from 1, of the day that is `days`
/// days after 1970-01-01.
pub fn civil_date(days: u64) -> (u64, u64, u64) {
    // Years are counted from March to February, in eras of 400 years, so that a leap day is the
    // last day of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Formats a Unix time for display, in UTC: `2026-01-31 23:59:59 UTC`.
pub fn show_unix_time(seconds: u64) -> String {
    let (year, month, day) = civil_date(seconds / 86_400);
    let second = seconds % 86_400;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        // Known instants: the epoch, a leap day, the 32-bit end of time, the last second of a year.
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (2_147_483_647, "2038-01-19 03:14:07 UTC"),
            (1_798_761_599, "2026-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(show_unix_time(seconds), expected);
        }
    }

    #[test]
    fn counts_are_shown_in_threes() {
        let counts = [0, 999, 1000, 12_345, 1_234_567];
        let shown = ["0", "999", "1,000", "12,345", "1,234,567"];
        assert_eq!(counts.map(show_count), shown.map(str::to_owned));
    }

    /// A printed size can be parsed again. The parsed size differs from the original size only by
    /// the rounding of the printed number to one decimal and by rounding down to whole blocks.
    #[test]
    fn every_size_that_is_shown_is_a_size_of_a_device() {
        let powers = (12..64).map(|bits| 1u64 << bits);
        let decimal = (4..20).map(|digits| 10u64.pow(digits));
        for bytes in powers
            .chain(decimal)
            .flat_map(|n| [n, n + n / 10, n + n / 3, n - 1])
        {
            let shown = show_size(bytes);
            let Ok(Size(read)) = parse_device_size(&shown) else {
                panic!("{bytes} is shown as {shown}, which is refused");
            };
            let in_bytes = shown.ends_with(" B");
            assert!(
                in_bytes || read.is_multiple_of(BLOCK_BYTES),
                "{shown}: {read}"
            );
            // A printed number is at least 1.0 and has one decimal, so its rounding error is at
            // most 5 %. Rounding down to whole blocks removes less than one block.
            let off = bytes.abs_diff(read);
            assert!(
                off <= bytes / 20 + BLOCK_BYTES,
                "{bytes} as {shown}: {read}"
            );
        }
        for (text, bytes) in [
            ("1 GB", 1_000_000_000 / 4096 * 4096),
            ("1.1 GiB", 1_181_116_006 / 4096 * 4096),
            ("1MiB", 1 << 20),
            ("4097B", 4097),
        ] {
            assert_eq!(parse_device_size(text), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn sizes_and_times_are_read() {
        assert_eq!(parse_size("64MiB"), Ok(Size(67_108_864)));
        assert_eq!(parse_size("1.5 GiB"), Ok(Size(1_610_612_736)));
        assert_eq!(parse_size("500GB"), Ok(Size(500_000_000_000)));
        assert_eq!(parse_rate("20MiB/s"), Ok(Rate(20 << 20)));
        assert_eq!(parse_rate(" 1.5 GB/s "), Ok(Rate(1_500_000_000)));
        for bad in ["", "20MiB", "20MiB/m", "/s", "MiB/s", "-1MiB/s"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_time("10ms"), Ok(Time(Duration::from_millis(10))));
        assert_eq!(parse_time("1.5s"), Ok(Time(Duration::from_millis(1500))));
        for bad in [
            "",
            "12",
            "MiB",
            "-1MiB",
            "1 MiBs",
            "1..2s",
            "99999999TiB",
            "1e9B",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_time("5 minutes").is_err());
    }
}
