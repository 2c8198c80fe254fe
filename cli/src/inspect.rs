//! `forerun inspect`: what a model file holds and what it would take in memory.

use std::collections::{BTreeMap, HashMap};

use forerun::model::{MatrixInfo, MemoryPlan, Model, ModelOptions, Source, TensorInfo};
use forerun::session::{context_length, memory_plan};
use forerun::text::{ChatTemplate, Tokenizer};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::failure::Outcome;
use crate::format::{bytes, count, large, table, things};
use crate::{load, output};

/// What a storage binding may span on every WebGPU device, in bytes.
const DEFAULT_BINDING: u64 = 128 << 20;

/// All that is shown, and what `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a str,
    file_bytes: u64,
    name: Option<&'a str>,
    architecture: &'static str,
    /// All that the file holds, with the head even where it repeats the embedding.
    parameters: u64,
    /// Those of them that a head of its own has.
    head_parameters: u64,
    n_layers: usize,
    dim: usize,
    hidden_dim: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    max_seq_len: usize,
    qkv_bias: bool,
    tied_head: bool,
    tokenizer: TokenizerReport<'a>,
    chat_template: bool,
    tensors: Vec<TensorReport<'a>>,
    matrices: Vec<MatrixReport>,
    memory: MemoryReport,
}

#[derive(Serialize)]
struct TokenizerReport<'a> {
    kind: &'a str,
    pre: Option<&'a str>,
    tokens: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    end_tokens: &'a [u32],
}

#[derive(Serialize)]
struct TensorReport<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    /// As in the file: the fastest dimension first.
    shape: &'a [u64],
    bytes: u64,
}

#[derive(Serialize)]
struct MatrixReport {
    name: &'static str,
    layer: usize,
    rows: usize,
    cols: usize,
    format: &'static str,
    bytes: u64,
}

/// Everything in bytes, but for the context, in tokens.
#[derive(Serialize)]
struct MemoryReport {
    context: usize,
    weights: u64,
    weights_q4: u64,
    weights_q4_min: u64,
    weights_q8: u64,
    vectors: u64,
    cache: u64,
    scratch: u64,
    total: u64,
    largest_matrix: u64,
}

impl From<MemoryPlan> for MemoryReport {
    fn from(plan: MemoryPlan) -> Self {
        MemoryReport {
            context: plan.context,
            weights: plan.total() - plan.cache - plan.scratch,
            weights_q4: plan.weights_q4,
            weights_q4_min: plan.weights_q4_min,
            weights_q8: plan.weights_q8,
            vectors: plan.vectors,
            cache: plan.cache,
            scratch: plan.scratch,
            total: plan.total(),
            largest_matrix: plan.largest_matrix,
        }
    }
}

/// Shows the file.
pub fn inspect(args: &InspectArgs) -> Outcome {
    let source = load::open(&args.model)?;
    let model = pollster::block_on(Model::open(&source, &ModelOptions::default()))
        .map_err(|error| load::about(&args.model, error))?;
    let tokenizer = Tokenizer::from_metadata(&model.metadata).map_err(|error| load::about(&args.model, error))?;
    let template = ChatTemplate::from_metadata(&model.metadata).map_err(|error| load::about(&args.model, error))?;
    let config = &model.config;
    let context = context_length(config, args.context)?;
    let report = Report {
        file: source.name(),
        file_bytes: source.len(),
        name: model.metadata.string("general.name"),
        architecture: config.architecture.name(),
        parameters: model.tensors().iter().map(TensorInfo::elements).fold(0, u64::saturating_add),
        head_parameters: if config.tied_head { 0 } else { (config.vocab_size * config.dim) as u64 },
        n_layers: config.n_layers,
        dim: config.dim,
        hidden_dim: config.hidden_dim,
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        vocab_size: config.vocab_size,
        max_seq_len: config.max_seq_len,
        qkv_bias: config.qkv_bias,
        tied_head: config.tied_head,
        tokenizer: TokenizerReport {
            kind: match model.metadata.string("tokenizer.ggml.model") {
                Some("gpt2") => "byte-level BPE",
                Some("llama") => "SentencePiece",
                other => other.unwrap_or("unknown"),
            },
            pre: model.metadata.string("tokenizer.ggml.pre"),
            tokens: tokenizer.vocab_size(),
            bos: tokenizer.bos(),
            eos: tokenizer.eos(),
            end_tokens: tokenizer.end_tokens(),
        },
        chat_template: template.is_some(),
        tensors: model.tensors().iter().map(tensor_report).collect(),
        matrices: model.matrices().iter().map(matrix_report).collect(),
        memory: memory_plan(&model, context, DEFAULT_BINDING).into(),
    };
    if args.json { output::print_json(&report) } else { output::print(&describe(&report, &tokenizer, args.tensors)) }
}

fn tensor_report(tensor: &TensorInfo) -> TensorReport<'_> {
    TensorReport { name: &tensor.name, ty: tensor.ty.name(), shape: &tensor.shape, bytes: tensor.bytes }
}

fn matrix_report(matrix: &MatrixInfo) -> MatrixReport {
    MatrixReport {
        name: matrix.kind.name(),
        layer: matrix.layer,
        rows: matrix.n_rows,
        cols: matrix.n_cols,
        format: matrix.format.name(),
        bytes: matrix.bytes(),
    }
}

/// The report for people.
fn describe(report: &Report<'_>, tokenizer: &Tokenizer, every_tensor: bool) -> String {
    let size = |n: usize| count(n as u64);
    let token = |id: Option<u32>| id.map_or("none".into(), |id| printable(&tokenizer.piece(id)));
    let ends: Vec<String> = report.tokenizer.end_tokens.iter().map(|&id| token(Some(id))).collect();
    let mut facts = vec![("file", format!("{}, {}", report.file, bytes(report.file_bytes)))];
    facts.extend(report.name.map(|name| ("name", printable(name))));
    facts.extend([
        ("architecture", format!("{}, {} parameters", report.architecture, large(report.parameters))),
        ("layers", size(report.n_layers)),
        ("width", format!("{}, feed-forward {}", size(report.dim), size(report.hidden_dim))),
        (
            "heads",
            format!("{} of width {}, {} key-value", report.n_heads, size(report.head_dim), report.n_kv_heads)
                + if report.qkv_bias { ", with biases" } else { "" },
        ),
        (
            "head",
            match report.parameters.saturating_sub(report.head_parameters) {
                _ if report.tied_head => "the embedding's table".into(),
                others => format!("a table of its own; without it the model has {} parameters", large(others)),
            },
        ),
        ("context", format!("at most {}", things(report.max_seq_len, "token"))),
        (
            "tokenizer",
            format!("{}, {}", report.tokenizer.kind, things(report.tokenizer.tokens, "token"))
                + &report.tokenizer.pre.map_or(String::new(), |pre| format!(", pre-tokenizer {}", printable(pre))),
        ),
        ("begin, end", format!("{}, {}", token(report.tokenizer.bos), ends.join(" "))),
        ("chat template", if report.chat_template { "yes" } else { "no: run it with --raw" }.into()),
    ]);
    let mut text = table(&facts.into_iter().map(|(name, fact)| vec![name.into(), fact]).collect::<Vec<_>>(), &[]);

    text += &format!("\n{} in the file\n", things(report.tensors.len(), "tensor"));
    text += &tensors(&report.tensors, every_tensor);
    text += "\nWeights while it runs\n";
    text += &matrices(&report.matrices);
    text += &format!("\nMemory for a context of {}\n", things(report.memory.context, "token"));
    text + &memory(&report.memory)
}

/// What stands in a file is untrusted: no control characters on a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(200).collect()
}

fn shape(shape: &[u64]) -> String {
    shape.iter().map(|&n| count(n)).collect::<Vec<_>>().join(" × ")
}

/// A line a tensor, or a line for all tensors that differ in their layer's number alone.
fn tensors(tensors: &[TensorReport<'_>], every: bool) -> String {
    grouped(tensors.iter().map(|tensor| {
        let name = if every { tensor.name.to_owned() } else { without_layer(tensor.name) };
        (printable(&name), tensor.ty, shape(tensor.shape), tensor.bytes)
    }))
}

/// `blk.7.attn_q.weight` as `blk.*.attn_q.weight`.
fn without_layer(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

/// A line for all matrices of a kind that are held alike.
fn matrices(matrices: &[MatrixReport]) -> String {
    grouped(matrices.iter().map(|matrix| {
        (matrix.name.to_owned(), matrix.format, shape(&[matrix.cols as u64, matrix.rows as u64]), matrix.bytes)
    }))
}

/// A table of what has a name, a type, a shape and a size, with one line for those that have the first three in common
/// and lines of one name together.
fn grouped(parts: impl Iterator<Item = (String, &'static str, String, u64)>) -> String {
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut groups: BTreeMap<(usize, &str, String), (String, u64, usize)> = BTreeMap::new();
    for (name, ty, shape, size) in parts {
        let next = names.len();
        let place = *names.entry(name.clone()).or_insert(next);
        let (_, bytes, n) = groups.entry((place, ty, shape)).or_insert((name, 0, 0));
        *bytes = bytes.saturating_add(size);
        *n += 1;
    }
    let rows = groups.into_iter().map(|((_, ty, shape), (name, size, n))| {
        let times = if n == 1 { String::new() } else { format!("{n} ×") };
        vec![name, ty.into(), times, shape, bytes(size)]
    });
    table(&rows.collect::<Vec<_>>(), &[2, 4])
}

fn memory(memory: &MemoryReport) -> String {
    let parts = [
        ("8-bit", memory.weights_q8),
        ("4-bit", memory.weights_q4),
        ("4-bit with minimum", memory.weights_q4_min),
        ("norms and biases", memory.vectors),
    ];
    let parts = parts.iter().filter(|(_, size)| *size > 0);
    let parts: Vec<String> = parts.map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
    let a_token = bytes(memory.cache / memory.context.max(1) as u64);
    let row = |name: &str, size: u64, note: String| vec![name.into(), bytes(size), note];
    let rows = [
        row("weights", memory.weights, parts.join(", ")),
        row("cache", memory.cache, format!("{a_token} a token")),
        row("scratch", memory.scratch, String::new()),
        row("total", memory.total, format!("largest matrix {}", bytes(memory.largest_matrix))),
    ];
    table(&rows, &[1])
}
