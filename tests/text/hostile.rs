//! Files that mean harm get an error each, soon, and never a panic.

use std::time::{Duration, Instant};

use forerun::Error;
use forerun::model::{Metadata, Value};
use forerun::text::{ChatTemplate, Message, RenderOptions, Tokenizer};
use proptest::prelude::*;

use crate::{byte_level, fixture, metadata, sentencepiece};

fn gpt2(tokens: &[&str], merges: &[&str]) -> Metadata {
    let owned = |items: &[&str]| Value::Strings(items.iter().map(|&item| item.to_owned()).collect());
    metadata([
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("gpt-2".into())),
        ("tokens", owned(tokens)),
        ("merges", owned(merges)),
    ])
}

fn llama(tokens: &[&str], scores: &[f32]) -> Metadata {
    metadata([
        ("model", Value::String("llama".into())),
        ("tokens", Value::Strings(tokens.iter().map(|&item| item.to_owned()).collect())),
        ("scores", Value::Floats(scores.to_vec())),
    ])
}

/// `metadata` with one key below `tokenizer.ggml.` changed.
fn with(mut metadata: Metadata, key: &str, value: Value) -> Metadata {
    metadata.insert(format!("tokenizer.ggml.{key}"), value);
    metadata
}

#[test]
fn damaged_vocabularies() {
    let check = |what: &str, metadata: Metadata, expected: &str| {
        let error = Tokenizer::from_metadata(&metadata).expect_err(what);
        assert!(matches!(error, Error::ModelFormat(_) | Error::Unsupported(_)), "{what}: {error:?}");
        let message = error.to_string();
        assert!(message.contains(expected), "{what}: {message}");
        assert!(!message.contains('\n') && message.len() < 300, "{what}: {message}");
    };
    let ok = || gpt2(&["a", "b", "ab"], &["a b"]);
    assert_eq!(Tokenizer::from_metadata(&ok()).unwrap().encode("ab", false).unwrap(), [2]);

    check("nothing", Metadata::default(), "has no tokenizer");
    check("type", with(ok(), "model", Value::String("bert\n\u{1b}[0m".repeat(1000))), "of the type");
    check("type of the type", with(ok(), "model", Value::Uint(1)), "has no tokenizer");
    check("pre", with(ok(), "pre", Value::String("new-thing".into())), "\"new-thing\" is not known");
    check("no tokens", with(ok(), "tokens", Value::Strings(vec![])), "missing or empty");
    check("tokens of numbers", with(ok(), "tokens", Value::Ints(vec![1])), "not a list of strings");
    check("merges of numbers", with(ok(), "merges", Value::Floats(vec![1.0])), "not a list of strings");
    check("twice", gpt2(&["a", "b", "a"], &[]), "\"a\" occurs twice");
    check("few types", with(ok(), "token_type", Value::Ints(vec![1, 1])), "2 token types for 3 tokens");
    check("unknown types", with(ok(), "token_type", Value::Ints(vec![1, 1, 7])), "unknown type 7");
    check("negative types", with(ok(), "token_type", Value::Ints(vec![1, 1, -1])), "unknown type -1");
    check("types of text", with(ok(), "token_type", Value::Strings(vec![])), "not a list of integers");
    for key in ["bos_token_id", "eos_token_id", "unknown_token_id", "eot_token_id", "eom_token_id"] {
        check(key, with(ok(), key, Value::Uint(3)), "not one of the 3 tokens");
        check(key, with(ok(), key, Value::Uint(u64::MAX)), "not one of the 3 tokens");
        check(key, with(ok(), key, Value::Int(-2)), "not one of the 3 tokens");
        check(key, with(ok(), key, Value::String("a".into())), "not one of the 3 tokens");
        assert!(Tokenizer::from_metadata(&with(ok(), key, Value::Int(-1))).is_ok());
    }
    check("merge of a stranger", gpt2(&["a", "b", "ab"], &["a c"]), "needs the token \"c\"");
    check("merge into a stranger", gpt2(&["a", "b"], &["a b"]), "needs the token \"ab\"");
    check("merge into an absurdly long stranger", gpt2(&["a", "b"], &["a b", &"b ".repeat(9999)]), "needs the token");
    for merge in ["", " ", "a", "a ", " a", "ab", "  ", "日", "日 "] {
        check(merge, gpt2(&["a", "b", "ab"], &[merge]), "the merge");
    }

    let ok = || llama(&["<unk>", "<s>", "</s>", "<0x61>", "▁"], &[0.0, 0.0, 0.0, 0.0, -1.0]);
    assert_eq!(Tokenizer::from_metadata(&ok()).unwrap().encode("a", true).unwrap(), [1, 4, 3]);
    check("no scores", with(ok(), "scores", Value::Uint(1)), "scores is missing");
    check("few scores", with(ok(), "scores", Value::Floats(vec![0.0])), "1 scores for 5 tokens");
    check("NaN", with(ok(), "scores", Value::Floats(vec![0.0, 0.0, 0.0, 0.0, f32::NAN])), "not a number");
    check("byte", with(ok(), "token_type", Value::Ints(vec![2, 3, 3, 6, 6])), "\"▁\" is called a byte");
    let infinite = with(ok(), "scores", Value::Floats(vec![f32::INFINITY, 0.0, f32::NEG_INFINITY, 1e38, -0.0]));
    assert!(Tokenizer::from_metadata(&infinite).is_ok());

    let long = "a".repeat(20_000);
    check("a token of absurd length", llama(&["a", &long], &[0.0, 0.0]), "absurdly long");
    let tower: Vec<String> = (1..900).map(|n| "a".repeat(n)).collect();
    let tower: Vec<&str> = tower.iter().map(String::as_str).collect();
    check("a tower of tokens", llama(&tower, &vec![0.0; tower.len()]), "absurdly many ways");
}

#[test]
fn odd_vocabularies_that_work() {
    // Empty tokens, special tokens inside one another, a special token of one space, and no bytes for most text.
    let tokens = ["", "a", "<|a|>", "<|", "|>", " ", "ab", ""];
    let types = Value::Ints(vec![1, 1, 3, 3, 4, 4, 1, 3]);
    let tokenizer = Tokenizer::from_metadata(&with(gpt2(&tokens, &[]), "token_type", types)).unwrap();
    assert_eq!(tokenizer.encode("<|a|> a<|x|>", false).unwrap(), [2, 5, 1, 3, 4]);
    assert_eq!(tokenizer.decode(&[0, 1, 2, 3, 4, 5, 6, 7, 8]), "a|> ab");
    // Token types that contradict the rest, and every token a control token.
    for kind in 0..=5 {
        let metadata = with(gpt2(&["a", "b", "ab"], &["a b"]), "token_type", Value::Ints(vec![kind; 3]));
        let result = Tokenizer::from_metadata(&metadata);
        assert_eq!(result.is_err(), kind == 5, "merges need tokens that are used: {result:?}");
        if let Ok(tokenizer) = result {
            tokenizer.encode("abab cab", true).unwrap();
        }
    }
    let many: Vec<String> = (0..100_000).map(|n| format!("<|{n}|>")).collect();
    let metadata = metadata([
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("qwen2".into())),
        ("token_type", Value::Ints(vec![3; many.len()])),
        ("tokens", Value::Strings(many)),
        ("merges", Value::Ints(vec![])),
    ]);
    let start = Instant::now();
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("<|1|>x<|99999|>", false).unwrap(), [1, 99_999]);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn long_texts_take_linear_time() {
    let json = fixture("vocabularies.json");
    let start = Instant::now();
    for metadata in [byte_level(&json["byte_level"][1], "qwen2"), sentencepiece(&json["sentencepiece"], true, false)] {
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        for unit in ["a", " ", "\n", "1", "ab ", "é", "-", " \n", "<|im_start|>", "\u{301}"] {
            let text = unit.repeat(300_000 / unit.len());
            let tokens = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode_with_special(&tokens), text, "{unit:?}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn templates_that_would_never_end() {
    let bombs = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x | replace('x', 'xxxxxxxxxxxx') %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x.replace('x', 'xxxxxxxxxxxx') %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = '%s%s%s%s' | format(ns.x, ns.x, ns.x, ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}{{ ns.x | join }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{{ 'x' * 100000000000 }}",
        "{{ [1] * 100000000000 }}",
        "{{ ('x' * 10000000) * 10000000 }}",
        "{{ 'x' | indent(100000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ [1] | tojson(indent=100000000000) }}",
        "{{ 'a'.center(100000000000) }}",
        "{{ '{:>100000000000}'.format(1) }}",
        "{{ '{:.100000000000f}'.format(1.5) }}",
        "{{ '{:{}}'.format(1, 100000000000) }}",
        "{{ '%*d' | format(100000000000, 1) }}",
        "{{ '%.*f' | format(100000000000, 1.5) }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{{ range(1000000000000) | list }}",
        "{{ 2 ** 100000000000 }}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns ~ '' }}",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a ~ '' }}",
        "{% set a = namespace() %}{% macro f() %}{{ a }}{% endmacro %}{% set a.f = f %}{{ a ~ '' }}",
        "{% set ns = namespace(x=messages) %}{% for i in range(100000) %}{% set ns.x = ns.x[0:] %}{% endfor %}{{ ns.x }}",
        "{% include 'default' %}",
        "{% extends 'default' %}",
    ];
    let doubled = format!("{{% set x = [1] %}}{}{{{{ x ~ '' }}}}", "{% set x = [x, x] %}".repeat(60));
    for bomb in bombs.into_iter().chain([doubled.as_str()]) {
        let start = Instant::now();
        let result = ChatTemplate::from_source(bomb)
            .and_then(|template| template.render(&[Message::new("user", "x")], &RenderOptions::default()));
        match result {
            Err(error) => assert!(!error.to_string().contains('\n'), "{bomb}: {error}"),
            Ok(text) => assert!(text.len() < 100 << 20, "{bomb}: {} bytes", text.len()),
        }
        println!("{:?} {bomb}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(5), "{bomb}");
    }
}

#[test]
fn templates_nested_beyond_measure() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{% if true %}", "{% endif %}"), ("-", "1"), ("not ", "1"), ("{'a':", "}")]
    {
        let body = format!("{}{}", open.repeat(20_000), close.repeat(20_000));
        let source = if open.starts_with("{%") { body } else { format!("{{{{ {body} }}}}") };
        if let Ok(template) = ChatTemplate::from_source(&source) {
            let _ = template.render(&[], &RenderOptions::default());
        }
    }
    // Chains, for each link of which the parser goes one call deeper.
    for (start, link) in [("", "-"), ("2", "**1"), ("a", "()"), ("a", ".b"), ("a", "[0]")] {
        let source = format!("{{{{ {start}{}1 }}}}", link.repeat(50_000));
        assert!(ChatTemplate::from_source(&source).is_err());
    }
    // Deep values are built, printed and dropped without recursion that grows with them.
    for print in ["", "{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.y }}", "{{ ns.x | string | length }}"] {
        let source = format!(
            "{{% set ns = namespace(x=[], y=[]) %}}{{% for i in range(90000) %}}{{% set ns.x = [ns.x] %}}\
             {{% set ns.y = [ns.y] %}}{{% endfor %}}{print}"
        );
        let _ = ChatTemplate::from_source(&source).unwrap().render(&[], &RenderOptions::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_template(source in "(\\{[{%#]|[}%#]\\}|[a-z]{1,3}|if|for|in|set|end|generation|['\"().,|=~+-]|\\PC| |\n){0,40}") {
        if let Ok(template) = ChatTemplate::from_source(&source) {
            let _ = template.render(&[Message::new("user", "x")], &RenderOptions::default());
        }
    }

    #[test]
    fn any_vocabulary(
        tokens in prop::collection::vec("[ab<>0x▁Ġ ]{0,4}|<0x[0-9A-F]{2}>|\\PC{0,2}", 0..20),
        merges in prop::collection::vec("[abĠ ]{0,5}", 0..4),
        types in prop::collection::vec(0i64..7, 0..20),
        scores in prop::collection::vec(-3f32..3.0, 0..20),
        id in 0u64..20,
        byte_level in any::<bool>(),
    ) {
        let metadata = metadata([
            ("model", Value::String(if byte_level { "gpt2" } else { "llama" }.into())),
            ("pre", Value::String("llama-bpe".into())),
            ("token_type", Value::Ints(types.into_iter().chain(std::iter::repeat(1)).take(tokens.len()).collect())),
            ("scores", Value::Floats(scores.into_iter().chain(std::iter::repeat(0.0)).take(tokens.len()).collect())),
            ("tokens", Value::Strings(tokens)),
            ("merges", Value::Strings(merges)),
            ("eos_token_id", Value::Uint(id)),
        ]);
        if let Ok(tokenizer) = Tokenizer::from_metadata(&metadata) {
            for text in ["", "ab ab", "  aab<ab>日", "<0x0A>", "▁Ġ"] {
                let tokens = tokenizer.encode(text, true).unwrap();
                prop_assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
                tokenizer.decode(&tokens);
            }
        }
    }
}
