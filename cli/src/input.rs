//! Reading texts that a user gives, in files, pipes and stdin.

use std::io::{self, Read};

use crate::format;

/// Reads a text in UTF-8 to its end.
///
/// # Errors
/// Where it cannot be read, is not UTF-8, or is longer than `limit` bytes: a pipe need not have an end.
pub fn read_text(source: impl Read, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it is longer than {}", format::bytes(limit))));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}
