//! Reads the end of a certificate from its DER form (RFC 5280). Pure.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the certificate's `notAfter` as Unix time in seconds; `None` if it cannot be read.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut rest, _) = element(certificate)? else { return None };
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    // These are the serial number, the signature algorithm and the issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (kind, time, _) = element(element(validity)?.2)?;
    let text = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    let (year, rest) = match kind {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            // Two digits stand for 1950 to 2049, RFC 5280 4.1.2.5.1.
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
    Some(days(year, month, day) * DAY + hour * 3600 + minute * 60 + second)
}

const DAY: i64 = Duration::from_secs(86400).as_secs().cast_signed();

/// Returns the days from 1970-01-01 in the Gregorian calendar. Years begin in March here, so that a leap day is the
/// last day of its year.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + in_year - 719_468
}

/// Returns the tag and the content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The low bits are the number of length bytes; four are enough for any certificate.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn both_forms_of_time_are_read() {
        for (date, expected) in [
            ((1999, 12, 31), 946_598_400),
            ((2024, 2, 29), 1_709_164_800),
            ((2049, 12, 31), 2_524_521_600),
            ((2100, 3, 1), 4_107_542_400),
        ] {
            let mut params = CertificateParams::default();
            params.not_before = date_time_ymd(1990, 1, 1);
            params.not_after = date_time_ymd(date.0, date.1, date.2);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(not_after(certificate.der()), Some(expected), "{date:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let certificate = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
        let bytes = certificate.der().to_vec();
        for length in 0..bytes.len() {
            // A certificate that is cut anywhere does not cause a panic: the first length exceeds the bytes.
            assert_eq!(not_after(&bytes[..length].to_vec().into()), None, "{length}");
        }
    }
}
