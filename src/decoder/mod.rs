//! The decoding loop on the GPU: weights, cache, steps and windows of steps.

pub mod calibrate;
pub mod control;
pub mod controller;
pub mod forward;
pub mod memory;
mod probe;
pub mod request;
pub mod sampler;
pub mod step;
mod timing;
#[cfg(test)]
mod twins;
pub mod weights;
pub mod window;

pub use forward::{Fusion, Outcome};
pub use request::{Finish, Generated, Mode, OnTokens, Request, TokenLogprobs};
pub use sampler::SamplingOptions;
pub use weights::Weights;
pub use window::{FusionChoice, GpuDecoder};
