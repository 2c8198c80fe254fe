//! From a model's name to a loaded engine, with progress on a terminal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forerun::Error;
use forerun::model::FileSource;
use forerun::session::{Engine, EngineOptions, Progress};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::EngineArgs;
use crate::cache;
use crate::failure::{Failure, Outcome, say};

/// The models that `./x model` fetches.
const FETCHED: [&str; 2] = ["smollm2-135m", "qwen2.5-0.5b"];

/// Opens the file that `model` names: a path, or the name of a file in one of the model folders.
pub fn open(model: &str) -> Outcome<FileSource> {
    let path = find(model)?;
    FileSource::open(path).map_err(|error| Failure::Input(error.to_string()))
}

fn find(model: &str) -> Outcome<PathBuf> {
    let path = Path::new(model);
    if path.is_file() {
        return Ok(path.into());
    }
    if model.contains("://") {
        return Err(Failure::Input(format!("{model} is an address: download the file and give its path")));
    }
    let folders = folders();
    let is_name = path.components().count() == 1 && path.file_name().is_some();
    if is_name {
        let names = [model.to_owned(), format!("{model}.gguf")];
        let places = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        if let Some(found) = places.into_iter().find(|place| place.is_file()) {
            return Ok(found);
        }
    }
    if path.exists() {
        return Ok(path.into());
    }
    let stem = model.strip_suffix(".gguf").unwrap_or(model);
    Err(Failure::Input(match (is_name, known(&folders)) {
        (true, _) if FETCHED.contains(&stem) => format!(
            "the model {model} is not here: run `./x model {stem}` in a checkout of Forerun to fetch it, or give the \
             path of a .gguf file"
        ),
        (true, names) if !names.is_empty() => {
            format!("there is no model {model}: give the path of a .gguf file, or one of {}", names.join(", "))
        }
        (true, _) => format!(
            "there is no model {model}: give the path of a .gguf file, or the name of one in ./models or in the folder \
             that $FORERUN_MODELS names"
        ),
        (false, _) => format!("there is no file {model}: give the path of a .gguf file"),
    }))
}

/// Where models are looked for by name.
fn folders() -> Vec<PathBuf> {
    let chosen = std::env::var_os("FORERUN_MODELS").filter(|folder| !folder.is_empty());
    chosen.map(PathBuf::from).into_iter().chain([PathBuf::from("models")]).collect()
}

/// The names of the models in `folders`.
fn known(folders: &[PathBuf]) -> Vec<String> {
    let files = folders.iter().flat_map(|folder| folder.read_dir().into_iter().flatten().flatten());
    let names = files.filter_map(|file| file.file_name().to_str()?.strip_suffix(".gguf").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// An error about a model file, with the file's name in front.
pub fn about(model: &str, error: Error) -> Failure {
    match error {
        Error::ModelFormat(text) => Error::ModelFormat(format!("{model}: {text}")).into(),
        Error::Unsupported(text) => Error::Unsupported(format!("{model}: {text}")).into(),
        other => other.into(),
    }
}

/// Loads a model, showing how far it is.
pub fn load(model: &str, args: &EngineArgs) -> Outcome<Engine> {
    load_with(model, &args.options())
}

/// Loads a model with the engine's own options.
pub fn load_with(model: &str, options: &EngineOptions) -> Outcome<Engine> {
    let source = open(model)?;
    let mut bar: Option<ProgressBar> = None;
    let mut phase = None;
    let mut show = |progress: Progress| {
        let changed = phase.replace(std::mem::discriminant(&progress)) != Some(std::mem::discriminant(&progress));
        if changed && let Some(bar) = bar.take() {
            bar.finish_and_clear();
        }
        match progress {
            Progress::Header => bar = Some(spinner("reading the header")),
            Progress::Weights { loaded, total } => {
                bar.get_or_insert_with(|| bytes_bar(total)).set_position(loaded);
            }
            Progress::Compile => bar = Some(spinner("compiling and checking kernels")),
            Progress::Calibrate => bar = Some(spinner("timing steps and windows")),
            Progress::Ready => {}
        }
    };
    let loaded = pollster::block_on(Engine::load(&source, options, &mut show));
    if let Some(bar) = bar.take() {
        bar.finish_and_clear();
    }
    let engine = loaded.map_err(|error| about(model, error))?;
    if *engine.calibrations() != options.calibrations {
        cache::keep(engine.calibrations());
    }
    for sentence in engine.gpu_decoder().map_or(&[][..], |decoder| decoder.left_out()) {
        say(&format!("note: {sentence}"));
    }
    Ok(engine)
}

/// Says so where the GPU is a program, which the CPU backend outruns.
pub fn warn_of_software(engine: &Engine) {
    if let Some(adapter) = engine.adapter().filter(|adapter| adapter.is_software) {
        say(&format!("note: {} is no GPU but a program on the CPU: --backend cpu is faster", adapter.name));
    }
}

/// Something that turns, on a terminal, until it is cleared.
pub fn spinner(text: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg} {elapsed:.dim}")).with_message(text);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn bytes_bar(total: u64) -> ProgressBar {
    let style = style("loading {bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}");
    ProgressBar::new(total).with_style(style)
}

/// A bar for `total` tokens.
pub fn tokens_bar(total: u64) -> ProgressBar {
    let style = style("scoring {bar:30} {human_pos} of {human_len} tokens, {eta} left {msg}");
    ProgressBar::new(total).with_style(style)
}

/// A bar for `total` answers.
pub fn answers_bar(total: u64) -> ProgressBar {
    let style = style("answering {bar:30} {human_pos} of {human_len} answers, {eta} left {msg:.dim}");
    ProgressBar::new(total).with_style(style)
}

/// A bar for `total` prompts.
pub fn prompts_bar(total: u64) -> ProgressBar {
    let style = style("answering {bar:30} {human_pos} of {human_len} prompts, {eta} left {msg:.dim}");
    ProgressBar::new(total).with_style(style)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ ")
}

#[cfg(test)]
mod tests {
    use super::FETCHED;

    #[test]
    fn fetched_models_are_those_of_the_script() {
        let script = include_str!("../../tools/fetch_model.py");
        let list = script.split("MODELS = {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("a list");
        let names = list.lines().filter_map(|line| line.strip_prefix("    \"")?.strip_suffix("\": ("));
        assert_eq!(names.collect::<Vec<_>>(), FETCHED);
    }
}
