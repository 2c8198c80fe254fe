//! What a backend is asked for and what it answers, the same for the GPU and the CPU.

use std::ops::ControlFlow;

use super::control::{MAX_END_TOKENS, MAX_TOP};
use super::controller::StepStats;
use super::sampler::{Sampling, SamplingOptions};
use crate::model::Config;
use crate::{Error, Result};

pub use super::control::Finish;

/// How the loop decodes. The tokens do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A readback after each token, as other engines do.
    Greedy,
    /// Windows of plain steps, several in flight.
    Loop,
    /// Windows of steps that verify a draft tree of this many nodes, one of the buckets from 2 on.
    Tree(usize),
    /// Windows of steps of the width that promises the most tokens for the time.
    #[default]
    Adaptive,
}

impl Mode {
    /// Every mode, with the name it has in options and reports.
    pub const NAMED: [(&'static str, Mode); 8] = [
        ("greedy", Mode::Greedy),
        ("loop", Mode::Loop),
        ("tree2", Mode::Tree(2)),
        ("tree4", Mode::Tree(4)),
        ("tree8", Mode::Tree(8)),
        ("tree16", Mode::Tree(16)),
        ("tree32", Mode::Tree(32)),
        ("adaptive", Mode::Adaptive),
    ];

    /// The mode's name in options and reports.
    pub fn name(self) -> &'static str {
        Mode::NAMED.iter().find(|(_, mode)| *mode == self).map_or("tree", |(name, _)| name)
    }

    /// The mode of a name.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a name that is none.
    pub fn from_name(name: &str) -> Result<Mode> {
        let known = Mode::NAMED.map(|(known, _)| known).join(", ");
        let found = Mode::NAMED.iter().find(|(known, _)| *known == name);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            Error::BadInput(format!("there is no mode \"{}\": choose one of {known}", name.escape_debug()))
        })
    }
}

/// One generation.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Tokens to continue, at least one.
    pub prompt: &'a [u32],
    /// The most tokens to generate, at least one.
    pub max_tokens: usize,
    /// Tokens that end the answer; the one that ended it is the last of the answer's tokens.
    pub end_tokens: &'a [u32],
    /// How the loop decodes.
    pub mode: Mode,
    /// How the tokens are chosen.
    pub sampling: SamplingOptions,
    /// Asks for log-probabilities, with this many of the most probable tokens, at most [`MAX_TOP`].
    pub logprobs: Option<usize>,
}

/// Log-probabilities of a token of the answer: the natural logarithm of softmax, at temperature 1, over the logits that
/// the model gave, before penalties and biases. They are the same bits in every mode.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// That of the token.
    pub logprob: f32,
    /// The most probable tokens and theirs, the most probable one first; the lower token where two are equal.
    pub top: Vec<(u32, f32)>,
}

/// What became known of a generation.
#[derive(Debug, Clone, Copy, Default)]
pub struct News<'a> {
    /// New tokens of the answer.
    pub tokens: &'a [u32],
    /// Log-probabilities of each of them, where the request asked for these; else empty.
    pub logprobs: &'a [TokenLogprobs],
    /// The steps that gave them, where the loop is on the GPU: each gave its accepted tokens and one more.
    pub steps: &'a [StepStats],
    /// The draft tree of the last of these steps, root included; empty without a draft.
    pub tree: &'a [TreeNode],
}

/// A node of a draft tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeNode {
    /// Its token.
    pub token: u32,
    /// Its parent's number; 0 for the root, which is number 0.
    pub parent: usize,
    /// Whether the model agreed with it and with its ancestors.
    pub accepted: bool,
}

/// Called when something became known, and now and then when nothing did; breaking ends the generation.
pub type OnTokens<'a> = &'a mut dyn FnMut(&News<'_>) -> ControlFlow<()>;

/// What a generation did.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The tokens generated.
    pub tokens: Vec<u32>,
    /// Log-probabilities of each of them, where the request asked for these; else empty.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended; `None` where the caller broke off.
    pub finish: Option<Finish>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose keys and values were still in the cache.
    pub cached_tokens: usize,
    /// Decode steps that processed something.
    pub steps: usize,
    /// Drafted tokens that were verified.
    pub n_drafted: usize,
    /// Drafted tokens that were accepted, without the bonus tokens.
    pub n_accepted: usize,
    /// Decode steps of each width, in the order of the buckets.
    pub widths: [usize; 6],
    /// From the request to the first token, in milliseconds.
    pub ttft_ms: f64,
    /// From the first token to the last, in milliseconds.
    pub decode_ms: f64,
}

impl Generated {
    /// A generation that has yet to begin.
    pub(crate) fn nothing(prompt_tokens: usize, cached_tokens: usize) -> Generated {
        Generated {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish: None,
            prompt_tokens,
            cached_tokens,
            steps: 0,
            n_drafted: 0,
            n_accepted: 0,
            widths: [0; 6],
            ttft_ms: 0.0,
            decode_ms: 0.0,
        }
    }

    /// Tokens that a decode step gave, the bonus token included; 0 where there was none.
    pub fn tokens_per_step(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.tokens.len() as f64 / self.steps as f64 }
    }

    /// Decode time of a token behind the first, in milliseconds; 0 where there is none.
    pub fn decode_ms_per_token(&self) -> f64 {
        match self.tokens.len() {
            0 | 1 => 0.0,
            n => self.decode_ms / (n - 1) as f64,
        }
    }
}

/// Number of tokens at the start of both.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Whether a backend with this model and context can serve the request. Answers how it samples, if it does.
pub(crate) fn check_request(request: &Request<'_>, config: &Config, max_seq_len: usize) -> Result<Option<Sampling>> {
    if request.prompt.is_empty() {
        return Err(Error::BadInput("the prompt is empty: give at least one token".into()));
    }
    if request.max_tokens == 0 {
        return Err(Error::BadInput("max_tokens is 0: ask for at least one token".into()));
    }
    if request.end_tokens.len() > MAX_END_TOKENS {
        return Err(Error::BadInput(format!(
            "{} end tokens were given but the loop watches for at most {MAX_END_TOKENS}: give fewer",
            request.end_tokens.len()
        )));
    }
    request.logprobs.map_or(Ok(()), check_logprobs)?;
    if request.prompt.len() >= max_seq_len {
        return Err(Error::ContextOverflow { needed: request.prompt.len() + 1, context: max_seq_len });
    }
    check_tokens(request.prompt, config)?;
    request.sampling.resolve(config.vocab_size)
}

/// Whether so many of the most probable tokens can be told.
///
/// # Errors
/// [`Error::BadInput`] where they are more than [`MAX_TOP`].
pub fn check_logprobs(n_top: usize) -> Result<()> {
    if n_top <= MAX_TOP {
        return Ok(());
    }
    Err(Error::BadInput(format!(
        "logprobs asks for the {n_top} most probable tokens of each place but at most {MAX_TOP} can be told: ask for fewer"
    )))
}

pub(crate) fn check_tokens(tokens: &[u32], config: &Config) -> Result<()> {
    match tokens.iter().find(|token| **token as usize >= config.vocab_size) {
        Some(token) => Err(Error::BadInput(format!(
            "token {token} is outside the vocabulary of {} tokens: tokenise the prompt with the model's own tokenizer",
            config.vocab_size
        ))),
        None => Ok(()),
    }
}
