//! The names in a certificate that has been verified.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// DER tags (X.690) and the attribute `commonName` (2.5.4.3).
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// Returns the DNS names among the alternative names of a certificate or, if it has none, the
/// common names of its subject. Returns no names for a certificate that cannot be parsed.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let names: Vec<String> = certificate.valid_dns_names().map(str::to_owned).collect();
    if names.is_empty() {
        common_names(certificate.subject())
    } else {
        names
    }
}

/// Returns the common names of a subject, which is a sequence of attribute sets (RFC 5280, section
/// 4.1.2.4).
fn common_names(mut subject: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((SET, mut set, rest)) = element(subject) {
        while let Some((SEQUENCE, attribute, others)) = element(set) {
            names.extend(common_name(attribute));
            set = others;
        }
        subject = rest;
    }
    names
}

fn common_name(attribute: &[u8]) -> Option<String> {
    let (OBJECT_IDENTIFIER, kind, rest) = element(attribute)? else {
        return None;
    };
    let (UTF8_STRING | PRINTABLE_STRING, text, []) = element(rest)? else {
        return None;
    };
    let name = (kind == COMMON_NAME).then_some(text)?;
    String::from_utf8(name.to_vec()).ok()
}

/// Splits off the first DER element. Returns its tag, its content, and the bytes that follow the
/// element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        // The length is in the next one or two bytes. Longer lengths do not occur in names.
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*len)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The subject C=NL, CN=box. It consists of two sets with one attribute each.
    const SUBJECT: &[u8] =
        b"\x31\x0b\x30\x09\x06\x03\x55\x04\x06\x13\x02NL\x31\x0c\x30\x0a\x06\x03\x55\x04\x03\x0c\x03box";

    #[test]
    fn the_common_name_is_found_among_other_attributes() {
        assert_eq!(common_names(SUBJECT), ["box"]);
        assert_eq!(common_names(b""), [""; 0]);
    }

    #[test]
    fn what_is_cut_short_or_damaged_has_no_more_names_than_the_whole() {
        for len in 0..SUBJECT.len() {
            assert_eq!(common_names(&SUBJECT[..len]), [""; 0], "{len}");
            for bit in 0..8 {
                let mut damaged = SUBJECT.to_vec();
                damaged[len] ^= 1 << bit;
                assert!(common_names(&damaged).len() <= 1);
            }
        }
    }

    #[test]
    fn long_lengths_are_read() {
        let name = "n".repeat(300);
        // The length 300 is 0x012c. The length of the inner sequence is 9 bytes more, for the OID
        // and the head of the string. The length of the set is another 4 bytes more, for the head
        // of the sequence.
        let subject = [
            &b"\x31\x82\x01\x39\x30\x82\x01\x35\x06\x03\x55\x04\x03\x0c\x82\x01\x2c"[..],
            name.as_bytes(),
        ];
        assert_eq!(common_names(&subject.concat()), [name]);
    }
}
