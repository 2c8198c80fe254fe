//! Files to weights.
//!
//! [`Model::open`] reads a file's header from a [`Source`] and checks it; [`Model::stream`] hands the weights, in
//! blocks, to a [`WeightSink`] without ever holding more than a staging buffer of them.

pub mod blocks;
pub mod config;
pub mod ggml;
pub mod gguf;
pub mod metadata;
pub mod package;
pub mod plan;
pub mod quantize;
pub mod source;

pub use blocks::{BLOCK, Blocks, Format, NotFinite};
pub use config::{Architecture, Config, RopePairs, TensorFacts};
pub use ggml::GgmlType;
pub use gguf::{Gguf, TensorInfo};
pub use metadata::{Metadata, Value};
pub use package::{MatrixInfo, MatrixKind, Model, ModelOptions, STAGING, VectorKind, WeightSink, Wide};
pub use plan::MemoryPlan;
pub use source::{BytesSource, FileSource, Source};
