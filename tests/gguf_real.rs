//! Real model files: opens and streams each, and prints what it became.
//!
//! Ignored by default because it needs files that are not in the repository:
//! `FORERUN_MODELS=$PWD/models cargo test --release --test gguf_real -- --ignored --nocapture`

use std::collections::BTreeMap;
use std::time::Instant;

use forerun::Result;
use forerun::model::{
    Blocks, FileSource, MatrixInfo, MatrixKind, MemoryPlan, Model, ModelOptions, STAGING, VectorKind, WeightSink,
};

/// Counts what arrives.
#[derive(Default)]
struct Counter {
    rows: BTreeMap<(MatrixKind, usize), usize>,
    vectors: BTreeMap<(VectorKind, usize), usize>,
    bytes: u64,
    largest_slab: usize,
    progress: (u64, u64),
}

impl WeightSink for Counter {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()> {
        assert!(values.iter().any(|&value| value != 0.0));
        assert!(self.vectors.insert((kind, layer), values.len()).is_none(), "{kind:?} {layer} came twice");
        Ok(())
    }

    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        assert!(first_row.is_multiple_of(2) && first_row + rows.n_rows <= matrix.n_rows);
        *self.rows.entry((matrix.kind, matrix.layer)).or_default() += rows.n_rows;
        self.bytes += rows.bytes() as u64;
        self.largest_slab = self.largest_slab.max(rows.bytes());
        Ok(())
    }

    fn progress(&mut self, bytes_read: u64, bytes_total: u64) {
        assert!(bytes_read >= self.progress.0);
        self.progress = (bytes_read, bytes_total);
    }
}

#[test]
#[ignore = "needs a folder with model files, named by FORERUN_MODELS"]
fn real_models_open_and_stream() {
    let folder = std::env::var("FORERUN_MODELS").expect("FORERUN_MODELS names a folder with model files");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")).collect();
    assert!(!models.is_empty());
    for path in models {
        let source = FileSource::open(&path).unwrap();
        let start = Instant::now();
        let model = pollster::block_on(Model::open(&source, &ModelOptions::default())).unwrap();
        let opened = start.elapsed();
        let mut sink = Counter::default();
        let start = Instant::now();
        pollster::block_on(model.stream(&source, STAGING, &mut sink)).unwrap();
        let streamed = start.elapsed();

        let mut formats: BTreeMap<_, usize> = BTreeMap::new();
        for matrix in model.matrices() {
            *formats.entry((matrix.kind, matrix.format)).or_default() += 1;
            assert_eq!(sink.rows[&(matrix.kind, matrix.layer)], matrix.n_rows);
        }
        let plan = MemoryPlan::new(&model, 4096, |_, _| 0);
        assert_eq!(plan.weights_q4 + plan.weights_q4_min + plan.weights_q8, sink.bytes);
        assert_eq!(plan.vectors, 4 * sink.vectors.values().sum::<usize>() as u64);
        assert_eq!(sink.progress.0, sink.progress.1);
        let shape = forerun::model::Config { rope_frequencies: vec![], ..model.config.clone() };
        println!("{}\n  {shape:?}\n  formats {formats:?}\n  {plan:?}", path.display());
        println!("  opened in {opened:.2?}, streamed in {streamed:.2?}, largest slab {}", sink.largest_slab);
    }
}
