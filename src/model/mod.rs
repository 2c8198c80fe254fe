//! Files to weights.

pub mod blocks;
pub mod config;
pub mod metadata;
pub mod package;

pub use blocks::{BLOCK, Blocks, Format};
pub use config::{Architecture, Config, RopePairs};
pub use metadata::{Metadata, Value};
pub use package::{MatrixInfo, MatrixKind, VectorKind, WeightSink};
