//! Writing to stdout and stderr.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Writes to stdout at once.
pub fn print(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// Writes one JSON object to stdout.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(|error| Failure::Output(io::Error::other(error)))?;
    print(&(text + "\n"))
}

/// Writes a line to stderr, dimmed on a terminal: what stands beside the answer.
pub fn aside(text: &str) {
    let mut stderr = io::stderr();
    let dim = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (on, off) = if dim { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    let _ = writeln!(stderr, "{on}{text}{off}");
}

/// Writes a file, whole or not at all; a link stays one.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or(path.to_owned());
    let part = path.with_file_name(format!(".{}.part", std::process::id()));
    let written = File::create(&part).and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| drop(fs::remove_file(&part)))
}
