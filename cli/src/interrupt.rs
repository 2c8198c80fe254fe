//! Ctrl-C: during an answer it ends the answer, at any other time (or pressed again) the program.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static ANSWERING: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

/// Listens for Ctrl-C from now on. Where the system does not let it, Ctrl-C ends the program as it always does.
pub fn listen() {
    let _ = ctrlc::set_handler(|| {
        let first = !STOP.swap(true, Ordering::Relaxed);
        if !(first && ANSWERING.load(Ordering::Relaxed)) {
            std::process::exit(Failure::INTERRUPTED.into());
        }
    });
}

/// Holds Ctrl-C back while an answer is made.
pub struct Answering(());

impl Answering {
    /// From now on Ctrl-C asks the answer to end.
    pub fn begin() -> Answering {
        STOP.store(false, Ordering::Relaxed);
        ANSWERING.store(true, Ordering::Relaxed);
        Answering(())
    }

    /// Whether Ctrl-C was pressed.
    pub fn stopped(&self) -> bool {
        STOP.load(Ordering::Relaxed)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::Relaxed);
        STOP.store(false, Ordering::Relaxed);
    }
}
