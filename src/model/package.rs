//! A model file as a whole: what it holds, in which formats its matrices will be held, and the way its weights stream
//! from the file to wherever they are used.
//!
//! Matrices that are multiplied with the same activations are one matrix here (q, k and v; gate and up), and the rows
//! of q and k are put so that the rotary embedding's pairs are adjacent, whatever order the file has.

use std::collections::{HashMap, HashSet};

use super::blocks::{BLOCK, Blocks, Format};
use super::config::{Config, RopePairs, TensorFacts};
use super::ggml::GgmlType;
use super::gguf::{Gguf, TensorInfo};
use super::metadata::Metadata;
use super::source::Source;
use crate::{Error, Result};

/// The staging buffer that [`Model::stream`] is meant to be given, in bytes.
pub const STAGING: usize = 16 << 20;

/// A matrix of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatrixKind {
    /// The embedding table, `[vocab_size, dim]`; the head too where it is tied.
    EmbedTokens,
    /// Query, key and value projections, one below the other: `[qkv_dim, dim]`.
    QkvProj,
    /// The output projection of attention, `[dim, q_dim]`.
    OProj,
    /// Gate and up projections, one below the other: `[2 * hidden_dim, dim]`.
    GateUpProj,
    /// The down projection, `[dim, hidden_dim]`.
    DownProj,
    /// The head, `[vocab_size, dim]`; there is none where it is tied.
    LmHead,
}

impl MatrixKind {
    /// Every kind, in the order of the forward pass.
    pub const ALL: [MatrixKind; 6] = [
        MatrixKind::EmbedTokens,
        MatrixKind::QkvProj,
        MatrixKind::OProj,
        MatrixKind::GateUpProj,
        MatrixKind::DownProj,
        MatrixKind::LmHead,
    ];

    /// Its name, such as `qkv_proj`.
    pub fn name(self) -> &'static str {
        match self {
            MatrixKind::EmbedTokens => "embed_tokens",
            MatrixKind::QkvProj => "qkv_proj",
            MatrixKind::OProj => "o_proj",
            MatrixKind::GateUpProj => "gate_up_proj",
            MatrixKind::DownProj => "down_proj",
            MatrixKind::LmHead => "lm_head",
        }
    }
}

/// A vector of a model, held in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VectorKind {
    /// Weight of the norm in front of attention, `[dim]`.
    AttnNorm,
    /// Weight of the norm in front of the feed-forward layer, `[dim]`.
    MlpNorm,
    /// Weight of the norm in front of the head, `[dim]`.
    Norm,
    /// Bias of q, k and v, `[qkv_dim]`, in the order of the rows of [`MatrixKind::QkvProj`].
    QkvBias,
}

impl VectorKind {
    /// Its name, such as `attn_norm`.
    pub fn name(self) -> &'static str {
        match self {
            VectorKind::AttnNorm => "attn_norm",
            VectorKind::MlpNorm => "mlp_norm",
            VectorKind::Norm => "norm",
            VectorKind::QkvBias => "qkv_bias",
        }
    }
}

/// A matrix of a model and how it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixInfo {
    /// Which matrix.
    pub kind: MatrixKind,
    /// Of which layer; 0 for the two outside the layers.
    pub layer: usize,
    /// Rows: the matrix's outputs.
    pub n_rows: usize,
    /// Columns: the matrix's inputs, a multiple of 32.
    pub n_cols: usize,
    /// How its weights are held.
    pub format: Format,
}

impl MatrixInfo {
    /// Bytes of its codes and scales.
    pub fn bytes(&self) -> u64 {
        self.format.bytes(self.n_rows as u64 * (self.n_cols / BLOCK) as u64)
    }
}

/// A set of matrices, to be held in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wide(u8);

impl Wide {
    /// No matrix.
    pub const NONE: Wide = Wide(0);
    /// Every matrix.
    pub const ALL: Wide = Wide(0x3f);
    /// Embedding and head, which lose most in 4 bits.
    pub const OUTER: Wide = Wide::NONE.with(MatrixKind::EmbedTokens).with(MatrixKind::LmHead);

    /// The set with `kind` in it.
    pub const fn with(self, kind: MatrixKind) -> Wide {
        Wide(self.0 | 1 << kind as u8)
    }

    /// Whether `kind` is in the set.
    pub fn contains(self, kind: MatrixKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

impl Default for Wide {
    fn default() -> Self {
        Wide::OUTER
    }
}

impl std::str::FromStr for Wide {
    type Err = Error;

    /// `none`, `all`, or names of matrices with commas between them.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => return Ok(Wide::NONE),
            "all" => return Ok(Wide::ALL),
            _ => {}
        }
        text.split(',').try_fold(Wide::NONE, |wide, name| {
            let kind = MatrixKind::ALL.into_iter().find(|kind| kind.name() == name.trim()).ok_or_else(|| {
                let names = MatrixKind::ALL.map(MatrixKind::name).join(", ");
                Error::BadInput(format!("there is no matrix `{name}`: give none, all, or some of {names}"))
            })?;
            Ok(wide.with(kind))
        })
    }
}

/// How a model's weights are to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelOptions {
    /// The matrices held in 8 bits, unless the file has them in 4 bits already (Q4_0, Q4_1): those map exactly.
    pub wide: Wide,
    /// Whether tensors that the file holds as Q8_0, which map exactly, stay in 8 bits outside `wide` too.
    pub keep_q8: bool,
    /// The 4-bit format for tensors that must be re-blocked and have no minimum in the file (Q5_0, Q6_K, Q8_0, F16,
    /// BF16, F32). Those with one (Q5_1, Q4_K, Q5_K) always get [`Format::Q4Min`].
    pub narrow: Format,
}

impl Default for ModelOptions {
    /// Embedding and head in 8 bits, layers in 4 with minimum, which loses less than without.
    fn default() -> Self {
        Self { wide: Wide::default(), keep_q8: true, narrow: Format::Q4Min }
    }
}

/// Where the weights of a model go.
#[allow(async_fn_in_trait)]
pub trait WeightSink {
    /// Takes a whole vector.
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()>;

    /// Takes a slab of whole rows, `first_row` and following, of `matrix`.
    ///
    /// Slabs of one matrix come in any order and never overlap; `first_row` is even, so that a slab's scales start at a
    /// whole word, `first_row * n_cols / 32 / 2` (or without the half, with minimums).
    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()>;

    /// Hears how far the reading is.
    fn progress(&mut self, bytes_read: u64, bytes_total: u64) {
        let _ = (bytes_read, bytes_total);
    }
}

/// A model file whose header has been read and checked.
#[derive(Debug, Clone)]
pub struct Model {
    /// The model's shape.
    pub config: Config,
    /// The file's metadata, tokenizer included.
    pub metadata: Metadata,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    tensors: Vec<TensorInfo>,
    matrices: Vec<MatrixInfo>,
    /// Which tensor goes where, in the order of the file.
    parts: Vec<Part>,
}

/// A tensor of the file and where it goes.
#[derive(Debug, Clone)]
struct Part {
    tensor: usize,
    place: Place,
    /// The row of the whole (or the element of a vector) at which this part starts.
    first: usize,
    /// The head's width if pairs of rows stand half a head apart in the file and must come to be adjacent.
    split_heads: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Matrix(usize),
    Vector { kind: VectorKind, layer: usize, len: usize },
}

impl Part {
    /// The row of the file's tensor that becomes row `row` of this part.
    fn source_row(&self, row: usize) -> usize {
        match self.split_heads {
            None => row,
            Some(head_dim) => {
                let (head, i) = (row / head_dim, row % head_dim);
                head * head_dim + i / 2 + (i % 2) * (head_dim / 2)
            }
        }
    }
}

impl Model {
    /// Reads and checks the header of `source`, and plans how each matrix is held.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] when the file is damaged or lacks a tensor, [`Error::Unsupported`] when the model does not
    /// run here, [`Error::Io`] when reading fails.
    pub async fn open<S: Source>(source: &S, options: &ModelOptions) -> Result<Model> {
        if options.narrow == Format::Q8 {
            return Err(Error::BadInput("the narrow format has 4 bits: give q4 or q4_min".into()));
        }
        let gguf = Gguf::read(source).await?;
        let facts = TensorFacts {
            vocab_size: match gguf.tensor("token_embd.weight").map(|tensor| &tensor.shape[..]) {
                Some(&[_, n, ..]) => usize::try_from(n).unwrap_or(usize::MAX),
                Some(_) => 1,
                None => return Err(absent("token_embd.weight", "[embedding_length, vocab_size]")),
            },
            qkv_bias: gguf.tensor("blk.0.attn_q.bias").is_some(),
            tied_head: gguf.tensor("output.weight").is_none(),
            rope_factors: rope_factors(source, &gguf).await?,
        };
        let config = Config::from_metadata(&gguf.metadata, facts)?;
        let mut planner = Planner::new(&gguf.tensors, *options);
        planner.plan(&config)?;
        let Planner { mut parts, matrices, .. } = planner;
        parts.sort_by_key(|part| gguf.tensors[part.tensor].offset);
        let file_bytes = source.len();
        Ok(Model { config, metadata: gguf.metadata, file_bytes, tensors: gguf.tensors, matrices, parts })
    }

    /// Every matrix, in the order of the forward pass.
    pub fn matrices(&self) -> &[MatrixInfo] {
        &self.matrices
    }

    /// One matrix, if the model has it.
    pub fn matrix(&self, kind: MatrixKind, layer: usize) -> Option<&MatrixInfo> {
        self.matrices.iter().find(|matrix| matrix.kind == kind && matrix.layer == layer)
    }

    /// The tensors of the file, in the order of its header.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Reads every weight, in the order of the file, and hands it to `sink`.
    ///
    /// At most `staging` bytes are read at a time and held beside the slab that is handed over; [`STAGING`] is a good
    /// value.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] naming the tensor when a weight or a scale is not a finite number, [`Error::BadInput`]
    /// when `staging` is too small for two rows or one head, and whatever the source or the sink fails with.
    pub async fn stream<S: Source, W: WeightSink>(&self, source: &S, staging: usize, sink: &mut W) -> Result<()> {
        let bytes_total = self.parts.iter().map(|part| self.tensors[part.tensor].bytes).sum();
        let mut bytes_read = 0;
        let mut window = Window::new(source, staging, self.extents());
        // Vectors made of several tensors wait here for the rest of them: values so far, and how many are filled.
        let mut unfinished: HashMap<(VectorKind, usize), (Vec<f32>, usize)> = HashMap::new();
        sink.progress(0, bytes_total);
        for part in &self.parts {
            let tensor = &self.tensors[part.tensor];
            match part.place {
                Place::Vector { kind, layer, len } => {
                    let bytes = window.get(tensor, tensor.offset, tensor.bytes).await?;
                    let mut values = vec![0.0; tensor.elements() as usize];
                    if !tensor.ty.dequantize(bytes, &mut values) || !values.iter().all(|value| value.is_finite()) {
                        return Err(not_finite(tensor, None));
                    }
                    bytes_read += tensor.bytes;
                    let (whole, filled) = unfinished.entry((kind, layer)).or_insert_with(|| (vec![0.0; len], 0));
                    for (i, slot) in whole[part.first..][..values.len()].iter_mut().enumerate() {
                        *slot = values[part.source_row(i)];
                    }
                    *filled += values.len();
                    if *filled == len
                        && let Some((whole, _)) = unfinished.remove(&(kind, layer))
                    {
                        sink.vector(kind, layer, whole).await?;
                    }
                    sink.progress(bytes_read, bytes_total);
                }
                Place::Matrix(index) => {
                    let matrix = &self.matrices[index];
                    let n_rows = tensor.shape.get(1).copied().unwrap_or(1) as usize;
                    let row_bytes = tensor.bytes / n_rows as u64;
                    // Slabs are smaller than the staging buffer, so that reading and converting hold little at once.
                    let granule = part.split_heads.unwrap_or(2);
                    let slab = (staging as u64 / 4 / row_bytes / granule as u64).max(1) as usize * granule;
                    for first in (0..n_rows).step_by(slab) {
                        let n = slab.min(n_rows - first);
                        let start = tensor.offset + first as u64 * row_bytes;
                        let bytes = window.get(tensor, start, n as u64 * row_bytes).await?;
                        let rows = Blocks::from_ggml(matrix.format, tensor.ty, bytes, n, matrix.n_cols, |row| {
                            part.source_row(row)
                        })
                        .map_err(|bad| not_finite(tensor, Some(first + part.source_row(bad.row))))?;
                        bytes_read += n as u64 * row_bytes;
                        sink.rows(matrix, part.first + first, rows).await?;
                        sink.progress(bytes_read, bytes_total);
                    }
                }
            }
        }
        Ok(())
    }

    /// The stretches of the file that hold needed tensors; small gaps between them are read along.
    fn extents(&self) -> Vec<(u64, u64)> {
        const SMALL_GAP: u64 = 64 << 10;
        let mut extents: Vec<(u64, u64)> = Vec::new();
        for part in &self.parts {
            let tensor = &self.tensors[part.tensor];
            let end = tensor.offset + tensor.bytes;
            match extents.last_mut() {
                Some(last) if tensor.offset <= last.1 + SMALL_GAP => last.1 = end,
                _ => extents.push((tensor.offset, end)),
            }
        }
        extents
    }
}

/// A stretch of the file in memory, which moves forward.
struct Window<'a, S> {
    source: &'a S,
    staging: usize,
    extents: Vec<(u64, u64)>,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a, S: Source> Window<'a, S> {
    fn new(source: &'a S, staging: usize, extents: Vec<(u64, u64)>) -> Self {
        Self { source, staging, extents, start: 0, bytes: Vec::new() }
    }

    /// The `len` bytes of the file at `offset`, which belong to `tensor`.
    async fn get(&mut self, tensor: &TensorInfo, offset: u64, len: u64) -> Result<&[u8]> {
        if len > self.staging as u64 {
            return Err(Error::BadInput(format!(
                "the staging buffer of {} bytes is too small for tensor `{}`: give at least {len} bytes",
                self.staging, tensor.name
            )));
        }
        let have = self.start..self.start + self.bytes.len() as u64;
        if offset < have.start || offset + len > have.end {
            if have.contains(&offset) {
                self.bytes.drain(..(offset - have.start) as usize);
            } else {
                self.bytes.clear();
            }
            self.start = offset;
            let limit = self
                .extents
                .iter()
                .find(|extent| (extent.0..extent.1).contains(&offset))
                .map_or(offset + len, |extent| extent.1);
            let kept = self.bytes.len();
            let end = limit.min(offset + self.staging as u64);
            self.bytes.resize((end - offset) as usize, 0);
            self.source.read(offset + kept as u64, &mut self.bytes[kept..]).await?;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from..from + len as usize])
    }
}

/// Finds every tensor that a model of some shape needs.
struct Planner<'a> {
    tensors: &'a [TensorInfo],
    by_name: HashMap<&'a str, usize>,
    used: HashSet<usize>,
    options: ModelOptions,
    parts: Vec<Part>,
    matrices: Vec<MatrixInfo>,
}

impl<'a> Planner<'a> {
    fn new(tensors: &'a [TensorInfo], options: ModelOptions) -> Self {
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.as_str(), i)).collect();
        Self { tensors, by_name, used: HashSet::new(), options, parts: Vec::new(), matrices: Vec::new() }
    }

    fn plan(&mut self, config: &Config) -> Result<()> {
        let (dim, hidden_dim, vocab_size) = (config.dim, config.hidden_dim, config.vocab_size);
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let split = match config.rope_pairs {
            RopePairs::Adjacent => None,
            RopePairs::Halves => Some(config.head_dim),
        };
        self.matrix(MatrixKind::EmbedTokens, 0, dim, &[("token_embd.weight", vocab_size, None)])?;
        for layer in 0..config.n_layers {
            let name = |name: &str| format!("blk.{layer}.{name}");
            self.vector(VectorKind::AttnNorm, layer, &[(&name("attn_norm.weight"), dim, None)])?;
            self.matrix(
                MatrixKind::QkvProj,
                layer,
                dim,
                &[
                    (&name("attn_q.weight"), q_dim, split),
                    (&name("attn_k.weight"), kv_dim, split),
                    (&name("attn_v.weight"), kv_dim, None),
                ],
            )?;
            if config.qkv_bias {
                self.vector(
                    VectorKind::QkvBias,
                    layer,
                    &[
                        (&name("attn_q.bias"), q_dim, split),
                        (&name("attn_k.bias"), kv_dim, split),
                        (&name("attn_v.bias"), kv_dim, None),
                    ],
                )?;
            }
            self.matrix(MatrixKind::OProj, layer, q_dim, &[(&name("attn_output.weight"), dim, None)])?;
            self.vector(VectorKind::MlpNorm, layer, &[(&name("ffn_norm.weight"), dim, None)])?;
            self.matrix(
                MatrixKind::GateUpProj,
                layer,
                dim,
                &[(&name("ffn_gate.weight"), hidden_dim, None), (&name("ffn_up.weight"), hidden_dim, None)],
            )?;
            self.matrix(MatrixKind::DownProj, layer, hidden_dim, &[(&name("ffn_down.weight"), dim, None)])?;
        }
        self.vector(VectorKind::Norm, 0, &[("output_norm.weight", dim, None)])?;
        if !config.tied_head {
            self.matrix(MatrixKind::LmHead, 0, dim, &[("output.weight", vocab_size, None)])?;
        }

        // A tensor that nothing here multiplies with means that the model computes something else.
        let known = |name: &str| name == ROPE_FACTORS || name.ends_with(".attn_rot_embd.weight");
        match self.tensors.iter().enumerate().find(|(i, tensor)| !self.used.contains(i) && !known(&tensor.name)) {
            None => Ok(()),
            Some((_, tensor)) => Err(Error::Unsupported(format!(
                "tensor `{}` has no place in a model of this architecture as it runs here: choose another model",
                tensor.name
            ))),
        }
    }

    fn matrix(
        &mut self,
        kind: MatrixKind,
        layer: usize,
        n_cols: usize,
        of: &[(&str, usize, Option<usize>)],
    ) -> Result<()> {
        let index = self.matrices.len();
        let mut n_rows = 0;
        let mut types = Vec::with_capacity(of.len());
        for &(name, rows, split_heads) in of {
            let tensor = self.find(name, &[n_cols, rows])?;
            types.push(self.tensors[tensor].ty);
            self.parts.push(Part { tensor, place: Place::Matrix(index), first: n_rows, split_heads });
            n_rows += rows;
        }
        let format = format_for(kind, &types, &self.options);
        self.matrices.push(MatrixInfo { kind, layer, n_rows, n_cols, format });
        Ok(())
    }

    fn vector(&mut self, kind: VectorKind, layer: usize, of: &[(&str, usize, Option<usize>)]) -> Result<()> {
        let len = of.iter().map(|part| part.1).sum();
        let mut first = 0;
        for &(name, n, split_heads) in of {
            let tensor = self.find(name, &[n])?;
            self.parts.push(Part { tensor, place: Place::Vector { kind, layer, len }, first, split_heads });
            first += n;
        }
        Ok(())
    }

    /// The index of the tensor called `name`, which must have the shape `expected` (and any dimensions of 1 behind).
    fn find(&mut self, name: &str, expected: &[usize]) -> Result<usize> {
        let Some(&index) = self.by_name.get(name) else {
            return Err(absent(name, &format!("{expected:?}")));
        };
        let tensor = &self.tensors[index];
        let fits = tensor.shape.len() >= expected.len()
            && tensor.shape.iter().enumerate().all(|(i, &n)| n == expected.get(i).map_or(1, |&n| n as u64));
        if !fits {
            return Err(Error::ModelFormat(format!(
                "tensor `{name}` has the shape {:?} where the metadata ask for {expected:?}: download or convert the \
                 model again",
                tensor.shape
            )));
        }
        if !tensor.ty.is_readable() {
            return Err(Error::Unsupported(format!(
                "tensor `{name}` is of type {}, which does not run here: choose a file of {}",
                tensor.ty.name(),
                GgmlType::READABLE
            )));
        }
        self.used.insert(index);
        Ok(index)
    }
}

/// The format of a matrix made of tensors of these types: the widest that one of them needs.
fn format_for(kind: MatrixKind, types: &[GgmlType], options: &ModelOptions) -> Format {
    let narrow = types.iter().map(|ty| match ty {
        GgmlType::Q4_0 => Format::Q4,
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => Format::Q4Min,
        GgmlType::Q8_0 if options.keep_q8 => Format::Q8,
        _ => options.narrow,
    });
    let narrow = narrow.max().unwrap_or(options.narrow);
    if options.wide.contains(kind) && !types.iter().all(|&ty| narrow.holds_exactly(ty)) { Format::Q8 } else { narrow }
}

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The divisors of the rotary frequencies, where the file has them.
async fn rope_factors<S: Source>(source: &S, gguf: &Gguf) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = gguf.tensor(ROPE_FACTORS) else { return Ok(None) };
    if tensor.ty != GgmlType::F32 || tensor.bytes > 4096 {
        return Err(Error::Unsupported(format!(
            "tensor `{ROPE_FACTORS}` of type {} and shape {:?} is no table of rotary factors: choose another model",
            tensor.ty.name(),
            tensor.shape
        )));
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    source.read(tensor.offset, &mut bytes).await?;
    Ok(Some(bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()))
}

fn absent(name: &str, shape: &str) -> Error {
    Error::ModelFormat(format!("the model file has no tensor `{name}` of shape {shape}: download or convert it again"))
}

fn not_finite(tensor: &TensorInfo, row: Option<usize>) -> Error {
    let place = row.map(|row| format!(" in row {row}")).unwrap_or_default();
    Error::ModelFormat(format!(
        "tensor `{}` holds a number{place} that is not finite: download or convert the model again",
        tensor.name
    ))
}
