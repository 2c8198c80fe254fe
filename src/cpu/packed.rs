//! Weights packed for the CPU: 16 rows side by side, so that one vector instruction serves 16 rows.

use super::matmul::lanes;
use super::quantize::Quantized;
use super::simd::{self, Activations, GROUP, Group, Line};
use crate::model::{BLOCK, Blocks, Format};
use crate::parallel;

/// Bytes of codes that one piece of work reads: enough to outweigh handing it to a thread.
const WORK_BYTES: usize = 32 << 10;

/// Accumulators that stay in a core's first cache.
const MAX_ACCUMULATORS: usize = 256;

/// A matrix in blocks, with 16 rows side by side in each line.
#[derive(Debug, Clone)]
pub struct PackedBlocks {
    format: Format,
    n_rows: usize,
    n_cols: usize,
    /// Codes, `[n_groups, n_blocks, code_words]`.
    codes: Vec<Line>,
    /// Scales, `[n_groups, n_blocks]`.
    scales: Vec<[u16; GROUP]>,
    /// Minima, `[n_groups, n_blocks]`, or none.
    minima: Vec<[u16; GROUP]>,
}

/// What is added to the codes of a format as they are packed: see [`Group`].
fn offset(format: Format) -> u32 {
    if format == Format::Q8 { 0x8080_8080 } else { 0 }
}

impl PackedBlocks {
    /// A matrix whose rows are to be set: until then they are zero. `n_cols` is a multiple of 32.
    pub fn new(format: Format, n_rows: usize, n_cols: usize) -> PackedBlocks {
        let n = n_rows.div_ceil(GROUP) * (n_cols / BLOCK);
        PackedBlocks {
            format,
            n_rows,
            n_cols,
            codes: vec![Line([offset(format); GROUP]); n * format.code_words()],
            scales: vec![[0; GROUP]; n],
            minima: vec![[0; GROUP]; if format == Format::Q4Min { n } else { 0 }],
        }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements in a row.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The rows' format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Sets the rows from `first_row` on. Answers false, and changes nothing, where `rows` has another format or
    /// width or does not fit.
    #[must_use]
    pub fn set_rows(&mut self, first_row: usize, rows: &Blocks) -> bool {
        let (n_blocks, words) = (self.n_cols / BLOCK, self.format.code_words());
        let n = rows.n_rows * n_blocks;
        if rows.format != self.format
            || rows.n_cols != self.n_cols
            || first_row.checked_add(rows.n_rows).is_none_or(|end| end > self.n_rows)
            || rows.codes.len() < n * words
            || rows.scales.len() < self.format.scale_words(n)
        {
            return false;
        }
        let offset = offset(self.format);
        for r in 0..rows.n_rows {
            let (group, row) = ((first_row + r) / GROUP, (first_row + r) % GROUP);
            for b in 0..n_blocks {
                let (from, to) = (r * n_blocks + b, group * n_blocks + b);
                for w in 0..words {
                    self.codes[to * words + w].0[row] = rows.codes[from * words + w] ^ offset;
                }
                if self.format == Format::Q4Min {
                    self.scales[to][row] = rows.scales[from] as u16;
                    self.minima[to][row] = (rows.scales[from] >> 16) as u16;
                } else {
                    self.scales[to][row] = (rows.scales[from / 2] >> (16 * (from % 2))) as u16;
                }
            }
        }
        true
    }

    /// The rows that `rows` names, unpacked, in this order. Rows beyond the last count as the last.
    pub fn rows(&self, rows: &[u32]) -> Blocks {
        let (n_blocks, words) = (self.n_cols / BLOCK, self.format.code_words());
        let n = rows.len() * n_blocks;
        let mut out = Blocks {
            format: self.format,
            n_rows: rows.len(),
            n_cols: self.n_cols,
            codes: Vec::with_capacity(n * words),
            scales: vec![0; self.format.scale_words(n)],
        };
        for (r, &row) in rows.iter().enumerate() {
            let row = (row as usize).min(self.n_rows.saturating_sub(1));
            let (group, row) = (row / GROUP, row % GROUP);
            for b in 0..n_blocks {
                let (from, to) = (group * n_blocks + b, r * n_blocks + b);
                let lines = &self.codes[from * words..(from + 1) * words];
                out.codes.extend(lines.iter().map(|line| line.0[row] ^ offset(self.format)));
                let scale = u32::from(self.scales[from][row]);
                if self.format == Format::Q4Min {
                    out.scales[to] = scale | u32::from(self.minima[from][row]) << 16;
                } else {
                    out.scales[to / 2] |= scale << (16 * (to % 2));
                }
            }
        }
        out
    }

    /// The product of [`super::matmul()`], bit for bit: `[n_tokens, n_rows]` from `x`, `[n_tokens, n_cols]`.
    pub fn matmul(&self, x: &Quantized) -> Vec<f32> {
        let (n_blocks, n_tokens) = (self.n_cols / BLOCK, x.n_rows());
        if n_blocks == 0 || n_tokens == 0 {
            return vec![0.0; n_tokens * self.n_rows];
        }
        let words = self.format.code_words();
        let tiles = tiles(x, MAX_ACCUMULATORS / lanes(n_blocks));
        // Grouped as it is computed: `[n_groups, n_tokens]` vectors over the rows.
        let mut grouped = vec![[0.0f32; GROUP]; self.n_rows.div_ceil(GROUP) * n_tokens];
        let groups_per_work = (WORK_BYTES / (n_blocks * words * size_of::<Line>())).max(1);
        parallel::for_each_chunk(&mut grouped, groups_per_work * n_tokens, |i, out| {
            let mut acc = Vec::new();
            for (g, mut out) in out.chunks_exact_mut(n_tokens).enumerate() {
                let blocks = (i * groups_per_work + g) * n_blocks..(i * groups_per_work + g + 1) * n_blocks;
                let group = Group {
                    format: self.format,
                    codes: &self.codes[blocks.start * words..blocks.end * words],
                    scales: &self.scales[blocks.clone()],
                    minima: self.minima.get(blocks).unwrap_or_default(),
                };
                for tile in &tiles {
                    let (now, later) = out.split_at_mut(tile.len() / n_blocks);
                    product(group, tile, &mut acc, now);
                    out = later;
                }
            }
        });
        ungroup(&grouped, n_tokens, self.n_rows)
    }
}

/// The products of one group with the tokens of a tile: `out` is `[n_tokens]` vectors over the rows.
fn product(group: Group<'_>, tile: &[Activations], acc: &mut Vec<[f32; GROUP]>, out: &mut [[f32; GROUP]]) {
    let n_tokens = out.len();
    let lanes = lanes(group.scales.len());
    acc.clear();
    acc.resize(lanes * n_tokens, [0.0; GROUP]);
    simd::accumulate(group, tile, n_tokens, acc);
    simd::dispatch(
        #[inline(always)]
        || match lanes {
            8 => sum_lanes::<8>(acc, out),
            16 => sum_lanes::<16>(acc, out),
            _ => sum_lanes::<32>(acc, out),
        },
    );
}

/// The tree over the lanes, for each token and row.
#[inline(always)]
fn sum_lanes<const LANES: usize>(acc: &[[f32; GROUP]], out: &mut [[f32; GROUP]]) {
    let n_tokens = out.len();
    for (t, out) in out.iter_mut().enumerate() {
        // The tree of `tree_sum`, on vectors over the rows.
        let mut sums = [[0.0; GROUP]; LANES];
        for (lane, sums) in sums.iter_mut().enumerate() {
            *sums = acc[lane * n_tokens + t];
        }
        let mut stride = 1;
        while stride < LANES {
            for i in (0..LANES).step_by(2 * stride) {
                let other = sums[i + stride];
                for (sum, other) in sums[i].iter_mut().zip(other) {
                    *sum += other;
                }
            }
            stride *= 2;
        }
        *out = sums[0];
    }
}

/// The activations in tiles of at most `max_tokens` tokens, each `[n_blocks, n_tokens]`: the order in which they
/// are read.
fn tiles(x: &Quantized, max_tokens: usize) -> Vec<Vec<Activations>> {
    let (n_blocks, n_tokens) = (x.n_cols / BLOCK, x.n_rows());
    let codes = x.codes.as_chunks::<8>().0;
    (0..n_tokens)
        .step_by(max_tokens)
        .map(|first| {
            let tokens = first..(first + max_tokens).min(n_tokens);
            let mut tile = Vec::with_capacity(n_blocks * tokens.len());
            for b in 0..n_blocks {
                for t in tokens.clone() {
                    let [scale, sum] = x.scales[t * n_blocks + b];
                    tile.push(Activations { codes: codes[t * n_blocks + b], scale, sum });
                }
            }
            tile
        })
        .collect()
}

/// `[n_tokens, n_rows]` from `[n_groups, n_tokens]` vectors of rows.
fn ungroup(grouped: &[[f32; GROUP]], n_tokens: usize, n_rows: usize) -> Vec<f32> {
    let mut y = vec![0.0; n_tokens * n_rows];
    let tokens_per_work = (WORK_BYTES / size_of::<f32>() / n_rows.max(1)).max(1);
    parallel::for_each_chunk(&mut y, tokens_per_work * n_rows, |i, y| {
        for (t, y) in y.chunks_exact_mut(n_rows).enumerate() {
            for (y, group) in y.chunks_mut(GROUP).zip(grouped.chunks_exact(n_tokens)) {
                y.copy_from_slice(&group[i * tokens_per_work + t][..y.len()]);
            }
        }
    });
    y
}
