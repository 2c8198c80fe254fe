//! Forerun runs language models on the GPU through WebGPU, in a page or natively.
//!
//! The whole decoding loop lives on the GPU: the CPU submits windows of steps and reads a few bytes back.
//! Start with `ARCHITECTURE.md`; the rooms are [`gpu`] (the one place that knows an API), [`model`] (files to
//! weights), [`decoder`] (the loop), [`cpu`] (twins of the kernels, and the fallback) and [`text`] (tokenizer and
//! chat template).

pub mod cpu;
pub mod decoder;
mod error;
pub mod gpu;
mod hash;
pub mod kernels;
pub mod model;
mod parallel;
pub mod session;
pub mod text;

pub use error::{Error, Result};
