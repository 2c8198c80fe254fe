//! `forerun run`: one prompt, one answer.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;

use forerun::decoder::Mode;
use forerun::decoder::request::check_logprobs;
use forerun::session::{Completing, Completion, Engine, Piece, Prompt, SpelledLogprobs};
use forerun::text::Message;
use serde::Serialize;

use crate::args::{AnswerArgs, RunArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt::{self, Answering};
use crate::{format, input, load, memory, output};

/// Bytes of a prompt from stdin.
const MAX_PROMPT: u64 = 16 << 20;

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    /// Ids of the tokens generated, the one that ended the answer included.
    tokens: &'a [u32],
    /// Of each of these, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<SpelledLogprobs>>,
    prompt_tokens: usize,
    finish_reason: &'static str,
    backend: &'static str,
    adapter: Option<&'a str>,
    mode: &'static str,
    steps: usize,
    n_drafted: usize,
    n_accepted: usize,
    tokens_per_step: f64,
    /// Of 1, 2, 4, 8, 16 and 32 nodes.
    steps_by_width: [usize; 6],
    /// Milliseconds of a step of each of these widths, where they were calibrated.
    step_ms: Option<[Option<f64>; 6]>,
    /// Steps of a window and windows in flight, where they were calibrated.
    window: Option<(usize, usize)>,
    dispatches_per_step: usize,
    ttft_ms: f64,
    decode_ms_per_token: f64,
}

/// Answers the prompt.
pub fn run(args: &RunArgs) -> Outcome {
    interrupt::listen();
    let text = if args.prompt == "-" { read_stdin()? } else { args.prompt.clone() };
    let mut messages: Vec<Message> = args.system.iter().map(|system| Message::new("system", system)).collect();
    let prompt = if args.raw {
        Prompt::Raw(&text)
    } else {
        messages.push(Message::new("user", &text));
        Prompt::Chat(&messages)
    };
    args.answer.sampling.options().check()?;
    args.logprobs.map_or(Ok(()), check_logprobs)?;
    let mut engine = load::load(&args.model, &args.engine)?;
    if !args.json {
        load::warn_of_software(&engine);
    }
    memory::open(&mut engine, &args.answer)?;
    let (completion, interrupted) = answer(&mut engine, prompt, &args.answer, args.logprobs, !args.json)?;
    let kept = memory::keep(&engine, &args.answer);
    let mode = args.answer.mode;
    if args.json {
        let generated = &completion.generated;
        output::print_json(&Report {
            text: &completion.text,
            tokens: &generated.tokens,
            logprobs: args.logprobs.map(|_| engine.spelled_logprobs(generated)),
            prompt_tokens: generated.prompt_tokens,
            finish_reason: completion.finish_reason(),
            backend: engine.backend_name(),
            adapter: engine.adapter().map(|adapter| &adapter.name[..]),
            mode: mode.name(),
            steps: generated.steps,
            n_drafted: generated.n_drafted,
            n_accepted: generated.n_accepted,
            tokens_per_step: generated.tokens_per_step(),
            steps_by_width: generated.widths,
            step_ms: engine
                .gpu_decoder()
                .filter(|decoder| decoder.window().is_some())
                .map(|decoder| decoder.costs().ms.map(|ms| Some(ms).filter(|ms| ms.is_finite()))),
            window: engine.gpu_decoder().and_then(|decoder| decoder.window()),
            dispatches_per_step: engine.dispatches_per_step(),
            ttft_ms: generated.ttft_ms,
            decode_ms_per_token: generated.decode_ms_per_token(),
        })?;
    } else {
        output::aside(&statistics(&engine, &completion, mode));
    }
    kept?;
    if interrupted { Err(Failure::Interrupted) } else { Ok(()) }
}

fn read_stdin() -> Outcome<String> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        output::aside("type the prompt; Ctrl-D on a line of its own ends it");
    }
    let text = input::read_text(stdin, MAX_PROMPT).map_err(|error| {
        let most = format::bytes(MAX_PROMPT);
        Failure::Input(format!("cannot read the prompt from stdin ({error}): give text in UTF-8, at most {most}"))
    })?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// Answers a prompt, with the text on stdout as it comes where `stream` says so; tells too whether Ctrl-C ended it.
pub fn answer(
    engine: &mut Engine,
    prompt: Prompt<'_>,
    args: &AnswerArgs,
    logprobs: Option<usize>,
    stream: bool,
) -> Outcome<(Completion, bool)> {
    let sampling = args.sampling.options();
    let how = Completing { max_tokens: args.max_tokens.map(usize::from), mode: args.mode, sampling, logprobs };
    let answering = Answering::begin();
    let mut waiting = Some(load::spinner("reading the prompt"));
    let mut written = Ok(());
    let mut on_text = |piece: &Piece<'_>| {
        let piece = piece.text;
        if !piece.is_empty() {
            if stream {
                if let Some(spinner) = waiting.take() {
                    spinner.finish_and_clear();
                }
                written = output::print(piece);
            } else if let Some(spinner) = &waiting {
                spinner.set_message("answering");
            }
        }
        let go_on = written.is_ok() && !answering.stopped();
        if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let answered = pollster::block_on(engine.complete(prompt, &how, &mut on_text));
    if let Some(spinner) = waiting.take() {
        spinner.finish_and_clear();
    }
    written?;
    let completion = answered?;
    let interrupted = answering.stopped() && completion.generated.finish.is_none();
    // A line of its own for what follows, on a terminal; in a pipe the text stays as the model wrote it, but for the
    // line break that text files end with.
    if stream && !completion.text.ends_with('\n') && (io::stdout().is_terminal() || !completion.text.is_empty()) {
        output::print("\n")?;
    }
    Ok((completion, interrupted))
}

/// Tokens, speed, first token, adapter and mode, in a line.
pub fn statistics(engine: &Engine, completion: &Completion, mode: Mode) -> String {
    let generated = &completion.generated;
    let mut parts = vec![format::things(generated.tokens.len(), "token")];
    let ms = generated.decode_ms_per_token();
    if ms > 0.0 {
        parts.push(format!("{:.1} tokens/s", 1e3 / ms));
    }
    if !generated.tokens.is_empty() {
        let read = match generated.cached_tokens {
            0 => format!("prompt of {}", generated.prompt_tokens),
            cached => format!("prompt of {}, {cached} known", generated.prompt_tokens),
        };
        parts.push(format!("first token {} ({read})", format::milliseconds(generated.ttft_ms)));
    }
    parts.push(match engine.adapter() {
        Some(adapter) => adapter.name.clone(),
        None => "CPU".into(),
    });
    if engine.adapter().is_some() {
        parts.push(mode.name().into());
        if generated.n_drafted > 0 {
            parts.push(format!("{:.2} tokens a step", generated.tokens_per_step()));
        }
    }
    match completion.finish_reason() {
        "length" if generated.prompt_tokens + generated.tokens.len() >= engine.context() => {
            parts.push("cut off where the context ends".into());
        }
        "length" => parts.push("cut off at --max-tokens".into()),
        "abort" => parts.push("interrupted".into()),
        _ => {}
    }
    parts.join(" · ")
}
