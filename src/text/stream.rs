//! Tokens to text while they arrive.

use std::sync::Arc;

use super::tokenizer::{Pieces, Tokenizer};

/// Turns a stream of tokens into text, holding back bytes until they are whole characters.
///
/// All that [`push`](Self::push) and [`finish`](Self::finish) return, one after the other, is what
/// [`Tokenizer::decode`] makes of all the tokens.
#[derive(Debug, Clone)]
pub struct TextStream {
    pieces: Arc<Pieces>,
    /// The start of a character whose other bytes have not come yet.
    pending: Vec<u8>,
    /// The next byte is the first of a SentencePiece text, which drops one space.
    at_start: bool,
}

impl TextStream {
    /// A stream for a text of its own, such as an answer in a chat.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let pieces = tokenizer.pieces().clone();
        Self { pending: Vec::new(), at_start: pieces.strip_leading_space, pieces }
    }

    /// A stream that goes on after other text, such as the continuation of a raw prompt: a space in front is kept.
    pub fn continuing(tokenizer: &Tokenizer) -> Self {
        Self { at_start: false, ..Self::new(tokenizer) }
    }

    /// The text that `token` completes; empty if it completes none, or is a control token.
    pub fn push(&mut self, token: u32) -> String {
        let pieces = self.pieces.clone();
        if pieces.is_hidden(token) {
            return String::new();
        }
        let mut bytes = pieces.bytes(token);
        if self.at_start && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.at_start = false;
        }
        self.pending.extend_from_slice(bytes);
        self.take_whole()
    }

    /// The text that `tokens` complete.
    pub fn push_all(&mut self, tokens: &[u32]) -> String {
        tokens.iter().map(|&token| self.push(token)).collect()
    }

    /// What is left at the end of the stream: U+FFFD if the last character is not whole, else nothing.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// Takes what is whole or beyond repair out of `pending`.
    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut taken = 0;
        loop {
            let rest = &self.pending[taken..];
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    taken = self.pending.len();
                    break;
                }
                Err(error) => {
                    let (whole, _) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(whole));
                    taken += error.valid_up_to();
                    match error.error_len() {
                        // More bytes may complete the character.
                        None => break,
                        Some(invalid) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            taken += invalid;
                        }
                    }
                }
            }
        }
        self.pending.drain(..taken);
        text
    }
}
