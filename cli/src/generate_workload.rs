//! `forerun generate-workload`: answers to a file of prompts, recorded as tokens.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;

use forerun::session::{Completing, Engine, Prompt};
use forerun::text::Message;

use crate::args::GenerateWorkloadArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Answering};
use crate::recording::{Recording, WorkloadPrompt, parse_lines, read_lines};
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
    if let Some(limit) = args.limit {
        let mut seen: HashMap<String, usize> = HashMap::new();
        prompts.retain(|prompt| {
            let n = seen.entry(prompt.task.clone()).or_default();
            *n += 1;
            *n <= limit.get()
        });
    }
    // Before the model, which takes longer.
    let (mut file, known) = open_output(&args.output)?;
    let n_prompts = prompts.len();
    prompts.retain(|prompt| !known.contains(&prompt.id));
    if !prompts.is_empty() {
        let mut engine = load::load(&args.model, &args.engine)?;
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

/// Opens the output to write behind what it holds, and tells the ids it holds. A last line without an end was being
/// written when a run was broken off: it is taken away.
fn open_output(path: &Path) -> Outcome<(File, HashSet<String>)> {
    let name = path.display();
    let fault = |error| Failure::Input(format!("cannot write {name} ({error}): give a file that can be written"));
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(fault)?;
    let mut text = std::io::read_to_string(&file).map_err(fault)?;
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    let known: Vec<Recording> = parse_lines(&text, path)?;
    file.set_len(text.len() as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(fault)?;
    Ok((file, known.into_iter().map(|recording| recording.id).collect()))
}

fn answer_all(engine: &mut Engine, prompts: &[WorkloadPrompt], args: &GenerateWorkloadArgs, file: &mut File) -> Outcome {
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
    let how = Completing { max_tokens: Some(args.max_tokens.get()), ..Completing::default() };
    let bar = load::prompts_bar(prompts.len() as u64);
    for (prompt, (messages, tokens)) in prompts.iter().zip(conversations) {
        bar.set_message(prompt.id.clone());
        let answering = Answering::begin();
        let mut on_text = |_: &str| {
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
        let recording = Recording { task, id, prompt: tokens, output: generated.tokens };
        let line = serde_json::to_string(&recording).map_err(|error| Failure::Output(error.into()))?;
        // In one piece, so that a run that is broken off leaves whole lines.
        file.write_all((line + "\n").as_bytes()).map_err(Failure::Output)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}
