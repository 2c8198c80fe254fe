//! Placeholder for the types of the package room.
use super::{Blocks, Format};
use crate::Result;
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum MatrixKind {
    EmbedTokens,
    QkvProj,
    OProj,
    GateUpProj,
    DownProj,
    LmHead,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MatrixInfo {
    pub kind: MatrixKind,
    pub layer: usize,
    pub n_rows: usize,
    pub n_cols: usize,
    pub format: Format,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum VectorKind {
    AttnNorm,
    MlpNorm,
    Norm,
    QkvBias,
}
#[allow(missing_docs, async_fn_in_trait)]
pub trait WeightSink {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()>;
    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()>;
}
