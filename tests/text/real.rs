//! Real model files: ids of their whole vocabularies and their own templates.
//!
//! Ignored by default because it needs files that are not in the repository, named by a folder that holds
//! `smollm2-135m.gguf` and `qwen2.5-0.5b.gguf`:
//! `FORERUN_MODELS=$PWD/models cargo test --release --test text real -- --ignored --nocapture`

use std::time::Instant;

use forerun::model::{FileSource, Model, ModelOptions};
use forerun::text::{ChatTemplate, Tokenizer};

use crate::{fixture, ids, templates, tokenizers};

#[test]
#[ignore = "needs model files: set FORERUN_MODELS"]
fn real_models() {
    let folder = std::env::var("FORERUN_MODELS").expect("FORERUN_MODELS names the folder of the models");
    for case in fixture("real.json").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let file = if name == "smollm2" { "smollm2-135m.gguf" } else { "qwen2.5-0.5b.gguf" };
        let source = FileSource::open(format!("{folder}/{file}")).unwrap();
        let model = pollster::block_on(Model::open(&source, &ModelOptions::default())).unwrap();

        let start = Instant::now();
        let tokenizer = Tokenizer::from_metadata(&model.metadata).unwrap();
        println!("{name}: {} tokens read in {:?}, {tokenizer:?}", tokenizer.vocab_size(), start.elapsed());
        assert_eq!(tokenizer.vocab_size() as u64, case["vocab_size"].as_u64().unwrap());
        tokenizers::check(name, &tokenizer, &case["cases"]);

        let text: String =
            case["cases"].as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap()).collect();
        let text = text.repeat(20);
        let start = Instant::now();
        let n_tokens = tokenizer.encode(&text, false).unwrap().len();
        println!("{name}: {} bytes are {n_tokens} tokens, encoded in {:?}", text.len(), start.elapsed());

        let template = ChatTemplate::from_metadata(&model.metadata).unwrap().unwrap();
        templates::check(name, &template, &case["chats"], "<|im_start|>", "<|im_end|>");
        for chat in case["chats"].as_array().unwrap() {
            let tokens = tokenizer.encode(chat["text"].as_str().unwrap(), false).unwrap();
            assert_eq!(tokens, ids(&chat["ids"]), "{name}: {}", chat["messages"]);
        }
    }
}
