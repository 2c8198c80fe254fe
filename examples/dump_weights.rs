//! Writes a model's weights, as the engine holds them, into a folder of `.npy` files in f32, one for each matrix and
//! vector: `qkv_proj.3.npy` is that of layer 3. `tools/reference` compares the engine with transformers on them.
//!
//! `cargo run --release --example dump_weights -- MODEL.gguf FOLDER`

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;

use forerun::model::{Blocks, FileSource, MatrixInfo, Model, ModelOptions, STAGING, VectorKind, WeightSink};
use forerun::{Error, Result};

/// Bytes in front of the numbers of an `.npy` file of version 1.0.
const HEADER: usize = 128;

struct Dump {
    folder: PathBuf,
}

impl Dump {
    /// Writes `values` from element `first` on into an array of `shape`.
    fn put(&self, name: &str, shape: &str, first: usize, values: &[f32]) -> std::io::Result<()> {
        let path = self.folder.join(format!("{name}.npy"));
        let mut file = BufWriter::new(File::options().create(true).truncate(false).write(true).open(path)?);
        let description = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
        let width = HEADER - 11;
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(file, "{description:width$}")?;
        file.seek(SeekFrom::Start((HEADER + 4 * first) as u64))?;
        file.write_all(bytemuck::cast_slice(values))?;
        file.flush()
    }
}

impl WeightSink for Dump {
    async fn vector(&mut self, kind: VectorKind, layer: usize, values: Vec<f32>) -> Result<()> {
        let name = match kind {
            VectorKind::AttnNorm => "attn_norm",
            VectorKind::MlpNorm => "mlp_norm",
            VectorKind::Norm => "norm",
            VectorKind::QkvBias => "qkv_bias",
        };
        self.put(&format!("{name}.{layer}"), &format!("{},", values.len()), 0, &values).map_err(io)
    }

    async fn rows(&mut self, matrix: &MatrixInfo, first_row: usize, rows: Blocks) -> Result<()> {
        let mut values = vec![0.0; rows.n_rows * rows.n_cols];
        for (row, into) in values.chunks_exact_mut(rows.n_cols).enumerate() {
            rows.dequantize_row(row, into);
        }
        let name = format!("{}.{}", matrix.kind.name(), matrix.layer);
        let shape = format!("{}, {}", matrix.n_rows, matrix.n_cols);
        self.put(&name, &shape, first_row * matrix.n_cols, &values).map_err(io)
    }
}

fn io(error: std::io::Error) -> Error {
    Error::Io(format!("the folder for the weights cannot be written ({error}): choose another"))
}

fn main() -> Result<()> {
    let [model, folder] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err(Error::BadInput("two arguments are needed: a model file and a folder".into()));
    };
    std::fs::create_dir_all(folder).map_err(io)?;
    let source = FileSource::open(model)?;
    pollster::block_on(async {
        let model = Model::open(&source, &ModelOptions::default()).await?;
        model.stream(&source, STAGING, &mut Dump { folder: folder.into() }).await
    })
}
