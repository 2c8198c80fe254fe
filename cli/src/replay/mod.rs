//! `forerun replay`: how many tokens a step drafters would give over recorded answers.

mod context_mixing;
mod plot;
mod prompt_lookup;
mod simulate;
mod suffix_tree;

use std::path::Path;

use forerun::cpu::draft::MEMORY;
use rayon::prelude::*;
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::failure::{Failure, Outcome};
use crate::recording::{Recording, read_lines};
use crate::{format, load, output};
use context_mixing::ContextMixing;
use prompt_lookup::PromptLookup;
use simulate::{Drafter, Tally, simulate};
use suffix_tree::SuffixTree;

/// Tokens of a context, unless an answer needs more.
const MAX_SEQ_LEN: usize = 4096;
/// The memories of the sweep, in tokens; one that holds all answers is put behind them.
const MEMORY_SIZES: [usize; 8] = [0, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16];
/// Tokens that a file may hold in all, so that every position has a number in the drafter.
const MAX_TOKENS: usize = 1 << 23;

/// Which drafter, with its nodes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    PromptLookup,
    SuffixTree,
    ContextMixing,
}

const DRAFTERS: [(Kind, usize); 4] =
    [(Kind::PromptLookup, 8), (Kind::SuffixTree, 16), (Kind::ContextMixing, 16), (Kind::ContextMixing, 32)];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::PromptLookup => "prompt lookup",
            Kind::SuffixTree => "suffix tree",
            Kind::ContextMixing => "context mixing",
        }
    }

    fn drafter(self, n_nodes: usize, max_seq_len: usize) -> Box<dyn Drafter> {
        match self {
            Kind::PromptLookup => Box::new(PromptLookup { n_nodes }),
            Kind::SuffixTree => Box::new(SuffixTree { n_nodes }),
            Kind::ContextMixing => Box::new(ContextMixing::new(n_nodes, max_seq_len)),
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    answers: usize,
    /// Tokens of the answers, without each one's first.
    tokens: usize,
    drafters: Vec<DrafterReport>,
    /// Context mixing with 32 nodes.
    memory_sizes: Vec<MemoryReport>,
}

/// One drafter's numbers.
#[derive(Debug, Serialize)]
struct DrafterReport {
    name: &'static str,
    nodes: usize,
    /// Tokens the memory holds.
    memory: usize,
    /// Over all steps.
    tokens_per_step: f64,
    tasks: Vec<TaskReport>,
}

/// One drafter's number for a task.
#[derive(Debug, Serialize)]
struct TaskReport {
    task: String,
    tokens_per_step: f64,
}

/// The number for a size of the memory.
#[derive(Debug, Serialize)]
struct MemoryReport {
    /// Tokens the memory holds; `None` where it holds all answers.
    memory: Option<usize>,
    tokens_per_step: f64,
}

/// Replays the file's answers.
pub fn replay(args: &ReplayArgs) -> Outcome {
    let name = args.file.display();
    let recordings: Vec<Recording> = read_lines(&args.file)?;
    let total: usize = recordings.iter().map(|recording| recording.prompt.len() + recording.output.len() + 1).sum();
    if total > MAX_TOKENS {
        return Err(Failure::Input(format!(
            "{name} holds {} but a replay takes at most {}: split the file",
            format::things(total, "token"),
            format::count(MAX_TOKENS as u64)
        )));
    }
    if recordings.iter().all(|recording| recording.output.len() < 2) {
        return Err(Failure::Input(format!(
            "{name} holds no answer of two tokens or more: record some with `forerun generate-workload`"
        )));
    }
    let report = measure(&recordings);
    if let Some(path) = &args.plot {
        write_plot(path, &plot::svg(&report))?;
    }
    if args.json { output::print_json(&report) } else { output::print(&text(&report)) }
}

fn write_plot(path: &Path, svg: &str) -> Outcome {
    std::fs::write(path, svg).map_err(|error| {
        Failure::Input(format!("cannot write {} ({error}): give a file that can be written", path.display()))
    })
}

/// Every drafter without and with memory, and the sizes of the memory.
fn measure(recordings: &[Recording]) -> Report {
    let longest = recordings.iter().map(|recording| recording.prompt.len() + recording.output.len()).max();
    let max_seq_len = longest.unwrap_or(0).max(MAX_SEQ_LEN);
    let everything: usize = recordings.iter().map(|recording| recording.output.len() + 1).sum();
    let with_memory = [0, MEMORY].into_iter().flat_map(|memory| DRAFTERS.map(|(kind, n)| (kind, n, memory)));
    let mut runs: Vec<(Kind, usize, usize)> = with_memory.collect();
    let n_drafters = runs.len();
    runs.extend(MEMORY_SIZES.into_iter().chain([everything]).map(|memory| (Kind::ContextMixing, 32, memory)));

    let spinner = load::spinner("replaying");
    let run = |(kind, n_nodes, memory): &(Kind, usize, usize)| {
        simulate(recordings, *memory, &mut *kind.drafter(*n_nodes, max_seq_len))
    };
    // The longest runs have the largest memories: they begin first.
    let mut tallies: Vec<Vec<Tally>> = runs.par_iter().rev().with_max_len(1).map(run).collect();
    tallies.reverse();
    spinner.finish_and_clear();

    let mut tasks: Vec<&str> = Vec::new();
    for recording in recordings {
        if !tasks.contains(&&recording.task[..]) {
            tasks.push(&recording.task);
        }
    }
    let of_task = |tallies: &[Tally], task: &str| {
        let own = recordings.iter().zip(tallies).filter(|(recording, _)| recording.task == task);
        Tally::sum(&own.map(|(_, tally)| *tally).collect::<Vec<_>>()).tokens_per_step()
    };
    let drafters = runs.iter().zip(&tallies).take(n_drafters).map(|((kind, nodes, memory), tallies)| DrafterReport {
        name: kind.name(),
        nodes: *nodes,
        memory: *memory,
        tokens_per_step: Tally::sum(tallies).tokens_per_step(),
        tasks: tasks
            .iter()
            .map(|task| TaskReport { task: (*task).into(), tokens_per_step: of_task(tallies, task) })
            .collect(),
    });
    let sizes = MEMORY_SIZES.into_iter().map(Some).chain([None]);
    let memory_sizes = sizes
        .zip(&tallies[n_drafters..])
        .map(|(memory, tallies)| MemoryReport { memory, tokens_per_step: Tally::sum(tallies).tokens_per_step() });
    Report {
        answers: recordings.len(),
        tokens: tallies.first().map_or(0, |tallies| Tally::sum(tallies).tokens),
        drafters: drafters.collect(),
        memory_sizes: memory_sizes.collect(),
    }
}

/// A memory's size for people.
fn memory_name(memory: Option<usize>) -> String {
    match memory {
        None => "all".into(),
        Some(0) => "none".into(),
        Some(tokens) => format!("{}K", tokens >> 10),
    }
}

/// The numbers as tables.
fn text(report: &Report) -> String {
    let (alone, remembering) = report.drafters.split_at(report.drafters.len() / 2);
    let head = |report: &DrafterReport| format!("{} {}", report.name, report.nodes);
    let cell = |number: f64| format!("{number:.2}");
    let mut rows = vec![[String::new()].into_iter().chain(alone.iter().map(head)).collect::<Vec<_>>()];
    // Without memory, then with it.
    let pair = |a: f64, b: f64| format!("{} → {}", cell(a), cell(b));
    for (i, task) in alone.first().map_or(&[][..], |first| &first.tasks).iter().enumerate() {
        let numbers = alone.iter().zip(remembering);
        let numbers = numbers.map(|(a, b)| pair(a.tasks[i].tokens_per_step, b.tasks[i].tokens_per_step));
        rows.push([format::plain(&task.task)].into_iter().chain(numbers).collect());
    }
    let totals = alone.iter().zip(remembering).map(|(a, b)| pair(a.tokens_per_step, b.tokens_per_step));
    rows.push(["all tasks".to_owned()].into_iter().chain(totals).collect());

    let sizes = report.memory_sizes.iter();
    let memories =
        [["memory".to_owned()].into_iter().chain(sizes.clone().map(|size| memory_name(size.memory))).collect(), {
            let numbers = sizes.map(|size| cell(size.tokens_per_step));
            ["tokens a step".to_owned()].into_iter().chain(numbers).collect::<Vec<_>>()
        }];
    format!(
        "Tokens a step over {} and {}, without memory → with the last {} tokens of earlier answers.\n\n{}\n\
         Context mixing with 32 nodes, by the tokens that the memory holds.\n\n{}",
        format::things(report.answers, "answer"),
        format::things(report.tokens, "token"),
        format::count(MEMORY as u64),
        format::table(&rows, &[1, 2, 3, 4]),
        format::table(&memories, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    )
}
