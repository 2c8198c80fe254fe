//! The tokenizer and the chat templates, compared with what transformers, tokenizers and SentencePiece say
//! (`tools/text_fixtures.py` asked them), and on files that mean harm.

mod hostile;
mod real;
mod stream;
mod templates;
mod tokenizers;

use forerun::model::{Metadata, Value};
use serde_json::Value as Json;

/// A fixture of `tests/fixtures/text`.
fn fixture(name: &str) -> Json {
    let path = format!("{}/tests/fixtures/text/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(json: &Json) -> Vec<String> {
    json.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|item| item.as_u64().unwrap() as u32).collect()
}

/// Metadata from keys below `tokenizer.ggml.` and their values.
fn metadata<const N: usize>(entries: [(&str, Value); N]) -> Metadata {
    let mut metadata = Metadata::default();
    for (key, value) in entries {
        metadata.insert(format!("tokenizer.ggml.{key}"), value);
    }
    metadata
}

/// The 256 characters that spell bytes, in order of their code points.
fn alphabet() -> Vec<String> {
    let printable = |c: &u32| matches!(c, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let chars = (0..256).filter(printable).chain(256..324);
    chars.map(|c| char::from_u32(c).unwrap().to_string()).collect()
}

/// The reduced byte-level vocabulary `json`, cut as `pre` says.
fn byte_level(json: &Json, pre: &str) -> Metadata {
    let merges = strings(&json["merges"]);
    let mut tokens = alphabet();
    let mut seen: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    for merge in &merges {
        let token = merge.replace(' ', "");
        if seen.insert(token.clone()) {
            tokens.push(token);
        }
    }
    let mut types = vec![1; tokens.len()];
    for added in json["added"].as_array().unwrap() {
        tokens.push(added[0].as_str().unwrap().to_owned());
        types.push(added[1].as_i64().unwrap());
    }
    let eos = tokens.iter().position(|token| token == json["eos"].as_str().unwrap()).unwrap();
    metadata([
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String(pre.into())),
        ("tokens", Value::Strings(tokens)),
        ("token_type", Value::Ints(types)),
        ("merges", Value::Strings(merges)),
        ("eos_token_id", Value::Uint(eos as u64)),
        ("add_bos_token", Value::Bool(false)),
    ])
}

/// The small SentencePiece vocabulary.
fn sentencepiece(json: &Json, add_space_prefix: bool, remove_extra_whitespaces: bool) -> Metadata {
    let floats = json["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32).collect();
    let types = json["types"].as_array().unwrap().iter().map(|kind| kind.as_i64().unwrap()).collect();
    metadata([
        ("model", Value::String("llama".into())),
        ("tokens", Value::Strings(strings(&json["tokens"]))),
        ("scores", Value::Floats(floats)),
        ("token_type", Value::Ints(types)),
        ("unknown_token_id", Value::Uint(0)),
        ("bos_token_id", Value::Uint(1)),
        ("eos_token_id", Value::Uint(2)),
        ("add_space_prefix", Value::Bool(add_space_prefix)),
        ("remove_extra_whitespaces", Value::Bool(remove_extra_whitespaces)),
    ])
}
