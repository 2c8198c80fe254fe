//! The program as a user meets it: what it prints where, and how it exits.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{GgufWriter, TinyModel};
use serde_json::{Value, json};

/// What a command left behind.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// It failed with `code`, in one sentence that holds `words`, and without a word on stdout.
    #[track_caller]
    fn failed(&self, code: i32, words: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("forerun: ") && self.stderr.ends_with('\n'), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(words), "no `{words}` in {self:?}");
    }

    #[track_caller]
    fn succeeded(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }

    /// The one JSON object on stdout.
    #[track_caller]
    fn json(&self) -> Value {
        let text = self.succeeded();
        assert_eq!(text.lines().count(), 1, "{self:?}");
        serde_json::from_str(text).expect("stdout is JSON")
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    command.env_remove("FORERUN_MODELS").current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.env("FORERUN_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

fn run_with(command: &mut Command, args: &[&str], stdin: &[u8]) -> Ran {
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // A command that fails early does not read its input.
    let _ = child.stdin.take().expect("stdin is a pipe").write_all(stdin);
    let output = child.wait_with_output().expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn run(args: &[&str]) -> Ran {
    run_with(&mut command(), args, b"")
}

/// Writes a file for one test and gives its path.
fn file(name: &str, bytes: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the file can be written");
    path.to_str().expect("the path is UTF-8").to_owned()
}

fn tiny(name: &str) -> String {
    file(name, &TinyModel::default().build())
}

/// A tiny model with a chat template of the simplest kind.
fn chatty(name: &str, template: &str) -> String {
    let mut writer: GgufWriter = TinyModel::default().writer();
    writer.key("tokenizer.chat_template", template);
    file(name, &writer.finish())
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn help_and_version() {
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["chat", "-h"],
        &["inspect", "--help"],
        &["perplexity", "--help"],
        &["generate-workload", "--help"],
        &["replay", "--help"],
        &["agreement", "--help"],
    ] {
        let ran = run(args);
        assert!(ran.succeeded().contains("Example"), "{ran:?}");
        assert_eq!(ran.stderr, "");
    }
    assert!(run(&["--version"]).succeeded().starts_with("forerun "));
    let ran = run(&[]);
    assert_eq!((ran.code, &ran.stdout[..]), (Some(2), ""));
    assert!(ran.stderr.contains("Usage") && ran.stderr.ends_with("no command was given: choose one of those above\n"));
}

#[test]
fn bad_input_is_told_in_one_sentence() {
    let model = tiny("bad-input.gguf");
    let model = &model[..];
    let text = file("bad-input.txt", b"some text");
    let binary = file("bad-input.bin", b"\xff\xfe\x00");
    let empty = file("bad-input.empty", b"");
    let folder = env!("CARGO_TARGET_TMPDIR");
    let cases: &[(&[&str], &str)] = &[
        (&["dance"], "dance"),
        (&["run", model], "--prompt"),
        (&["run", model, "-p", "x", "--mode", "fast"], "greedy, loop"),
        (&["run", model, "-p", "x", "--max-tokens", "0"], "from 1 on"),
        (&["run", model, "-p", "x", "--max-tokens", "many"], "from 1 on"),
        (&["run", model, "-p", "x", "--raw", "--system", "y"], "--system"),
        (&["run", model, "-p", "x", "--bogus"], "--bogus"),
        (&["run", model, "-p", "x", "--temperature", "-1"], "from 0.01 to 100"),
        (&["run", model, "-p", "x", "--top-p", "nan"], "top_p is NaN"),
        (&["run", model, "-p", "x", "--logit-bias", "7"], "42=-1.5"),
        (&["run", model, "-p", "x", "--raw", "--backend", "cpu", "--logit-bias", "7000=1"], "outside the vocabulary"),
        (&["run", "no-such-model", "-p", "x"], "no model no-such-model"),
        (&["run", "./no-such.gguf", "-p", "x"], "no file ./no-such.gguf"),
        (&["run", "smollm2-135m", "-p", "x"], "./x model smollm2-135m"),
        (&["inspect", "qwen2.5-0.5b.gguf"], "./x model qwen2.5-0.5b`"),
        (&["run", "https://example.org/model.gguf", "-p", "x"], "download"),
        (&["run", folder, "-p", "x"], "folder"),
        (&["run", &text, "-p", "x", "--backend", "cpu"], "not a GGUF file"),
        (&["run", model, "-p", "x", "--raw", "--backend", "cpu", "--context", "257"], "257"),
        (&["run", model, "-p", "x", "--raw", "--backend", "cpu", "--context", "1"], "2 to 256"),
        (&["run", model, "-p", "", "--raw", "--backend", "cpu"], "empty"),
        (&["run", model, "-p", "a long one", "--raw", "--backend", "cpu", "--context", "4"], "shorten"),
        (&["run", model, "-p", "x", "--backend", "cpu"], "--raw"),
        (&["chat", model, "--backend", "cpu"], "chat template"),
        (&["inspect", "no-such-model"], "no-such-model"),
        (&["inspect", &text], "not a GGUF file"),
        (&["inspect", model, "--context", "1000000"], "1000000"),
        (&["perplexity", model, "no-such.txt"], "no-such.txt"),
        (&["perplexity", model, &binary], "UTF-8"),
        (&["perplexity", model, &empty], "empty"),
        (&["perplexity", model, &text, "--backend", "cpu", "--max-tokens", "1"], "1 token"),
        (&["generate-workload", model, "no-such.jsonl", "-o", &empty], "no-such.jsonl"),
        (&["generate-workload", model, &text, "-o", &empty], "line 1"),
        (&["generate-workload", model, "-o", &empty], "PROMPTS"),
        (&["generate-workload", model, &empty, &empty], "--output"),
        (&["replay", "no-such.jsonl"], "no-such.jsonl"),
        (&["replay", &text], "line 1"),
        (&["replay", &empty], "generate-workload"),
    ];
    for (args, words) in cases {
        run(args).failed(2, words);
    }
    let from_stdin = ["run", model, "-p", "-", "--backend", "cpu"];
    run_with(&mut command(), &from_stdin, b"\xff").failed(2, "not UTF-8");
    run_with(&mut command(), &from_stdin, &vec![b'x'; (16 << 20) + 1]).failed(2, "longer than 16.0 MiB");
}

#[test]
fn damaged_and_foreign_files_are_bad_input() {
    let whole = TinyModel::default().build();
    for n in [0, 3, 20, 500, whole.len() / 2, whole.len() - 1] {
        let path = file(&format!("truncated-{n}.gguf"), &whole[..n]);
        let words = &path[..];
        run(&["inspect", &path]).failed(2, words);
        run(&["run", &path, "-p", "x", "--raw", "--backend", "cpu"]).failed(2, words);
    }
    let mut foreign = TinyModel::default().writer();
    foreign.key("general.architecture", "mamba");
    run(&["inspect", &file("foreign.gguf", &foreign.finish())]).failed(2, "mamba");
    let broken = chatty("broken-template.gguf", "{% if %}");
    run(&["inspect", &broken]).failed(2, "template");
    // A name with line breaks and colours must not reach the terminal as they are.
    let mut loud = TinyModel::default().writer();
    loud.key("general.name", "a\n\x1b[31mb");
    let ran = run(&["inspect", &file("loud.gguf", &loud.finish())]);
    assert!(!ran.succeeded().contains('\x1b'), "{ran:?}");
}

#[test]
fn inspect_shows_what_a_file_holds() {
    let path = tiny("inspect.gguf");
    let ran = run(&["inspect", &path]);
    for words in
        ["llama", "byte-level BPE", "288 tokens", "blk.*.attn_q.weight", "qkv_proj", "q8", "256 tokens", "total"]
    {
        assert!(ran.succeeded().contains(words), "no `{words}` in {}", ran.stdout);
    }
    assert_eq!(ran.stderr, "");
    assert!(run(&["inspect", &path, "--tensors"]).succeeded().contains("blk.1.attn_q.weight"));

    let shown = run(&["inspect", &path, "--context", "64", "--json"]).json();
    assert_eq!(shown["architecture"], "llama");
    assert_eq!(shown["chat_template"], false);
    assert_eq!(shown["tokenizer"]["tokens"], 288);
    assert_eq!(keys(&shown["tensors"][0]), ["name", "type", "shape", "bytes"]);
    assert_eq!(shown["tensors"].as_array().map(Vec::len), Some(2 + 2 * 9));
    assert_eq!(shown["matrices"].as_array().map(Vec::len), Some(1 + 2 * 4));
    let memory = &shown["memory"];
    let size = |key: &str| memory[key].as_u64().expect("a size");
    assert_eq!(size("context"), 64);
    // Two layers of keys and values, 64 positions of 2 heads of 16, 2 bytes each.
    assert_eq!(size("cache"), 2 * 2 * 64 * 32 * 2);
    assert_eq!(size("total"), size("weights") + size("cache") + size("scratch"));
    let matrices = shown["matrices"].as_array().expect("a list").iter();
    let held: u64 = matrices.map(|matrix| matrix["bytes"].as_u64().expect("a size")).sum();
    assert_eq!(size("weights"), held + size("vectors"));

    // A head of its own has parameters of its own, which the number in a model's name often leaves out.
    let own_head = file("inspect-head.gguf", &TinyModel { tied_head: false, ..TinyModel::default() }.build());
    let with_head = run(&["inspect", &own_head, "--json"]).json();
    let number = |report: &Value, key: &str| report[key].as_u64().expect("a number");
    assert_eq!((number(&shown, "head_parameters"), number(&with_head, "head_parameters")), (0, 288 * 64));
    assert_eq!(number(&with_head, "parameters"), number(&shown, "parameters") + 288 * 64);
    let sentence = format!("without it the model has {:.1} K parameters", number(&shown, "parameters") as f64 / 1e3);
    assert!(run(&["inspect", &own_head]).succeeded().contains(&sentence));
}

#[test]
fn models_have_names() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("shelf");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    std::fs::write(folder.join("tiny-named.gguf"), TinyModel::default().build()).expect("a file can be written");
    let named = |args: &[&str]| run_with(command().env("FORERUN_MODELS", &folder), args, b"");
    named(&["inspect", "tiny-named"]).succeeded();
    named(&["inspect", "tiny-named.gguf"]).succeeded();
    named(&["inspect", "tiny-nmaed"]).failed(2, "tiny-named");
}

const REPORT: [&str; 17] = [
    "text",
    "tokens",
    "prompt_tokens",
    "finish_reason",
    "backend",
    "adapter",
    "mode",
    "steps",
    "n_drafted",
    "n_accepted",
    "tokens_per_step",
    "steps_by_width",
    "step_ms",
    "window",
    "dispatches_per_step",
    "ttft_ms",
    "decode_ms_per_token",
];

#[test]
fn run_answers_on_the_cpu() {
    let path = tiny("run.gguf");
    let args = ["run", &path, "-p", "Hello", "--raw", "--max-tokens", "12", "--backend", "cpu"];
    let ran = run(&[&args[..], &["--json"]].concat());
    let report = ran.json();
    assert_eq!(ran.stderr, "");
    assert_eq!(keys(&report), REPORT);
    assert_eq!(report["backend"], "cpu");
    assert_eq!(report["adapter"], Value::Null);
    assert_eq!(report["prompt_tokens"], 5);
    let n = report["tokens"].as_array().expect("a list").len();
    assert!((1..=12).contains(&n));
    assert_eq!(report["finish_reason"], if n == 12 { "length" } else { "stop" });

    // The same text, streamed, with the statistics beside it.
    let streamed = run(&args);
    let text = report["text"].as_str().expect("a text");
    assert_eq!(streamed.succeeded().trim_end_matches('\n'), text.trim_end_matches('\n'));
    assert_eq!(streamed.stderr.lines().count(), 1);
    assert!(streamed.stderr.contains("tokens/s") && streamed.stderr.contains("CPU"), "{streamed:?}");

    // A memory that could not be kept is refused before the answer.
    run(&[&args[..], &["--memory", "."]].concat()).failed(2, "no file");
    run(&[&args[..], &["--memory", "no-such-folder/memory"]].concat()).failed(2, "give a file");

    // A prompt from stdin is the same prompt, without its line break.
    let mut args = args;
    args[3] = "-";
    assert_eq!(run_with(&mut command(), &args, b"Hello\n").stdout, streamed.stdout);
}

#[test]
fn run_answers_on_the_gpu() {
    let path = tiny("run-gpu.gguf");
    let answer = |more: &[&str]| {
        let args = ["run", &path, "-p", "Hello there", "--raw", "--max-tokens", "16", "--json"];
        run(&[&args[..], more].concat()).json()
    };
    let report = answer(&[]);
    assert_eq!(keys(&report), REPORT);
    assert_eq!((&report["backend"], &report["mode"]), (&"gpu".into(), &"adaptive".into()));
    assert!(report["adapter"].is_string());
    let n = report["tokens"].as_array().expect("a list").len();
    assert!((1..=n as u64).contains(&report["steps"].as_u64().expect("a number")));
    // Only a program that plays a GPU is spoken of, beside the answer and not beside JSON.
    let ran = run(&["run", &path, "-p", "Hello there", "--raw", "--max-tokens", "2"]);
    let is_software = report["adapter"].as_str().expect("a name").starts_with("llvmpipe");
    assert_eq!(ran.stderr.contains("note: llvmpipe") && ran.stderr.contains("--backend cpu"), is_software, "{ran:?}");
    for more in [
        &["--mode", "greedy"][..],
        &["--mode", "tree4"],
        &["--fusion", "all"],
        &["--fusion", "none", "--limits", "default"],
    ] {
        let other = answer(more);
        assert_eq!(other["tokens"], report["tokens"], "{more:?}");
        assert_eq!(other["text"], report["text"], "{more:?}");
    }
}

#[test]
fn what_was_timed_is_kept() {
    let model = tiny("timed.gguf");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("timed");
    let _ = std::fs::remove_dir_all(&folder);
    let answer = |more: &[&str]| {
        let args = [&["run", &model, "--raw", "-p", "hello", "--max-tokens", "4", "--json"][..], more].concat();
        run_with(command().env("FORERUN_CACHE", &folder), &args, b"").json()
    };
    let plain = answer(&[]);
    assert_eq!((&plain["step_ms"], &plain["window"]), (&Value::Null, &Value::Null), "a program is not timed unasked");
    let timed = answer(&["--recalibrate"]);
    assert_eq!(timed["tokens"], plain["tokens"]);
    assert!(timed["step_ms"][0].as_f64().is_some_and(|ms| ms > 0.0), "{timed}");
    let kept = std::fs::read(folder.join("calibrations.jsonl")).expect("the calibration was kept");
    let again = answer(&[]);
    assert_eq!((&again["window"], &again["tokens"]), (&timed["window"], &plain["tokens"]));
    // Whatever becomes of the file, the next run answers.
    std::fs::write(folder.join("calibrations.jsonl"), &kept[..kept.len() / 2]).unwrap();
    assert_eq!(answer(&[])["window"], Value::Null);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, b"no folder").unwrap();
    assert_eq!(answer(&["--recalibrate"])["tokens"], plain["tokens"]);
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn agreement_compares_every_way() {
    let path = chatty("agreement.gguf", TEMPLATE);
    let prompt = r#"{"task":"t","id":"one","messages":[{"role":"user","content":"a b a b a b a"}]}"#;
    let prompts = file("agreement.jsonl", format!("{prompt}\n{}\n", prompt.replace("one", "two")).as_bytes());
    let args = ["agreement", &path, &prompts, "--max-tokens", "12"];
    let ran = run(&[&args[..], &["--temperature", "0.8", "--seeds", "2", "--vary"]].concat());
    let lines: Vec<&str> = ran.succeeded().lines().collect();
    assert_eq!(lines.len(), 16, "{ran:?}");
    assert!(lines.iter().all(|line| line.contains("6 of 6 answers the same")), "{ran:?}");
    let only = run(&[&args[..], &["--limit", "1", "--only", "tree4", "--only", "greedy, auto"]].concat());
    assert_eq!(only.succeeded().lines().count(), 2, "{only:?}");
    run(&[&args[..], &["--only", "nothing"]].concat()).failed(2, "greedy, none; loop, none");
    run(&[&args[..], &["--temperature", "-1"]].concat()).failed(2, "temperature");
}

#[test]
fn run_tells_log_probabilities() {
    let path = tiny("run-logprobs.gguf");
    let answer = |more: &[&str]| {
        let args = ["run", &path, "-p", "Hello there", "--raw", "--max-tokens", "12", "--json", "--logprobs", "2"];
        run(&[&args[..], more].concat()).json()
    };
    let report = answer(&[]);
    let told = report["logprobs"].as_array().expect("a list");
    let ids: Vec<&Value> = told.iter().map(|told| &told["id"]).collect();
    assert_eq!(ids, report["tokens"].as_array().expect("a list").iter().collect::<Vec<_>>());
    for told in told {
        assert_eq!(keys(told), ["token", "id", "logprob", "top"]);
        let top = told["top"].as_array().expect("a list");
        assert_eq!((top.len(), &top[0]["id"], &top[0]["logprob"]), (2, &told["id"], &told["logprob"]));
        assert!(told["logprob"].as_f64().expect("a number") < 0.0 && told["token"].is_string());
    }
    assert_eq!(answer(&["--mode", "tree8"])["logprobs"], report["logprobs"]);
    assert_eq!(answer(&["--backend", "cpu"])["logprobs"].as_array().map(Vec::len), Some(told.len()));
    for (args, why) in [
        (&["run", &path, "-p", "x", "--json", "--logprobs", "21"][..], "at most 20"),
        (&["run", &path, "-p", "x", "--logprobs", "2"], "--json"),
    ] {
        run(args).failed(2, why);
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let path = tiny("pipe.gguf");
    for args in [
        &["inspect", &path, "--json"][..],
        &["run", &path, "-p", "Hello", "--raw", "--backend", "cpu"],
        &["run", &path, "-p", "Hello", "--raw", "--backend", "cpu", "--json"],
    ] {
        let mut child = command()
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the program ends");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn what_is_far_too_long_is_refused_at_once() {
    let path = chatty("long.gguf", TEMPLATE);
    let prompt = "qwerty hello ".repeat(400_000);
    run_with(&mut command(), &["run", &path, "-p", "-", "--backend", "cpu"], prompt.as_bytes()).failed(2, "context");
    run_with(&mut command(), &["chat", &path, "--backend", "cpu"], prompt.as_bytes()).failed(2, "1 MiB");
}

#[cfg(unix)]
fn pipe(name: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_file(&path);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[cfg(unix)]
#[test]
fn a_pipe_is_a_text_but_no_model() {
    let path = pipe("model-pipe");
    run(&["inspect", &path]).failed(2, "no file that can be read");
    let (model, text) = (tiny("pipe-text.gguf"), pipe("text-pipe"));
    let score = |bytes: Vec<u8>| {
        let to = text.clone();
        // Whoever refuses a text stops reading it.
        let writer = std::thread::spawn(move || drop(std::fs::write(to, bytes)));
        let ran = run(&["perplexity", &model, &text, "--backend", "cpu"]);
        writer.join().expect("the writer ends");
        ran
    };
    assert!(score(b"The quick brown fox".to_vec()).succeeded().contains("18 tokens"));
    score(vec![b'x'; (64 << 20) + (1 << 20)]).failed(2, "longer than 64.0 MiB");
}

#[test]
fn chat_reads_lines() {
    let path = chatty("chat.gguf", TEMPLATE);
    let args = ["chat", &path, "--backend", "cpu", "--max-tokens", "4"];
    let talk = |lines: &str| run_with(&mut command(), &args, lines.as_bytes());

    let once = talk("Hi\n");
    assert!(!once.succeeded().is_empty());
    assert_eq!(once.stderr, "");
    // Forgotten is forgotten, blank lines say nothing, and nothing is read behind /exit.
    assert_eq!(talk("Hi\n/clear\n\nHi").succeeded(), once.stdout.repeat(2));
    assert_eq!(talk("Hi\n/exit\nHi\n").succeeded(), once.stdout);
    assert!(talk("/help\n").stderr.contains("/clear"));
    assert!(talk("/hlep\n").stderr.contains("no /hlep"));
    assert_eq!(talk("").succeeded(), "");
}

#[test]
fn chat_makes_room() {
    let path = chatty("chat-room.gguf", TEMPLATE);
    let args = ["chat", &path, "--backend", "cpu", "--max-tokens", "4", "--context", "32"];
    let talk = |lines: &str| run_with(&mut command(), &args, lines.as_bytes());

    let ran = talk("Hello there\nHello again\n");
    ran.succeeded();
    assert!(ran.stderr.contains("oldest turn") && ran.stderr.lines().count() == 1, "{ran:?}");
    // One message that is too long is told, and the next is answered.
    let ran = talk(&format!("{}\nHello there\n", "x".repeat(40)));
    assert!(ran.stderr.contains("this one holds 32") && ran.stderr.lines().count() == 1, "{ran:?}");
    assert_eq!(ran.succeeded(), talk("Hello there\n").succeeded());
}

#[test]
fn perplexity_scores_every_token_but_the_first() {
    let path = tiny("perplexity.gguf");
    let text = "The quick brown fox jumps over the lazy dog, again and again.";
    let book = file("perplexity.txt", text.as_bytes());
    let score = |more: &[&str]| {
        let args = ["perplexity", &path, &book, "--backend", "cpu", "--json"];
        run(&[&args[..], more].concat()).json()
    };
    let list = |report: &Value, key: &str| report[key].as_array().expect("a list").clone();
    let numbers = |report: &Value, key: &str| -> Vec<f64> {
        list(report, key).iter().map(|number| number.as_f64().expect("a number")).collect()
    };

    let whole = score(&[]);
    let n = text.len() - 1;
    assert_eq!(whole["tokens"], n);
    assert_eq!((list(&whole, "ids").len(), list(&whole, "top1").len()), (n + 1, n));
    let nll = numbers(&whole, "nll");
    assert_eq!(nll.len(), n);
    let mean = nll.iter().sum::<f64>() / n as f64;
    let perplexity = whole["perplexity"].as_f64().expect("a number");
    assert!((mean.exp() / perplexity - 1.0).abs() < 1e-9);
    // A random model knows nothing: about as bad as guessing among 288 tokens.
    assert!((100.0..2000.0).contains(&perplexity), "{perplexity}");

    // In windows, the first one's tokens are scored alike and none is left out.
    let windows = score(&["--context", "16"]);
    assert_eq!(windows["tokens"], n);
    assert_eq!(numbers(&windows, "nll")[..15], nll[..15]);
    assert_ne!(numbers(&windows, "nll")[15..], nll[15..]);
    assert_eq!(score(&["--max-tokens", "10"])["tokens"], 9);

    let ran = run(&["perplexity", &path, &book, "--backend", "cpu"]);
    assert!(ran.succeeded().starts_with("perplexity ") && ran.stdout.contains("60 tokens"), "{ran:?}");
}

/// Lines of a prompts file: `n` prompts of each of the tasks `a` and `b`.
fn prompts(n: usize) -> String {
    let names = (0..n).flat_map(|i| [("a", i), ("b", i)]);
    let line = |(task, i)| {
        let content = format!("Hello {i} there");
        json!({"task": task, "id": format!("{task}-{i}"), "messages": [{"role": "user", "content": content}]})
    };
    names.map(|name| line(name).to_string() + "\n").collect()
}

fn lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn workloads_are_recorded_and_go_on() {
    let model = chatty("workload.gguf", TEMPLATE);
    let wanted = file("workload.jsonl", prompts(3).as_bytes());
    let out = file("workload-out.jsonl", b"");
    let generate = |more: &[&str]| {
        let args = ["generate-workload", &model, &wanted, "-o", &out, "--backend", "cpu", "--max-tokens", "12"];
        run(&[&args[..], more].concat())
    };
    assert_eq!(generate(&["--limit", "1"]).succeeded(), "");
    let first = lines(&out);
    assert_eq!(first.len(), 2);
    assert_eq!(keys(&first[0]), ["task", "id", "prompt", "output", "decode_ms"]);
    let tokens = |line: &Value, key: &str| line[key].as_array().expect("tokens").len();
    assert!(tokens(&first[0], "prompt") > 5 && (1..=12).contains(&tokens(&first[0], "output")));

    // A run that was broken off leaves the beginning of a line.
    let torn = std::fs::read_to_string(&out).expect("the file is there") + "{\"task\":\"a\",\"id";
    file("workload-out.jsonl", torn.as_bytes());
    let ran = generate(&[]);
    assert!(ran.stderr.contains("6 answers") && ran.stderr.contains("4 of them new"), "{ran:?}");
    let all = lines(&out);
    assert_eq!(all[..2], first);
    let ids: Vec<&Value> = all.iter().map(|line| &line["id"]).collect();
    assert_eq!(ids, ["a-0", "b-0", "a-1", "b-1", "a-2", "b-2"]);
    assert!(generate(&[]).stderr.contains("0 of them new"));
    assert_eq!(lines(&out), all);

    generate(&["--context", "4"]).succeeded();
    let twice = file("workload-twice.jsonl", (prompts(1) + &prompts(1)).as_bytes());
    let fresh = file("workload-fresh.jsonl", b"");
    let args = ["generate-workload", &model, &twice, "-o", &fresh, "--backend", "cpu"];
    run(&args).failed(2, "two prompts have the id a-0");
    let args = ["generate-workload", &model, &wanted, "-o", &fresh, "--backend", "cpu", "--context", "4"];
    run(&args).failed(2, "a-0: ");
    let args = ["generate-workload", &model, &wanted, "-o", &wanted, "--backend", "cpu"];
    run(&args).failed(2, "holds the prompts");
    // Nor are prompts, even where they look like the beginning of an answer.
    let one = prompts(1).lines().next().expect("a prompt").to_owned();
    let copy = file("workload-copy.jsonl", one.as_bytes());
    run(&["generate-workload", &model, &wanted, "-o", &copy, "--backend", "cpu"]).failed(2, "something else");
    assert_eq!(std::fs::read(&copy).expect("the file is there"), one.as_bytes());
    // A last answer that only lost its line break is kept.
    let whole = std::fs::read_to_string(&out).expect("the file is there");
    file("workload-out.jsonl", whole.trim_end().as_bytes());
    assert!(generate(&[]).stderr.contains("0 of them new"));
    assert_eq!(std::fs::read_to_string(&out).expect("the file is there"), whole);
    if cfg!(unix) {
        run(&["generate-workload", &model, &wanted, "-o", "/dev/zero", "--backend", "cpu"]).failed(2, "no file");
    }
    // What is no recording is not overwritten.
    let notes = file("workload-notes.txt", b"a note without a line break");
    run(&["generate-workload", &model, &wanted, "-o", &notes, "--backend", "cpu"]).failed(2, "something else");
    assert_eq!(std::fs::read(&notes).expect("the file is there"), b"a note without a line break");
}

#[test]
fn replays_count_tokens_a_step() {
    let line = |task: &str, id: &str, prompt: &[u32], output: &[u32]| {
        json!({"task": task, "id": id, "prompt": prompt, "output": output}).to_string() + "\n"
    };
    // The first answer copies its prompt, the second repeats the first, the third holds nothing known.
    let text: Vec<u32> = (10..40).collect();
    let prompt = [&[1], &text[..], &[2]].concat();
    let copied = line("copy", "1", &prompt, &text) + &line("again", "2", &[3], &text);
    let unknown = line("new", "3", &[4], &(100..130).collect::<Vec<u32>>());
    let path = file("replay.jsonl", (copied + &unknown).as_bytes());
    let plot = file("replay.svg", b"");

    let report = run(&["replay", &path, "--json", "--plot", &plot]).json();
    assert_eq!(keys(&report), ["answers", "tokens", "drafters", "memory_sizes"]);
    assert_eq!((&report["answers"], &report["tokens"]), (&json!(3), &json!(87)));
    let drafters = report["drafters"].as_array().expect("a list");
    assert_eq!(drafters.len(), 8);
    for drafter in drafters {
        assert_eq!(keys(drafter), ["name", "nodes", "memory", "tokens_per_step", "tasks"]);
        let task = |i: usize| drafter["tasks"][i]["tokens_per_step"].as_f64().expect("a number");
        // Copying gives a step all its chain and the token behind.
        assert!(task(0) >= 7.0, "{drafter}");
        assert_eq!(task(1) > 7.0, drafter["memory"] != 0, "{drafter}");
        assert_eq!(task(2), 1.0, "{drafter}");
    }
    let sizes = report["memory_sizes"].as_array().expect("a list");
    let number = |i: usize| sizes[i]["tokens_per_step"].as_f64().expect("a number");
    assert!(sizes.len() == 9 && sizes[0]["memory"] == 0 && sizes[8]["memory"].is_null() && number(8) > number(0));
    let drawing = std::fs::read_to_string(&plot).expect("the plot is there");
    assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n") && !drawing.contains("NaN"));

    let ran = run(&["replay", &path]);
    for words in ["prompt lookup 8", "suffix tree 16", "context mixing 32", "all tasks", "64K"] {
        assert!(ran.succeeded().contains(words), "no `{words}` in {}", ran.stdout);
    }
    assert_eq!(ran.stderr, "");
    run(&["replay", &path, "--plot", "no-such-folder/plot.svg"]).failed(2, "no-such-folder");
}
