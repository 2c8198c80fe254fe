//! Fingerprints: numbers that tell texts and models apart, the same in every build and on every machine.

/// The FNV-1a hash of bytes. Source: the FNV authors' specification, with 64 bits.
pub(crate) fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}
