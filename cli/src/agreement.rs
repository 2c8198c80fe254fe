//! `forerun agreement`: whether modes, plans, limits, windows and drafts change no token on this device.

use std::ops::ControlFlow;

use forerun::decoder::memory::Memory;
use forerun::decoder::step::MEMORY;
use forerun::decoder::{FusionChoice, Generated, Mode, SamplingOptions};
use forerun::gpu::LimitsRequest;
use forerun::session::{Completing, Engine, EngineOptions, Piece, Prompt};
use forerun::text::Message;
use indicatif::ProgressBar;

use crate::args::AgreementArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Answering};
use crate::recording::{WorkloadMessage, WorkloadPrompt, first_of_each_task, read_lines};
use crate::{cache, format, load, output};

/// What is asked where no prompts are given, a line each.
const QUESTIONS: &str = include_str!("../../tools/prompts.txt");
/// Steps of a window and windows in flight, in turn.
const WINDOWS: [(usize, usize); 3] = [(1, 2), (2, 3), (4, 4)];
/// Tokens in front of an answer that a made-up memory holds too, so that its first token is guessed.
const LEAD: usize = 8;

/// How a model is loaded, and the modes to compare under that.
struct Loading {
    name: &'static str,
    fusion: FusionChoice,
    limits: LimitsRequest,
    plain: bool,
    modes: &'static [Mode],
}

const fn loading(name: &'static str, fusion: FusionChoice, modes: &'static [Mode]) -> Loading {
    Loading { name, fusion, limits: LimitsRequest::Adapter, plain: false, modes }
}

const LOADS: [Loading; 5] = [
    loading("none", FusionChoice::None, &[Mode::Greedy, Mode::Loop]),
    loading("all", FusionChoice::All, &[Mode::Greedy, Mode::Loop]),
    Loading {
        limits: LimitsRequest::Default,
        ..loading("all, default limits", FusionChoice::All, &[Mode::Loop, Mode::Tree(8)])
    },
    Loading { plain: true, ..loading("all, no optional features", FusionChoice::All, &[Mode::Loop, Mode::Tree(8)]) },
    loading(
        "auto",
        FusionChoice::Auto,
        &[
            Mode::Greedy,
            Mode::Loop,
            Mode::Tree(2),
            Mode::Tree(4),
            Mode::Tree(8),
            Mode::Tree(16),
            Mode::Tree(32),
            Mode::Adaptive,
        ],
    ),
];

/// A way to decode, and what it gave.
struct Row {
    name: String,
    mode: Mode,
    n_answers: usize,
    n_same: usize,
    tokens: usize,
    later_tokens: usize,
    steps: usize,
    decode_ms: f64,
}

impl Row {
    fn new(name: String, mode: Mode) -> Row {
        Row { name, mode, n_answers: 0, n_same: 0, tokens: 0, later_tokens: 0, steps: 0, decode_ms: 0.0 }
    }

    fn add(&mut self, answer: &Generated, is_same: bool) {
        self.n_answers += 1;
        self.n_same += usize::from(is_same);
        self.tokens += answer.tokens.len();
        self.later_tokens += answer.tokens.len().saturating_sub(1);
        self.steps += answer.steps;
        self.decode_ms += answer.decode_ms;
    }
}

/// Answers every prompt in every way and compares the tokens with those of the first way.
pub fn agreement(args: &AgreementArgs) -> Outcome {
    interrupt::listen();
    let samplings = samplings(args);
    samplings.iter().try_for_each(SamplingOptions::check)?;
    let prompts = prompts(args)?;
    let mut loads: Vec<(&Loading, Vec<Row>)> = LOADS.iter().map(|load| (load, rows(load, &args.only))).collect();
    loads.retain(|(_, rows)| !rows.is_empty());
    let n_rows = loads.iter().map(|(_, rows)| rows.len()).sum::<usize>();
    if n_rows < 2 {
        let names: Vec<String> = LOADS.iter().flat_map(|load| rows(load, &[])).map(|row| row.name).collect();
        return Err(Failure::Input(format!("--only leaves nothing to compare: give a part of {}", names.join("; "))));
    }
    let bar = load::answers_bar((prompts.len() * samplings.len() * n_rows) as u64);
    let mut comparison = Comparison { args, prompts, samplings, expected: Vec::new(), turn: 0, bar };
    for (load, rows) in &mut loads {
        let compared = comparison.compare(load, rows);
        comparison.bar.suspend(|| compared)?;
    }
    comparison.bar.finish_and_clear();
    match loads.iter().flat_map(|(_, rows)| rows).map(|row| row.n_answers - row.n_same).sum() {
        0 => Ok(()),
        n => Err(Failure::Differs(format!(
            "{} not the same: please report it, with the adapter and the driver's version",
            format::things(n, "answer")
        ))),
    }
}

/// What is asked in every way, and the tokens of the first.
struct Comparison<'a> {
    args: &'a AgreementArgs,
    prompts: Vec<WorkloadPrompt>,
    samplings: Vec<SamplingOptions>,
    /// The first way's tokens, for each prompt and each of `samplings`.
    expected: Vec<Vec<u32>>,
    /// Counts what [`vary`] takes in turn.
    turn: usize,
    bar: ProgressBar,
}

impl Comparison<'_> {
    /// Loads the model, answers every prompt in the ways of `rows` and prints these.
    fn compare(&mut self, load: &Loading, rows: &mut [Row]) -> Outcome {
        let options = EngineOptions {
            fusion: load.fusion,
            limits: load.limits,
            plain: load.plain,
            context: self.args.context,
            calibrations: cache::calibrations(),
            ..EngineOptions::default()
        };
        let mut engine = self.bar.suspend(|| load::load_with(&self.args.model, &options))?;
        if let Some(decoder) = engine.gpu_decoder_mut() {
            decoder.set_remembers(false);
        }
        let answered = self.answer(&mut engine, rows);
        // What was compared before Ctrl-C is told too.
        self.bar.suspend(|| rows.iter().try_for_each(|row| output::print(&line(row, &engine))))?;
        answered
    }

    /// Prompt by prompt, so that the ways after the first find it in the cache.
    fn answer(&mut self, engine: &mut Engine, rows: &mut [Row]) -> Outcome {
        let answering = Answering::begin();
        for i in 0..self.prompts.len() * self.samplings.len() {
            let (prompt, sampling) =
                (&self.prompts[i / self.samplings.len()], &self.samplings[i % self.samplings.len()]);
            for row in rows.iter_mut() {
                self.bar.set_message(format::plain(&format!("{}, {}", row.name, prompt.id)));
                let known = self.expected.get(i);
                if self.args.vary {
                    vary(engine, prompt, known.map_or(&[], Vec::as_slice), self.turn)?;
                    self.turn += 1;
                }
                let max_tokens = Some(self.args.max_tokens.get());
                let how = Completing { max_tokens, mode: row.mode, sampling: sampling.clone(), logprobs: None };
                let answer = complete(engine, prompt, &how, &answering)?;
                row.add(&answer, known.is_none_or(|known| answer.tokens == *known));
                match known {
                    Some(known) if answer.tokens != *known => {
                        let at = answer.tokens.iter().zip(known).take_while(|(a, b)| a == b).count();
                        let (way, id) = (&row.name, format::plain(&prompt.id));
                        let how = format!("temperature {}, seed {}", sampling.temperature, sampling.seed);
                        self.bar.suspend(|| output::aside(&format!("{way}, {id}, {how}: token {} differs", at + 1)));
                    }
                    Some(_) => {}
                    None => self.expected.push(answer.tokens),
                }
                self.bar.inc(1);
            }
        }
        Ok(())
    }
}

/// The ways of a load that `only` leaves.
fn rows(load: &Loading, only: &[String]) -> Vec<Row> {
    let rows = load.modes.iter().map(|mode| row(load, *mode));
    rows.filter(|row| only.is_empty() || only.iter().any(|word| row.name.contains(word.as_str()))).collect()
}

fn row(load: &Loading, mode: Mode) -> Row {
    Row::new(format!("{}, {}", mode.name(), load.name), mode)
}

/// Temperature 0, and the one asked for with each seed.
fn samplings(args: &AgreementArgs) -> Vec<SamplingOptions> {
    let seeds = if args.temperature == 0.0 { 0 } else { args.seeds };
    let sampled = (1..=seeds).map(|seed| SamplingOptions { temperature: args.temperature, seed, ..Default::default() });
    [SamplingOptions::default()].into_iter().chain(sampled).collect()
}

fn prompts(args: &AgreementArgs) -> Outcome<Vec<WorkloadPrompt>> {
    let mut prompts: Vec<WorkloadPrompt> = Vec::new();
    for path in &args.prompts {
        prompts.append(&mut read_lines(path)?);
    }
    if args.prompts.is_empty() {
        prompts.extend(QUESTIONS.lines().enumerate().map(|(i, question)| WorkloadPrompt {
            task: "question".into(),
            id: format!("question {}", i + 1),
            messages: vec![WorkloadMessage { role: "user".into(), content: question.into() }],
        }));
    }
    first_of_each_task(&mut prompts, args.limit);
    Ok(prompts)
}

fn complete(
    engine: &mut Engine,
    prompt: &WorkloadPrompt,
    how: &Completing,
    answering: &Answering,
) -> Outcome<Generated> {
    let mut on_text = |_: &Piece<'_>| {
        if answering.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let messages = messages(prompt);
    let generated = pollster::block_on(engine.complete(Prompt::Chat(&messages), how, &mut on_text))?.generated;
    // Ctrl-C may come just behind an answer's last token.
    if answering.stopped() { Err(Failure::Interrupted) } else { Ok(generated) }
}

fn messages(prompt: &WorkloadPrompt) -> Vec<Message> {
    prompt.messages.iter().map(|message| Message::new(&message.role, &message.content)).collect()
}

/// Takes the windows and the memory in turn: no memory, the right answer, wrong ones, any tokens, and answers that are
/// right for a while and then turn wrong.
fn vary(engine: &mut Engine, prompt: &WorkloadPrompt, answer: &[u32], turn: usize) -> Outcome {
    let tokens = engine.tokens(Prompt::Chat(&messages(prompt)))?;
    let vocab_size = engine.config().vocab_size as u32;
    let Some(decoder) = engine.gpu_decoder_mut() else { return Ok(()) };
    let lead = &tokens[tokens.len().saturating_sub(LEAD)..];
    let wrong = |token: u32| (token + 1) % vocab_size;
    let mut memory = Memory::new(MEMORY);
    match turn % 5 {
        0 => {}
        1 => memory.remember(&[lead, answer].concat()),
        2 => {
            let all_wrong: Vec<u32> = answer.iter().copied().map(wrong).collect();
            memory.remember(&[lead, &all_wrong].concat());
        }
        3 => {
            let mut state = turn as u32;
            let mut any = || {
                state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                (state >> 8) % vocab_size
            };
            let random: Vec<u32> = (0..512).map(|_| any()).collect();
            memory.remember(&[lead, &random].concat());
        }
        _ => {
            let known = [lead, answer].concat();
            for (i, stretch) in known.windows(LEAD + 5).enumerate() {
                let (right, then) = stretch.split_at(LEAD + i % 5);
                memory.remember(&[right, &then.iter().copied().map(wrong).collect::<Vec<_>>()].concat());
            }
        }
    }
    decoder.set_memory(memory);
    decoder.set_window(Some(WINDOWS[turn % WINDOWS.len()]));
    Ok(())
}

fn line(row: &Row, engine: &Engine) -> String {
    format!(
        "{:36} {} of {} the same, {} tokens, {:.2} a step, {:.2} ms a token, {}\n",
        row.name,
        row.n_same,
        format::things(row.n_answers, "answer"),
        row.tokens,
        row.tokens as f64 / row.steps.max(1) as f64,
        row.decode_ms / row.later_tokens.max(1) as f64,
        engine.adapter().map_or("CPU", |adapter| &adapter.name),
    )
}
