//! Durations and sizes as the configuration writes them.

use std::time::Duration;

use super::error::Fault;

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZE_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// A whole number and one unit: `100ms`, `2s`, `5m`, `1h`, `1d`, `0s`.
pub(super) fn duration(text: &str) -> Result<Duration, Fault> {
    let wrong = |why: &str| {
        Fault::new(
            format!("\"{text}\" is not a duration: {why}"),
            "write a whole number and one of ms, s, m, h, d, such as \"500ms\"",
        )
    };
    let (number, unit) = split(text);
    let number = parse(number).ok_or_else(|| wrong("it does not begin with a whole number"))?;
    if unit.is_empty() {
        return Err(wrong("the unit is missing"));
    }
    let (_, factor) = DURATION_UNITS
        .iter()
        .find(|(u, _)| *u == unit)
        .ok_or_else(|| wrong(&format!("unknown unit \"{unit}\"")))?;
    let millis = number?.checked_mul(*factor).ok_or_else(|| wrong("it is too long"));
    millis.map(Duration::from_millis)
}

/// A duration as the configuration writes it.
pub fn read_duration(text: &str) -> Option<Duration> {
    duration(text).ok()
}

/// A size as the configuration writes it, octets.
pub fn read_size(text: &str) -> Option<u64> {
    size(text).ok()
}

/// A whole number of octets, or one with a unit: `65536`, `64KiB`, `1MiB`.
pub(super) fn size(text: &str) -> Result<u64, Fault> {
    let wrong = |why: &str| {
        Fault::new(
            format!("\"{text}\" is not a size: {why}"),
            "write octets as a whole number, or with one of KiB, MiB, GiB, such as \"64KiB\"",
        )
    };
    let (number, unit) = split(text);
    let number = parse(number).ok_or_else(|| wrong("it does not begin with a whole number"))?;
    let unit = if unit.is_empty() { "B" } else { unit };
    let (_, factor) = SIZE_UNITS
        .iter()
        .find(|(u, _)| *u == unit)
        .ok_or_else(|| wrong(&format!("unknown unit \"{unit}\"")))?;
    number?.checked_mul(*factor).ok_or_else(|| wrong("it is too large"))
}

fn split(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (text.get(..digits).unwrap_or_default(), text.get(digits..).unwrap_or_default())
}

/// `None`: no digits. Inside: too many of them.
fn parse(digits: &str) -> Option<Result<u64, Fault>> {
    if digits.is_empty() {
        return None;
    }
    Some(
        digits
            .parse()
            .map_err(|_| Fault::new(format!("the number {digits} is too large"), "write a smaller one")),
    )
}

/// A duration as the configuration would write it, in the largest unit that needs no fraction.
pub fn show_duration(d: Duration) -> String {
    let millis = d.as_millis();
    let unit = DURATION_UNITS.iter().skip(1).rev().find(|(_, f)| millis.is_multiple_of(u128::from(*f)));
    match unit {
        _ if millis == 0 => "0s".to_owned(),
        Some((unit, factor)) => format!("{}{unit}", millis / u128::from(*factor)),
        None => format!("{millis}ms"),
    }
}

/// A size as the configuration would write it, in the largest unit that needs no fraction.
pub fn show_size(octets: u64) -> String {
    match SIZE_UNITS.iter().skip(1).rev().find(|(_, f)| octets != 0 && octets.is_multiple_of(*f)) {
        Some((unit, factor)) => format!("{}{unit}", octets / factor),
        None => octets.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn durations_are_a_whole_number_and_a_unit() {
        for (text, millis) in [
            ("0s", 0),
            ("100ms", 100),
            ("2s", 2_000),
            ("185s", 185_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "whole number"),
            ("s", "whole number"),
            ("-1s", "whole number"),
            (" 1s", "whole number"),
            ("5", "unit is missing"),
            ("1.5s", "unknown unit \".5s\""),
            ("1 s", "unknown unit"),
            ("1S", "unknown unit"),
            ("1min", "unknown unit"),
            ("1h30m", "unknown unit"),
            ("99999999999999999999s", "too large"),
            ("18446744073709551615d", "too long"),
        ] {
            let fault = duration(text).unwrap_err();
            assert!(fault.what.contains(why), "{text}: {}", fault.what);
            assert!(!fault.remedy.is_empty());
        }
    }

    #[test]
    fn sizes_are_octets_or_binary_multiples() {
        for (text, octets) in [
            ("0", 0),
            ("1500", 1500),
            ("1500B", 1500),
            ("64KiB", 65_536),
            ("1MiB", 1 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(size(text).unwrap(), octets, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "whole number"),
            ("KiB", "whole number"),
            ("64K", "unknown unit"),
            ("64kib", "unknown unit"),
            ("64 KiB", "unknown unit"),
        ] {
            let fault = size(text).unwrap_err();
            assert!(fault.what.contains(why), "{text}: {}", fault.what);
        }
        assert!(size("18446744073709551615KiB").unwrap_err().what.contains("too large"));
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same() {
        for text in ["0s", "10ms", "500ms", "4s", "185s", "10m", "12h", "1d"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
        for text in ["0", "100", "64KiB", "1MiB", "3GiB"] {
            assert_eq!(show_size(size(text).unwrap()), text);
        }
    }
}
