//! `forerun generate-workload`: answers to a file of prompts, recorded as tokens.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;

use forerun::decoder::Generated;
use forerun::decoder::step::BUCKETS;
use forerun::session::{Completing, Engine, Piece, Prompt};
use forerun::text::Message;

use crate::args::GenerateWorkloadArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Answering};
use crate::recording::{Recording, WorkloadPrompt, first_of_each_task, parse_lines, read_lines};
use crate::{format, load, output};

/// Answers the prompts that have no answer yet.
pub fn generate_workload(args: &GenerateWorkloadArgs) -> Outcome {
    interrupt::listen();
    let mut prompts: Vec<WorkloadPrompt> = Vec::new();
    for path in &args.prompts {
        prompts.append(&mut read_lines(path)?);
    }
    let mut ids = HashSet::new();
    if let Some(twice) = prompts.iter().find(|prompt| !ids.insert(&prompt.id)) {
        return Err(Failure::Input(format!("two prompts have the id {}: give each its own", twice.id)));
    }
    first_of_each_task(&mut prompts, args.limit);
    let same = |path: &Path| fs::canonicalize(path).ok().zip(fs::canonicalize(&args.output).ok());
    if args.prompts.iter().filter_map(|path| same(path)).any(|(prompts, output)| prompts == output) {
        let name = args.output.display();
        return Err(Failure::Input(format!("{name} holds the prompts: give another file to write")));
    }
    // Before the model, which takes longer.
    args.sampling.options().check()?;
    let (mut file, known) = open_output(&args.output)?;
    let n_prompts = prompts.len();
    prompts.retain(|prompt| !known.contains(&prompt.id));
    if !prompts.is_empty() {
        let mut engine = load::load(&args.model, &args.engine)?;
        if let (true, Some(decoder)) = (args.no_memory, engine.gpu_decoder_mut()) {
            decoder.set_remembers(false);
        }
        answer_all(&mut engine, &prompts, args, &mut file)?;
    }
    output::aside(&format!(
        "{} in {}, {} of them new",
        format::things(n_prompts, "answer"),
        args.output.display(),
        format::count(prompts.len() as u64)
    ));
    Ok(())
}

/// Opens the output to write behind what it holds, and tells the ids it holds. A last line that is not whole was being
/// written when a run was broken off: it is taken away.
fn open_output(path: &Path) -> Outcome<(File, HashSet<String>)> {
    let name = path.display();
    let fault = |error| Failure::Input(format!("cannot write {name} ({error}): give a file that can be written"));
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(fault)?;
    if !file.metadata().map_err(fault)?.is_file() {
        return Err(Failure::Input(format!("{name} is no file that answers can be kept in: give one")));
    }
    let mut text = std::io::read_to_string(&file).map_err(fault)?;
    let torn = text.split_off(text.rfind('\n').map_or(0, |end| end + 1));
    const BEGINNING: &str = "{\"task\":";
    let is_ours = torn.starts_with(BEGINNING) || BEGINNING.starts_with(&torn);
    let last: Option<Recording> = match serde_json::from_str(&torn) {
        Ok(whole) => Some(whole),
        Err(error) if is_ours && error.is_eof() => None,
        Err(_) => {
            return Err(Failure::Input(format!(
                "{name} holds something else than answers: give another file to write"
            )));
        }
    };
    let mut known: Vec<Recording> = parse_lines(&text, path)?;
    if last.is_none() {
        file.set_len(text.len() as u64).map_err(fault)?;
    }
    file.seek(SeekFrom::End(0)).map_err(fault)?;
    if last.is_some() {
        // Whole but for its line break, which an editor may have taken.
        file.write_all(b"\n").map_err(fault)?;
    }
    known.extend(last);
    Ok((file, known.into_iter().map(|recording| recording.id).collect()))
}

fn answer_all(
    engine: &mut Engine,
    prompts: &[WorkloadPrompt],
    args: &GenerateWorkloadArgs,
    file: &mut File,
) -> Outcome {
    // All prompts first, so that one that is too long is told at once.
    let mut conversations = Vec::new();
    for prompt in prompts {
        let about = |text: String| Failure::Input(format!("{}: {text}", prompt.id));
        let messages = prompt.messages.iter().map(|message| Message::new(&message.role, &message.content));
        let messages: Vec<Message> = messages.collect();
        let tokens = engine.tokens(Prompt::Chat(&messages)).map_err(|error| about(error.to_string()))?;
        if tokens.is_empty() || tokens.len() >= engine.context() {
            return Err(about(format!(
                "the prompt has {} but the context holds {}: ask for a longer one with --context or take the prompt out",
                format::things(tokens.len(), "token"),
                engine.context()
            )));
        }
        conversations.push((messages, tokens));
    }
    let sampling = args.sampling.options();
    let how = Completing { max_tokens: Some(args.max_tokens.get()), mode: args.mode, sampling, logprobs: None };
    let mut total = Totals::default();
    let bar = load::prompts_bar(prompts.len() as u64);
    for (prompt, (messages, tokens)) in prompts.iter().zip(conversations) {
        bar.set_message(format::plain(&prompt.id));
        let answering = Answering::begin();
        let mut on_text = |_: &Piece<'_>| {
            bar.tick();
            if answering.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let answered = pollster::block_on(engine.complete(Prompt::Chat(&messages), &how, &mut on_text));
        if answered.is_err() || answering.stopped() {
            bar.finish_and_clear();
        }
        let generated = answered?.generated;
        if generated.finish.is_none() {
            return Err(Failure::Interrupted);
        }
        let (task, id) = (prompt.task.clone(), prompt.id.clone());
        total.add(&generated);
        let decode_ms = generated.decode_ms;
        let recording = Recording { task, id, prompt: tokens, output: generated.tokens, decode_ms };
        let line = serde_json::to_string(&recording).map_err(|error| Failure::Output(error.into()))?;
        // In one piece, so that a run that is broken off leaves whole lines.
        file.write_all((line + "\n").as_bytes()).map_err(Failure::Output)?;
        bar.inc(1);
        // Ctrl-C may come just behind an answer's last token.
        if answering.stopped() {
            bar.finish_and_clear();
            return Err(Failure::Interrupted);
        }
    }
    bar.finish_and_clear();
    let adapter = engine.adapter().map_or("CPU", |adapter| &adapter.name);
    output::aside(&format!(
        "{adapter} · {} · {:.3} ms a token · {:.2} tokens a step · {:.0} % of {} accepted · steps of {} nodes: {}",
        args.mode.name(),
        total.decode_ms / total.later_tokens.max(1) as f64,
        total.tokens as f64 / total.steps.max(1) as f64,
        100.0 * total.n_accepted as f64 / total.n_drafted.max(1) as f64,
        format::things(total.n_drafted, "drafted token"),
        BUCKETS.map(|n| n.to_string()).join(", "),
        total.widths.map(|n| n.to_string()).join(", "),
    ));
    if let Some((decoder, (steps, in_flight))) = engine.gpu_decoder().and_then(|it| Some((it, it.window()?))) {
        let ms = decoder.costs().ms.map(|ms| format!("{ms:.3}")).join(", ");
        output::aside(&format!("such a step takes {ms} ms · windows of {steps}, {in_flight} in flight"));
    }
    Ok(())
}

/// What all answers took together.
#[derive(Default)]
struct Totals {
    tokens: usize,
    /// Tokens behind the first of each answer.
    later_tokens: usize,
    decode_ms: f64,
    steps: usize,
    n_drafted: usize,
    n_accepted: usize,
    widths: [usize; 6],
}

impl Totals {
    fn add(&mut self, answer: &Generated) {
        self.tokens += answer.tokens.len();
        self.later_tokens += answer.tokens.len().saturating_sub(1);
        self.decode_ms += answer.decode_ms;
        self.steps += answer.steps;
        self.n_drafted += answer.n_drafted;
        self.n_accepted += answer.n_accepted;
        self.widths.iter_mut().zip(answer.widths).for_each(|(sum, n)| *sum += n);
    }
}
