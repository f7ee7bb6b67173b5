//! Reads the end of a certificate. Pure.

use rustls::pki_types::CertificateDer;
use x509_parser::{nom::Parser as _, prelude::X509CertificateParser};

/// Returns the certificate's `notAfter` as Unix time in seconds; `None` if it cannot be read.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    let mut parser = X509CertificateParser::new().with_deep_parse_extensions(false);
    let (_, certificate) = parser.parse(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
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
