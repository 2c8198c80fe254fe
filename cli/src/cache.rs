//! What the program keeps for itself between runs: what steps and windows take on this machine's GPUs.
//!
//! Only speed depends on it, so whatever cannot be read counts as unknown, and what cannot be written is let go.

use std::fs;
use std::path::PathBuf;

use forerun::decoder::calibrate::Calibrations;

use crate::output;

/// The file of calibrations: in $FORERUN_CACHE, or in the user's folder for caches.
fn path() -> Option<PathBuf> {
    let chosen = std::env::var_os("FORERUN_CACHE").filter(|folder| !folder.is_empty());
    let folder = chosen.map(PathBuf::from).or_else(|| Some(dirs::cache_dir()?.join("forerun")));
    Some(folder?.join("calibrations.jsonl"))
}

/// What earlier runs found out.
pub fn calibrations() -> Calibrations {
    path().and_then(|path| fs::read(path).ok()).map(|bytes| Calibrations::from_bytes(&bytes)).unwrap_or_default()
}

/// Keeps what is known now.
pub fn keep(calibrations: &Calibrations) {
    if let Some(path) = path() {
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let _ = made.and_then(|()| output::write_whole(&path, &calibrations.to_bytes()));
    }
}
