//! Text to tokens and tokens to text.

use std::borrow::Cow;
use std::sync::Arc;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::tokenizer::{AddedToken, NormalizedString, TokenizerImpl};

use super::merges::merges;
use super::pre_tokenizer::{Words, scheme};
use super::vocabulary::{Family, Kind, Vocabulary, damaged};
use crate::model::Metadata;
use crate::{Error, Result};

/// SentencePiece's visible space.
const SPACE: char = '▁';

/// A model's tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    encoder: Arc<TokenizerImpl<BPE, Normalizer, Words, ByteLevel, ByteLevel>>,
    pieces: Arc<Pieces>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    remove_extra_spaces: bool,
    end_tokens: Arc<[u32]>,
}

/// The bytes of every token, and which are shown.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Token `i` is `bytes[ends[i - 1]..ends[i]]`, `[vocab_size]`.
    ends: Vec<u32>,
    /// Tokens that are never part of the text, `[vocab_size]`.
    hidden: Vec<bool>,
    /// A text starts with a space that SentencePiece put there.
    pub strip_leading_space: bool,
}

impl Pieces {
    /// The bytes of `token`; none for an id that is not in the vocabulary.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let index = token as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Whether `token` is never shown: it steers the model, or is not in the vocabulary.
    pub fn is_hidden(&self, token: u32) -> bool {
        self.hidden.get(token as usize).copied().unwrap_or(true)
    }
}

impl Tokenizer {
    /// The tokenizer that a model file's metadata describes (keys `tokenizer.ggml.*`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type or a pre-tokenizer that is not known, [`Error::ModelFormat`] for a damaged
    /// vocabulary.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let vocabulary = Vocabulary::read(metadata)?;
        let pieces = pieces(&vocabulary)?;

        let merges = merges(&vocabulary)?;
        let ids: Vocab = vocabulary.ids.iter().map(|(&token, &id)| (token.to_owned(), id)).collect();
        let model = BPE::builder().vocab_and_merges(ids, merges);
        let (model, normalizer, words) = match vocabulary.family {
            Family::ByteLevel => {
                let scheme = scheme(vocabulary.pre)?;
                let normalizer = if scheme.nfc { Normalizer::Nfc } else { Normalizer::None };
                (model.ignore_merges(scheme.ignore_merges), normalizer, Words::new(&scheme)?)
            }
            Family::SentencePiece => {
                let mut model = model.byte_fallback(true).fuse_unk(true);
                if let Some(token) = vocabulary.unknown.map(|id| &vocabulary.tokens[id as usize])
                    && vocabulary.ids.contains_key(token.as_str())
                {
                    model = model.unk_token(token.clone());
                }
                (model, Normalizer::SentencePiece { add_space_prefix: vocabulary.add_space_prefix }, Words::whole())
            }
        };
        let mut encoder = TokenizerImpl::new(model.build().map_err(damaged)?);
        encoder.with_normalizer(Some(normalizer)).map_err(damaged)?;
        encoder.with_pre_tokenizer(Some(words));
        let added = vocabulary.tokens.iter().zip(&vocabulary.kinds).filter_map(|(token, kind)| match kind {
            Kind::Control | Kind::Unknown => Some(AddedToken::from(token.as_str(), true)),
            Kind::UserDefined => Some(AddedToken::from(token.as_str(), false).normalized(false)),
            Kind::Normal | Kind::Unused | Kind::Byte(_) => None,
        });
        encoder.add_tokens(added.filter(|token| !token.content.is_empty())).map_err(damaged)?;

        Ok(Self {
            encoder: Arc::new(encoder),
            pieces: Arc::new(pieces),
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            add_bos: vocabulary.add_bos,
            add_eos: vocabulary.add_eos,
            remove_extra_spaces: vocabulary.remove_extra_spaces,
            end_tokens: vocabulary.end_tokens.into(),
        })
    }

    /// The tokens of `text`. Control tokens spelled in the text (`<|im_start|>`) are recognised, which a rendered chat
    /// template needs.
    ///
    /// `add_special` puts the tokens BOS and EOS around them if the model's file says so: use it for plain text, and
    /// not for a rendered template, which spells them itself.
    ///
    /// # Errors
    /// [`Error::BadInput`] if the text cannot be encoded.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let text = if self.remove_extra_spaces { Cow::Owned(single_spaces(text)) } else { Cow::Borrowed(text) };
        let encoding = self
            .encoder
            .encode_fast(text.as_ref(), false)
            .map_err(|error| Error::BadInput(format!("the text cannot be cut into tokens ({error}): change it")))?;
        let ids = encoding.get_ids();
        let mut tokens = Vec::with_capacity(ids.len() + 2);
        tokens.extend(self.bos.filter(|_| add_special && self.add_bos));
        tokens.extend_from_slice(ids);
        tokens.extend(self.eos.filter(|_| add_special && self.add_eos));
        Ok(tokens)
    }

    /// The text of `tokens`, without control tokens. Bytes that are not UTF-8 become U+FFFD; ids that are not in the
    /// vocabulary give no text.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.decode_with(tokens, false)
    }

    /// Like [`decode`](Self::decode), with control tokens spelled out.
    pub fn decode_with_special(&self, tokens: &[u32]) -> String {
        self.decode_with(tokens, true)
    }

    fn decode_with(&self, tokens: &[u32], special: bool) -> String {
        let shown = tokens.iter().filter(|&&token| special || !self.pieces.is_hidden(token));
        let bytes: Vec<u8> = shown.flat_map(|&token| self.pieces.bytes(token)).copied().collect();
        let bytes = if self.pieces.strip_leading_space { bytes.strip_prefix(b" ").unwrap_or(&bytes) } else { &bytes };
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// The bytes that `token` stands for, which need not be UTF-8 by themselves: the spelling for a control token,
    /// nothing for an id that is not in the vocabulary.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.pieces.bytes(token)
    }

    /// `token` for people: its bytes as text, with U+FFFD where they are not UTF-8.
    pub fn piece(&self, token: u32) -> Cow<'_, str> {
        String::from_utf8_lossy(self.token_bytes(token))
    }

    /// Whether `token` steers the model and is not part of its text.
    pub fn is_special(&self, token: u32) -> bool {
        self.pieces.is_hidden(token)
    }

    /// The number of tokens in the file's table, used or not.
    pub fn vocab_size(&self) -> usize {
        self.pieces.ends.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// All tokens that end an answer: end of text, of turn and of message as the file names them, and those of
    /// well-known spelling. Ascending, each once.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    pub(super) fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("end_tokens", &self.end_tokens)
            .finish_non_exhaustive()
    }
}

/// What happens to text before it is cut.
#[derive(Debug)]
enum Normalizer {
    None,
    /// Unicode's composed form.
    Nfc,
    /// Spaces become visible, and each stretch of text between control tokens gets one in front. (SentencePiece and
    /// the first transformers tokenizers do this; newer ones do it only at the start of the text. Files do not say
    /// which a model saw, and llama.cpp does the former.)
    SentencePiece {
        add_space_prefix: bool,
    },
}

impl tokenizers::Normalizer for Normalizer {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        match self {
            Self::None => {}
            Self::Nfc => {
                text.nfc();
            }
            Self::SentencePiece { add_space_prefix } => {
                if *add_space_prefix && !text.is_empty() {
                    text.prepend(" ");
                }
                text.map(|c| if c == ' ' { SPACE } else { c });
            }
        }
        Ok(())
    }
}

/// `text` with runs of spaces made one, and none at the ends.
fn single_spaces(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// The table of bytes.
fn pieces(vocabulary: &Vocabulary) -> Result<Pieces> {
    let alphabet = byte_alphabet();
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(vocabulary.tokens.len());
    for (token, kind) in vocabulary.tokens.iter().zip(&vocabulary.kinds) {
        let start = bytes.len();
        match (kind, vocabulary.family) {
            (Kind::Byte(byte), _) => bytes.push(*byte),
            (Kind::Normal, Family::ByteLevel) => {
                // A token with a character outside of the alphabet stands for itself.
                let spelled = |c: char| alphabet.get(c as usize).copied().flatten();
                bytes.extend(token.chars().map_while(spelled));
                if token.chars().any(|c| spelled(c).is_none()) {
                    bytes.truncate(start);
                    bytes.extend_from_slice(token.as_bytes());
                }
            }
            (Kind::Normal | Kind::UserDefined, Family::SentencePiece) => {
                bytes.extend_from_slice(token.replace(SPACE, " ").as_bytes());
            }
            _ => bytes.extend_from_slice(token.as_bytes()),
        }
        ends.push(u32::try_from(bytes.len()).map_err(|_| damaged("its tokens are absurdly long"))?);
    }
    let hidden = |kind: &Kind| matches!(kind, Kind::Control | Kind::Unknown | Kind::Unused);
    Ok(Pieces {
        bytes,
        ends,
        hidden: vocabulary.kinds.iter().map(hidden).collect(),
        strip_leading_space: vocabulary.add_space_prefix,
    })
}

/// The byte that each character of the byte-level alphabet stands for, by the character's code point: printable
/// Latin-1 characters are themselves, the other bytes follow from U+0100 on
/// ([GPT-2's encoder](https://github.com/openai/gpt-2/blob/master/src/encoder.py)).
fn byte_alphabet() -> [Option<u8>; 324] {
    let mut alphabet = [None; 324];
    let mut next = 256;
    for byte in 0..=255u8 {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            alphabet[byte as usize] = Some(byte);
        } else {
            alphabet[next] = Some(byte);
            next += 1;
        }
    }
    alphabet
}
