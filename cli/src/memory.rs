//! The session memory in a file: answers that later sessions draft from.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use forerun::session::Engine;

use crate::args::AnswerArgs;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Gives the engine the memory that the options name; a file that does not exist yet is an empty one.
pub fn open(engine: &mut Engine, args: &AnswerArgs) -> Outcome {
    if let (true, Some(decoder)) = (args.no_memory, engine.gpu_decoder_mut()) {
        decoder.set_remembers(false);
    }
    let Some(path) = &args.memory else { return Ok(()) };
    match fs::metadata(path) {
        // A pipe or a device may have no end.
        Ok(about) if about.is_file() => {
            let bytes = fs::read(path).map_err(|error| unusable(path, &error))?;
            engine.import_memory(&bytes).map_err(|error| refused(path, &error))
        }
        Ok(_) => Err(refused(path, &"it is no file: give a file, or the name of one to make")),
        // Told now, not behind an answer that could not be kept.
        Err(error) if error.kind() == ErrorKind::NotFound && folder(path).is_dir() => Ok(()),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the memory back, whole or not at all.
pub fn keep(engine: &Engine, args: &AnswerArgs) -> Outcome {
    let Some(path) = &args.memory else { return Ok(()) };
    if engine.gpu_decoder().is_none() {
        return Ok(());
    }
    output::write_whole(path, &engine.export_memory()).map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &std::io::Error) -> Failure {
    refused(path, &format!("{error}; give a file that can be read and written"))
}

fn refused(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Input(format!("cannot use the memory {}: {error}", path.display()))
}
