//! Secrets and seeds.

use rand::TryRng;
use rand::rngs::SysRng;

use super::node::NodeError;

/// Octets from the system's generator.
pub(super) fn random<const N: usize>() -> Result<[u8; N], NodeError> {
    let mut octets = [0; N];
    SysRng.try_fill_bytes(&mut octets).map_err(|e| NodeError::Random(e.to_string()))?;
    Ok(octets)
}

/// Words of 64 bits.
pub(super) fn random_words<const N: usize>() -> Result<[u64; N], NodeError> {
    let mut words = [0; N];
    for word in &mut words {
        *word = u64::from_ne_bytes(random()?);
    }
    Ok(words)
}
