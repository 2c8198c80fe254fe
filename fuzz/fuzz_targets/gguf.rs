//! Any bytes at all, as a model file: an error or a model, never a panic and no memory past the file's size.
//!
//! ```sh
//! cargo install cargo-fuzz
//! export RUSTC_BOOTSTRAP=1        # the sanitizer's flags, without a nightly toolchain
//! cargo fuzz build gguf && cargo run --manifest-path fuzz/Cargo.toml --bin seeds
//! cargo fuzz run gguf -- -max_total_time=600 -max_len=32768 -malloc_limit_mb=64 -dict=fuzz/gguf.dict
//! ```
#![no_main]

use forerun::Result;
use forerun::model::{
    Blocks, BytesSource, Format, MatrixInfo, MemoryPlan, Model, ModelOptions, STAGING, VectorKind, WeightSink, Wide,
};
use libfuzzer_sys::fuzz_target;

/// Puts rows where they belong, as a user of the weights does.
struct Memory {
    whole: Option<(MatrixInfo, Blocks)>,
    values: Vec<f32>,
}

impl WeightSink for Memory {
    async fn vector(&mut self, _: VectorKind, _: usize, values: Vec<f32>) -> Result<()> {
        assert!(values.iter().all(|value| value.is_finite()));
        Ok(())
    }

    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        if self.whole.as_ref().is_none_or(|(held, _)| held != matrix) {
            self.whole = Some((*matrix, Blocks::zeroed(matrix.format, matrix.n_rows, matrix.n_cols)));
        }
        if let Some((_, whole)) = &mut self.whole {
            whole.put_rows(first_row, &rows);
            self.values.resize(matrix.n_cols, 0.0);
            whole.dequantize_row(first_row + rows.n_rows - 1, &mut self.values);
            assert!(self.values.iter().all(|value| value.is_finite()));
        }
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let source = BytesSource::new("fuzz.gguf", bytes.to_vec());
    let options = [
        ModelOptions::default(),
        ModelOptions { wide: Wide::ALL, ..ModelOptions::default() },
        ModelOptions { wide: Wide::NONE, keep_q8: false, narrow: Format::Q4 },
    ];
    // The last byte of a file is a weight, or padding: it chooses the options without disturbing the header.
    let options = options[bytes.last().map_or(0, |&byte| usize::from(byte % 3))];
    pollster::block_on(async {
        let Ok(model) = Model::open(&source, &options).await else { return };
        let plan = MemoryPlan::new(&model, model.config.max_seq_len, |_, _| 0);
        assert!(plan.total() >= plan.weights_q8);
        for staging in [STAGING, 4096] {
            let _ = model.stream(&source, staging, &mut Memory { whole: None, values: Vec::new() }).await;
        }
    });
});
