//! The kernels' CPU twins, and the backend that runs a model with them.
//!
//! Each kernel of `kernels/` that computes one operation has a function of the same name here, in plain Rust, that
//! adds in the same order (`kernels/README.md` has the table); a kernel that fuses several is tested against several.
//! The twins explain the kernels, and [`CpuModel`] runs a whole model where no GPU is to be had.
//!
//! A GPU that fuses `fma` has the twins' bits, since division, roots and `exp` are written out on both sides (see
//! [`numbers`]). On the CPU nothing differs either: every instruction set, every number of threads and every split of
//! the tokens into passes gives the same bits.

pub mod accept;
pub mod argmax;
pub mod attention;
pub mod draft;
pub mod embed;
mod generate;
pub mod kv_cache;
pub mod logprobs;
pub mod matmul;
pub mod merge;
mod model;
pub mod norm_quantize;
pub mod numbers;
pub mod packed;
pub mod penalize;
pub mod quantize;
pub mod rope_cache;
pub mod sample;
pub mod silu_quantize;
pub mod simd;
pub mod threshold;
pub mod tree;
mod weights;

pub use accept::accept;
pub use argmax::argmax;
pub use attention::{Partials, attention};
pub use embed::embed;
pub use kv_cache::KvCache;
pub use logprobs::logprobs;
pub use matmul::{add_bias, add_residual, lanes, matmul};
pub use merge::{merge, merge_quantize};
pub use model::{CpuModel, LogitsOf, Pass};
pub use norm_quantize::norm_quantize;
pub use packed::PackedBlocks;
pub use penalize::penalize;
pub use quantize::{Quantized, quantize};
pub use rope_cache::{rope_cache, rope_table};
pub use sample::{choose, sample};
pub use silu_quantize::silu_quantize;
pub use threshold::threshold;
pub use tree::{MAX_NODES, Tree};
pub use weights::CpuWeights;
