//! Tokenizer and chat template: from text to tokens and back.
//!
//! [`Tokenizer`] and [`ChatTemplate`] are made from a model file's [`Metadata`](crate::model::Metadata). A
//! conversation is rendered to one string by the template, the string is encoded to tokens, and the tokens that the
//! model answers become text again, piece by piece, in a [`TextStream`].
//!
//! Everything in a model file is untrusted: vocabularies are checked before the `tokenizers` crate sees them, and
//! templates run with a budget of work and memory.

mod guard;
mod merges;
mod pre_tokenizer;
mod python;
mod stream;
mod template;
mod tokenizer;
mod vocabulary;

pub use stream::TextStream;
pub use template::{ChatTemplate, Message, RenderOptions};
pub use tokenizer::Tokenizer;
