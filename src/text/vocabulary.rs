//! A vocabulary as a GGUF file describes it, checked before anything is built from it.
//!
//! Keys are those of the [GGUF specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); defaults for
//! missing keys are those of llama.cpp, which wrote the files.

use std::collections::HashMap;

use crate::model::{Metadata, Value};
use crate::{Error, Result};

/// How the vocabulary cuts text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Byte-level BPE with a list of merges (`gpt2`).
    ByteLevel,
    /// SentencePiece BPE with scores and byte tokens (`llama`).
    SentencePiece,
}

/// What a token is for, by its number in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ordinary text.
    Normal,
    /// Stands for a character the vocabulary lacks.
    Unknown,
    /// Steers the model, is recognised whole in a prompt and never shown.
    Control,
    /// Recognised whole in a prompt, and shown.
    UserDefined,
    /// Fills the table.
    Unused,
    /// One byte, spelled `<0xNN>`.
    Byte(u8),
}

/// The tokens of a file and what the file says about them.
#[derive(Debug)]
pub(super) struct Vocabulary<'a> {
    pub family: Family,
    /// The name of the pre-tokenizer, for byte-level vocabularies.
    pub pre: &'a str,
    /// Spelling by id, `[vocab_size]`.
    pub tokens: &'a [String],
    /// `[vocab_size]`
    pub kinds: Vec<Kind>,
    /// `[vocab_size]` for SentencePiece, else empty.
    pub scores: &'a [f32],
    /// Merges in order of rank, `left right` each, for byte-level vocabularies.
    pub merges: &'a [String],
    /// Id by spelling, of every token that text can become: unused tokens are not in it.
    pub ids: HashMap<&'a str, u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    /// SentencePiece: text gets a space in front.
    pub add_space_prefix: bool,
    /// SentencePiece: runs of spaces become one, and those at the ends go.
    pub remove_extra_spaces: bool,
    /// Tokens that end an answer, ascending.
    pub end_tokens: Vec<u32>,
}

/// Spellings that end a turn or a text in the models in use, whatever the file says of them. (The list llama.cpp
/// has, without the tokens of fill-in-the-middle.)
const END_TOKENS: [&str; 11] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "_<EOT>",
];

/// Ids must stay far from the ends of `u32`, and no model has a tenth of this.
const MAX_TOKENS: usize = 1 << 24;

/// The error for a vocabulary that contradicts itself.
pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::ModelFormat(format!("the model's tokenizer is damaged ({what}): download or convert the model again"))
}

/// A spelling from the file, short and safe to print.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}{}", if short.len() < text.len() { "…" } else { "" })
}

impl<'a> Vocabulary<'a> {
    /// Reads and checks the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other families of tokenizers, [`Error::ModelFormat`] for missing, contradictory or
    /// damaged entries.
    pub fn read(metadata: &'a Metadata) -> Result<Self> {
        let family = match metadata.string("tokenizer.ggml.model") {
            Some("gpt2") => Family::ByteLevel,
            Some("llama") => Family::SentencePiece,
            Some(other) => {
                return Err(Error::Unsupported(format!(
                    "the model's tokenizer is of the type {}, and this engine reads byte-level BPE (gpt2) and \
                     SentencePiece (llama): use another model",
                    quoted(other)
                )));
            }
            None => {
                return Err(Error::ModelFormat(
                    "the model file has no tokenizer (the key tokenizer.ggml.model is missing): use a file with one"
                        .into(),
                ));
            }
        };
        let tokens = strings(metadata, "tokenizer.ggml.tokens")?.unwrap_or_default();
        if tokens.is_empty() {
            return Err(damaged("the list of tokens is missing or empty"));
        }
        if tokens.len() > MAX_TOKENS {
            return Err(damaged(format_args!("{} tokens are too many", tokens.len())));
        }

        let mut kinds = read_kinds(metadata, family, tokens)?;
        let ids = ids_by_spelling(tokens, &kinds)?;

        let (scores, merges) = match family {
            Family::SentencePiece => (read_scores(metadata, tokens.len())?, &[][..]),
            Family::ByteLevel => (&[][..], read_merges(metadata)?),
        };

        let id = |key: &str, default: Option<(u32, &str)>| -> Result<Option<u32>> {
            if metadata.get(key).is_none() {
                // llama.cpp's defaults, taken only where the spelling confirms them.
                let confirmed = |&(id, spelling): &(u32, &str)| tokens.get(id as usize).is_some_and(|t| t == spelling);
                return Ok(default.filter(confirmed).map(|(id, _)| id));
            }
            match metadata.uint(key) {
                Some(id) if id < tokens.len() as u64 => Ok(Some(id as u32)),
                // Converters write -1 or 2³² - 1 for "none".
                Some(id) if id == u64::from(u32::MAX) => Ok(None),
                None if matches!(metadata.get(key), Some(Value::Int(-1))) => Ok(None),
                _ => Err(damaged(format_args!("{key} is not one of the {} tokens", tokens.len()))),
            }
        };
        let spm = family == Family::SentencePiece;
        let bos = id("tokenizer.ggml.bos_token_id", spm.then_some((1, "<s>")))?;
        let eos = id("tokenizer.ggml.eos_token_id", spm.then_some((2, "</s>")))?;
        let unknown = id("tokenizer.ggml.unknown_token_id", spm.then_some((0, "<unk>")))?;
        let eot = id("tokenizer.ggml.eot_token_id", None)?;
        let eom = id("tokenizer.ggml.eom_token_id", None)?;

        let known_ends: Vec<u32> = END_TOKENS
            .iter()
            .filter_map(|&spelling| Some((spelling, *ids.get(spelling)?)))
            // `<EOT>` may be ordinary text; what is spelled `<|…|>` never is.
            .filter(|&(spelling, id)| spelling.starts_with("<|") || kinds[id as usize] != Kind::Normal)
            .map(|(_, id)| id)
            .collect();
        let mut end_tokens: Vec<u32> =
            [eos, eot, eom].into_iter().flatten().chain(known_ends.iter().copied()).collect();
        end_tokens.sort_unstable();
        end_tokens.dedup();

        // Some files call their control tokens normal, and old ones say nothing at all.
        for id in known_ends {
            kinds[id as usize] = Kind::Control;
        }
        if metadata.get("tokenizer.ggml.token_type").is_none() {
            for token in [bos, eos, eot, eom, unknown.filter(|_| spm)].into_iter().flatten() {
                kinds[token as usize] = Kind::Control;
            }
        }

        let pre = metadata.string("tokenizer.ggml.pre").unwrap_or("default");
        let add_bos = metadata
            .bool("tokenizer.ggml.add_bos_token")
            .unwrap_or(spm || super::pre_tokenizer::adds_bos_by_default(pre));
        Ok(Self {
            family,
            pre,
            tokens,
            kinds,
            scores,
            merges,
            ids,
            bos,
            eos,
            unknown,
            add_bos,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token").unwrap_or(false),
            add_space_prefix: spm && metadata.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true),
            remove_extra_spaces: spm && metadata.bool("tokenizer.ggml.remove_extra_whitespaces").unwrap_or(false),
            end_tokens,
        })
    }
}

/// An array of strings, if the key is there; an empty array may have been read as any type.
fn strings<'a>(metadata: &'a Metadata, key: &str) -> Result<Option<&'a [String]>> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Strings(values)) => Ok(Some(values)),
        Some(Value::Ints(values)) if values.is_empty() => Ok(Some(&[])),
        Some(Value::Floats(values)) if values.is_empty() => Ok(Some(&[])),
        Some(_) => Err(damaged(format_args!("{key} is not a list of strings"))),
    }
}

fn read_kinds(metadata: &Metadata, family: Family, tokens: &[String]) -> Result<Vec<Kind>> {
    let key = "tokenizer.ggml.token_type";
    let byte = |spelling: &str| match spelling.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')) {
        Some(digits) if digits.len() == 2 => u8::from_str_radix(digits, 16).ok(),
        _ => None,
    };
    if metadata.get(key).is_none() {
        let spm = family == Family::SentencePiece;
        let kind = |token: &String| byte(token).filter(|_| spm).map_or(Kind::Normal, Kind::Byte);
        return Ok(tokens.iter().map(kind).collect());
    }
    let types = metadata.ints(key).ok_or_else(|| damaged(format_args!("{key} is not a list of integers")))?;
    if types.len() != tokens.len() {
        return Err(damaged(format_args!("{} token types for {} tokens", types.len(), tokens.len())));
    }
    let kind = |(token, &number): (&String, &i64)| match number {
        0 | 1 => Ok(Kind::Normal),
        2 => Ok(Kind::Unknown),
        3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        5 => Ok(Kind::Unused),
        6 if family == Family::ByteLevel => Ok(Kind::Normal),
        6 => byte(token)
            .map(Kind::Byte)
            .ok_or_else(|| damaged(format_args!("the token {} is called a byte", quoted(token)))),
        _ => Err(damaged(format_args!("the token {} has the unknown type {number}", quoted(token)))),
    };
    tokens.iter().zip(types).map(kind).collect()
}

fn ids_by_spelling<'a>(tokens: &'a [String], kinds: &[Kind]) -> Result<HashMap<&'a str, u32>> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, (token, kind)) in tokens.iter().zip(kinds).enumerate() {
        if *kind == Kind::Unused || token.is_empty() {
            continue;
        }
        if ids.insert(token.as_str(), id as u32).is_some() {
            return Err(damaged(format_args!("the token {} occurs twice", quoted(token))));
        }
    }
    Ok(ids)
}

fn read_scores(metadata: &Metadata, n_tokens: usize) -> Result<&[f32]> {
    let key = "tokenizer.ggml.scores";
    let scores =
        metadata.floats(key).ok_or_else(|| damaged(format_args!("{key} is missing or not a list of floats")))?;
    if scores.len() != n_tokens {
        return Err(damaged(format_args!("{} scores for {n_tokens} tokens", scores.len())));
    }
    if scores.iter().any(|score| score.is_nan()) {
        return Err(damaged("a score is not a number"));
    }
    Ok(scores)
}

fn read_merges(metadata: &Metadata) -> Result<&[String]> {
    strings(metadata, "tokenizer.ggml.merges")?.ok_or_else(|| damaged("the list of merges is missing"))
}
