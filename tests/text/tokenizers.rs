//! Ids and decoded text are those of the reference.

use forerun::model::Value;
use forerun::text::Tokenizer;
use proptest::prelude::*;
use serde_json::Value as Json;

use crate::{byte_level, fixture, ids, sentencepiece};

/// Encodes and decodes every case.
pub fn check(name: &str, tokenizer: &Tokenizer, cases: &Json) {
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 30, "{name} has cases");
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        let got = tokenizer.encode(text, false).unwrap();
        let pieces = |ids: &[u32]| ids.iter().map(|&id| tokenizer.piece(id).into_owned()).collect::<Vec<_>>();
        assert_eq!(got, expected, "{name}: {text:?}: {:?} for {:?}", pieces(&got), pieces(&expected));
        let decoded = case.get("decoded").map_or(text, |decoded| decoded.as_str().unwrap());
        assert_eq!(tokenizer.decode(&got), decoded, "{name}: decoding {text:?}");
    }
}

#[test]
fn byte_level_ids_are_those_of_the_reference() {
    for vocabulary in fixture("vocabularies.json")["byte_level"].as_array().unwrap() {
        for (pre, cases) in vocabulary["cases"].as_object().unwrap() {
            let tokenizer = Tokenizer::from_metadata(&byte_level(vocabulary, pre)).unwrap();
            check(pre, &tokenizer, cases);
            let ends: Vec<_> = tokenizer.end_tokens().iter().map(|&id| tokenizer.piece(id).into_owned()).collect();
            assert_eq!(ends, ["<|endoftext|>", "<|im_end|>"]);
            assert_eq!(tokenizer.piece(tokenizer.eos().unwrap()), "<|im_end|>");
        }
    }
}

#[test]
fn sentencepiece_ids_are_those_of_the_reference() {
    let json = &fixture("vocabularies.json")["sentencepiece"];
    for variant in json["variants"].as_array().unwrap() {
        let flag = |key: &str| variant[key].as_bool().unwrap();
        let (prefix, squeeze) = (flag("add_space_prefix"), flag("remove_extra_whitespaces"));
        let tokenizer = Tokenizer::from_metadata(&sentencepiece(json, prefix, squeeze)).unwrap();
        for case in variant["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected = ids(&case["ids"]);
            assert_eq!(
                tokenizer.encode(text, false).unwrap(),
                expected,
                "{text:?}, prefix {prefix}, squeeze {squeeze}"
            );
        }
        if prefix && !squeeze {
            check("llama", &tokenizer, &variant["cases"]);
        }
    }
}

#[test]
fn special_tokens_are_added_as_the_file_says() {
    let json = &fixture("vocabularies.json")["sentencepiece"];
    let mut metadata = sentencepiece(json, true, false);
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let plain = tokenizer.encode("the mill", false).unwrap();
    assert_eq!(tokenizer.encode("the mill", true).unwrap(), [&[1], &plain[..]].concat());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    // `<|end|>` is known by its spelling.
    assert_eq!(tokenizer.end_tokens().len(), 2);

    metadata.insert("tokenizer.ggml.add_bos_token".into(), Value::Bool(false));
    metadata.insert("tokenizer.ggml.add_eos_token".into(), Value::Bool(true));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("the mill", true).unwrap(), [&plain[..], &[2]].concat());
    assert_eq!(tokenizer.encode("", true).unwrap(), [2]);
}

#[test]
fn control_tokens_are_shown_on_request() {
    let json = &fixture("vocabularies.json")["byte_level"][0];
    let tokenizer = Tokenizer::from_metadata(&byte_level(json, "smollm")).unwrap();
    let tokens = tokenizer.encode("<|im_start|>a<|im_end|>", false).unwrap();
    assert_eq!(tokens.len(), 3);
    assert_eq!(tokenizer.decode(&tokens), "a");
    assert_eq!(tokenizer.decode_with_special(&tokens), "<|im_start|>a<|im_end|>");
    assert!(tokenizer.is_special(tokens[0]) && !tokenizer.is_special(tokens[1]));
    assert_eq!(tokenizer.token_bytes(tokens[1]), b"a");
    let size = tokenizer.vocab_size() as u32;
    assert_eq!(tokenizer.decode(&[size, u32::MAX, tokens[1]]), "a");
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
}

/// Text with more of what is hard than chance gives.
pub fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        "[ \t\r\n]{0,12}",
        "[a-zA-Z']{0,12}",
        "[0-9]{0,8}",
        "\\PC{0,8}",
        Just("<|im_start|>".to_owned()),
        Just("<|im_".to_owned()),
        Just("e\u{301}".to_owned()),
        Just("👨‍👩‍👧‍👦".to_owned()),
        Just("▁".to_owned()),
        Just("Ġ".to_owned()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn byte_level_gives_back_any_text(text in text()) {
        let json = fixture("vocabularies.json");
        thread_local! {
            static TOKENIZERS: std::cell::OnceCell<Vec<Tokenizer>> = const { std::cell::OnceCell::new() };
        }
        TOKENIZERS.with(|tokenizers| {
            let tokenizers = tokenizers.get_or_init(|| {
                let pres = ["gpt-2", "smollm", "llama-bpe", "tekken", "gpt-4o", "stablelm2", "default"];
                pres.iter().map(|pre| Tokenizer::from_metadata(&byte_level(&json["byte_level"][1], pre)).unwrap()).collect()
            });
            for tokenizer in tokenizers {
                let tokens = tokenizer.encode(&text, false).unwrap();
                prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(tokenizer.decode_with_special(&tokens), text.clone());
            }
            Ok(())
        })?;
    }

    #[test]
    fn sentencepiece_gives_back_any_text(text in text()) {
        let json = &fixture("vocabularies.json")["sentencepiece"];
        let tokenizer = Tokenizer::from_metadata(&sentencepiece(json, true, false)).unwrap();
        let tokens = tokenizer.encode(&text, false).unwrap();
        // The visible space is a space, as SentencePiece has it.
        prop_assert_eq!(tokenizer.decode(&tokens), text.replace('▁', " "));
    }
}
