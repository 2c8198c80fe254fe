//! Twin of the `silu_quantize` kernel: `act = silu(gate) * up`, in 8 bits.

use super::numbers::{exp, reciprocal};
use super::quantize::Quantized;
use super::simd;
use crate::model::BLOCK;

/// `gate / (1 + exp(-gate)) * up`, quantised: `[n_tokens, hidden_dim]` from `gate_up`, `[n_tokens, 2 * hidden_dim]`
/// with a token's gates in front of its ups.
pub fn silu_quantize(gate_up: &[f32], hidden_dim: usize) -> Quantized {
    simd::dispatch(
        #[inline(always)]
        || {
            let mut out = Quantized::with_capacity(gate_up.len() / (2 * hidden_dim).max(1), hidden_dim);
            for gate_up in gate_up.chunks_exact(2 * hidden_dim) {
                let (gate, up) = gate_up.split_at(hidden_dim);
                for (gate, up) in gate.as_chunks::<BLOCK>().0.iter().zip(up.as_chunks::<BLOCK>().0) {
                    let mut act = [0.0; BLOCK];
                    for ((act, gate), up) in act.iter_mut().zip(gate).zip(up) {
                        *act = gate * reciprocal(1.0 + exp((-gate).min(80.0))) * up;
                    }
                    out.push_block(&act);
                }
            }
            out
        },
    )
}
