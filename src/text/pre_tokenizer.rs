//! How text is cut into words before byte-level BPE merges inside them, by the name in `tokenizer.ggml.pre`.
//!
//! A merge never crosses the end of a word, so a vocabulary works only with the cuts it was trained with. The
//! expressions are those of the models' own tokenizers.

use tokenizers::tokenizer::{PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};
use tokenizers::utils::SysRegex;

use super::vocabulary::quoted;
use crate::{Error, Result};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// What llama.cpp does with files that name no pre-tokenizer.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// One pre-tokenizer.
#[derive(Debug)]
pub(super) struct Scheme {
    /// Applied in order, each to the pieces the one before it left.
    expressions: &'static [&'static str],
    /// A word that is a token is taken whole, without asking the merges.
    pub ignore_merges: bool,
    /// Text is brought to Unicode's composed form first.
    pub nfc: bool,
}

/// The pre-tokenizer named `name`.
///
/// # Errors
/// [`Error::Unsupported`] for a name that is not known: a guess would give the model wrong tokens.
pub(super) fn scheme(name: &str) -> Result<Scheme> {
    let scheme = |expressions| Scheme { expressions, ignore_merges: false, nfc: false };
    Ok(match name {
        "gpt-2" | "gpt2" | "phi-2" | "jina-es" | "jina-de" | "mellum" => scheme(&[GPT2]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            scheme(&[r"\p{N}", GPT2])
        }
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "lfm2" => {
            Scheme { ignore_merges: true, ..scheme(&[LLAMA3]) }
        }
        "dbrx" | "smaug-bpe" => scheme(&[LLAMA3]),
        "qwen2" | "deepseek-r1-qwen" | "megrez" => Scheme { nfc: true, ..scheme(&[QWEN2]) },
        "stablelm2" => scheme(&[QWEN2]),
        "tekken" => Scheme { ignore_merges: true, ..scheme(&[TEKKEN]) },
        "gpt-4o" | "llama4" => scheme(&[GPT4O]),
        "default" => scheme(&DEFAULT),
        other => {
            return Err(Error::Unsupported(format!(
                "the model's pre-tokenizer {} is not known to this engine: use another model, or a newer version",
                quoted(other)
            )));
        }
    })
}

/// Whether llama.cpp starts a text with the token BOS when the file says nothing on it.
pub(super) fn adds_bos_by_default(name: &str) -> bool {
    matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "lfm2" | "tekken")
}

/// Cuts text into words and spells their bytes in the byte-level alphabet; for SentencePiece, leaves text whole.
#[derive(Debug)]
pub(super) struct Words {
    expressions: Vec<SysRegex>,
    byte_level: Option<tokenizers::pre_tokenizers::byte_level::ByteLevel>,
}

impl Words {
    /// Cuts as `scheme` says.
    pub fn new(scheme: &Scheme) -> Result<Self> {
        let compile = |expression: &&str| {
            SysRegex::new(expression)
                .map_err(|error| Error::Unsupported(format!("a pre-tokenizer cannot be compiled ({error})")))
        };
        let byte_level = tokenizers::pre_tokenizers::byte_level::ByteLevel::new(false, false, false);
        let expressions = scheme.expressions.iter().map(compile).collect::<Result<_>>()?;
        Ok(Self { expressions, byte_level: Some(byte_level) })
    }

    /// Leaves the text as it is.
    pub fn whole() -> Self {
        Self { expressions: Vec::new(), byte_level: None }
    }
}

impl PreTokenizer for Words {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for expression in &self.expressions {
            text.split(|_, piece| piece.split(expression, SplitDelimiterBehavior::Isolated))?;
        }
        match &self.byte_level {
            Some(byte_level) => byte_level.pre_tokenize(text),
            None => Ok(()),
        }
    }
}
