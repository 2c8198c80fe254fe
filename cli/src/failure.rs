//! What ends a command early, and what the user hears of it.

use std::io::{self, Write};
use std::process::ExitCode;

use forerun::Error;

use crate::format::plain;

/// What a command ends with.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The engine's error.
    Engine(Error),
    /// Bad input, in one sentence.
    Input(String),
    /// What should be the same on this device is not, in one sentence.
    Differs(String),
    /// Writing to stdout failed.
    Output(io::Error),
    /// The user pressed Ctrl-C.
    Interrupted,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

impl Failure {
    /// The exit code for bad input.
    pub const INPUT: u8 = 2;
    /// The exit code for whatever else fails.
    pub const OTHER: u8 = 1;
    /// The exit code after Ctrl-C, as shells have it.
    pub const INTERRUPTED: u8 = 130;

    /// Whether what the user gave is at fault.
    pub fn is_input(&self) -> bool {
        match self {
            Failure::Engine(error) => matches!(
                error,
                Error::ModelFormat(_) | Error::Unsupported(_) | Error::BadInput(_) | Error::ContextOverflow { .. }
            ),
            Failure::Input(_) => true,
            Failure::Differs(_) | Failure::Output(_) | Failure::Interrupted => false,
        }
    }

    /// Tells the user, in one line on stderr, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::Engine(error) => say(&error.to_string()),
            Failure::Input(text) | Failure::Differs(text) => say(text),
            // Whoever closed the pipe has read what they wanted.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Failure::Output(error) => say(&format!("cannot write the output ({error}): free the place it goes to")),
            Failure::Interrupted => return ExitCode::from(Failure::INTERRUPTED),
        }
        ExitCode::from(if self.is_input() { Failure::INPUT } else { Failure::OTHER })
    }
}

/// Characters of a line on stderr.
const MAX_LINE: usize = 1000;

/// One line on stderr, with the program's name in front.
pub fn say(text: &str) {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // A name from a file may hold what a terminal takes for a command, and may be long.
    let shown: String = plain(&line).chars().take(MAX_LINE).collect();
    let rest = if line.chars().count() > MAX_LINE { " …" } else { "" };
    // With stderr closed there is nobody left to tell.
    let _ = writeln!(io::stderr(), "forerun: {shown}{rest}");
}

/// A fault in the program or below it is told in one line, like every other error.
pub fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        say(&format!("a fault of the program{place} ended it ({}): please report it", text.unwrap_or("no message")));
    }));
}
