//! Text that arrives in pieces is the text that arrives at once.

use forerun::text::{TextStream, Tokenizer};
use proptest::prelude::*;

use crate::{byte_level, fixture, sentencepiece};

fn tokenizers() -> Vec<Tokenizer> {
    let json = fixture("vocabularies.json");
    let metadata = [
        byte_level(&json["byte_level"][0], "smollm"),
        byte_level(&json["byte_level"][1], "qwen2"),
        sentencepiece(&json["sentencepiece"], true, false),
        sentencepiece(&json["sentencepiece"], false, false),
    ];
    metadata.iter().map(|metadata| Tokenizer::from_metadata(metadata).unwrap()).collect()
}

/// The text of `tokens`, pushed `n` at a time; nothing half-done may come out before the end.
fn streamed(tokenizer: &Tokenizer, tokens: &[u32], n: usize) -> String {
    let mut stream = TextStream::new(tokenizer);
    let mut text = String::new();
    for tokens in tokens.chunks(n) {
        text += &stream.push_all(tokens);
    }
    text += &stream.finish();
    assert_eq!(stream.finish(), "", "the end comes once");
    text
}

#[test]
fn a_page_of_hard_text() {
    let json = fixture("vocabularies.json");
    let page: Vec<_> = json["byte_level"][0]["cases"]["smollm"].as_array().unwrap().iter().collect();
    for tokenizer in tokenizers() {
        for case in &page {
            let text = case["text"].as_str().unwrap();
            let tokens = tokenizer.encode(text, false).unwrap();
            for n in [1, 2, 3, 8] {
                assert_eq!(streamed(&tokenizer, &tokens, n), tokenizer.decode(&tokens), "{text:?} by {n}");
            }
        }
    }
}

#[test]
fn characters_are_held_back_until_they_are_whole() {
    let json = fixture("vocabularies.json");
    let tokenizer = Tokenizer::from_metadata(&byte_level(&json["byte_level"][0], "smollm")).unwrap();
    // The bytes of the alphabet are the first tokens, so each can be pushed alone.
    let token = |byte: u8| (0..256).find(|&id| tokenizer.token_bytes(id) == [byte]).unwrap();
    let mut stream = TextStream::new(&tokenizer);
    let pushed: Vec<String> = "a😀é".bytes().map(|byte| stream.push(token(byte))).collect();
    assert_eq!(pushed, ["a", "", "", "", "😀", "", "é"]);
    // A character that is broken off shows as soon as that is certain.
    assert_eq!((stream.push(token(0xF0)), stream.push(token(b'x'))), (String::new(), "\u{fffd}x".into()));
    assert_eq!((stream.push(token(0xE2)), stream.finish()), (String::new(), "\u{fffd}".into()));
}

#[test]
fn the_space_of_sentencepiece_goes_once() {
    let json = fixture("vocabularies.json");
    let tokenizer = Tokenizer::from_metadata(&sentencepiece(&json["sentencepiece"], true, false)).unwrap();
    let tokens = tokenizer.encode("the mill", false).unwrap();
    assert_eq!(TextStream::new(&tokenizer).push_all(&tokens), "the mill");
    assert_eq!(TextStream::continuing(&tokenizer).push_all(&tokens), " the mill");
    let mut stream = TextStream::new(&tokenizer);
    assert_eq!(stream.push(1), "", "a control token is no text");
    assert_eq!(stream.push_all(&tokens), "the mill");
    assert_eq!(stream.push_all(&tokens), " the mill");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Any tokens, so bytes in any order: broken characters everywhere.
    #[test]
    fn any_tokens(seeds in prop::collection::vec(any::<u32>(), 0..60), bytes_only in any::<bool>()) {
        for tokenizer in tokenizers() {
            let range = if bytes_only { 260 } else { tokenizer.vocab_size() as u32 + 2 };
            let tokens: Vec<u32> = seeds.iter().map(|seed| seed % range).collect();
            for n in [1, 8] {
                prop_assert_eq!(streamed(&tokenizer, &tokens, n), tokenizer.decode(&tokens));
            }
        }
    }
}
