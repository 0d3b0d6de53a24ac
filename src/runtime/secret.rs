//! The secret of our dialog tokens (rule 8), from a file that a cluster may share.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// Least octets of a secret.
pub const LEAST: usize = 16;
/// Most octets read.
const MOST: u64 = 4096;

/// Why `sip.dialog_secret_file` gives no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("dialog_secret_file {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// It holds less than [`LEAST`] octets.
    #[error(
        "dialog_secret_file {}: {octets} octets are too few, put at least 16 there (openssl rand -hex 32)",
        path.display()
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// How many it holds.
        octets: usize,
    },
}

/// Reads a secret: hexadecimal digits, else the octets as they are; white space around it does not count.
///
/// # Errors
/// The file cannot be read or holds too little.
pub fn read(path: &Path) -> Result<[u8; 16], SecretError> {
    let mut octets = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MOST).read_to_end(&mut octets))
        .map_err(|cause| SecretError::Read { path: path.to_owned(), cause })?;
    key(&octets).map_err(|octets| SecretError::Short { path: path.to_owned(), octets })
}

/// The key that a file's octets stand for, or how many there are if these are too few.
fn key(octets: &[u8]) -> Result<[u8; 16], usize> {
    let text = octets.trim_ascii();
    let secret = unhex(text).unwrap_or_else(|| text.to_vec());
    if secret.len() < LEAST {
        return Err(secret.len());
    }
    if let Ok(whole) = <[u8; 16]>::try_from(secret.as_slice()) {
        return Ok(whole);
    }
    // A longer one counts as a whole.
    let mut hasher = SipHasher24::new();
    hasher.write(&secret);
    Ok(hasher.finish128().as_bytes())
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_hexadecimal_or_raw_and_long_enough() {
        assert_eq!(
            key(b"000102030405060708090a0b0c0d0e0f\n").ok(),
            Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
        );
        assert_eq!(key(b"sixteen octets!!").ok(), Some(*b"sixteen octets!!"));
        assert_eq!(key(b"0001020304050607"), Err(8), "hexadecimal digits are half an octet each");
        assert_eq!(key(b" too short \n"), Err(9));
        assert_eq!(key(b""), Err(0));
    }

    #[test]
    fn every_octet_of_a_long_secret_counts() {
        let (a, b) = ([b'x'; 40], [[b'x'; 39].as_slice(), b"y"].concat());
        assert_ne!(key(&a), key(&b));
        assert_eq!(key(&a), key(&a));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/nonexistent/secret")).map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("/nonexistent/secret")));
    }
}
