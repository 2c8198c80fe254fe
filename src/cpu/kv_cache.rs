//! Keys and values of the tokens seen so far, for one layer.

/// The keys and values of one layer, as 16-bit floats.
#[derive(Debug, Clone, PartialEq)]
pub struct KvCache {
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Slots per head.
    pub max_seq_len: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Keys after the rotary embedding, f16 bits, `[n_kv_heads, max_seq_len, head_dim]`.
    pub k: Vec<u16>,
    /// Values, f16 bits, `[n_kv_heads, max_seq_len, head_dim]`.
    pub v: Vec<u16>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(n_kv_heads: usize, max_seq_len: usize, head_dim: usize) -> KvCache {
        let len = n_kv_heads * max_seq_len * head_dim;
        KvCache { n_kv_heads, max_seq_len, head_dim, k: vec![0; len], v: vec![0; len] }
    }

    /// Where the row of a head and slot lies in `k` and in `v`.
    #[inline(always)]
    pub fn row(&self, kv_head: usize, slot: usize) -> std::ops::Range<usize> {
        let start = (kv_head * self.max_seq_len + slot) * self.head_dim;
        start..start + self.head_dim
    }

    /// Copies the key and the value at slot `from` to slot `to`, for every head.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        for kv_head in 0..self.n_kv_heads {
            let (from, to) = (self.row(kv_head, from), self.row(kv_head, to).start);
            self.k.copy_within(from.clone(), to);
            self.v.copy_within(from, to);
        }
    }
}
