//! Writes sound little models into `fuzz/corpus/gguf`, for the fuzzer to start from.

#[path = "../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;

use common::{Meta, TinyModel};
use forerun::model::{Architecture, GgmlType};

fn main() -> std::io::Result<()> {
    use GgmlType::*;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/gguf");
    fs::create_dir_all(&folder)?;
    for ty in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K] {
        let width = ty.block_elements().max(32);
        for architecture in [Architecture::Llama, Architecture::Qwen2] {
            let tiny = TinyModel {
                architecture,
                dim: width,
                hidden_dim: 32,
                n_layers: 1,
                n_heads: 4,
                n_kv_heads: 1,
                head_dim: 8,
                vocab_size: 3,
                tied_head: architecture == Architecture::Llama,
                embed: ty,
                // Wide types in every matrix would make large seeds.
                layers: if width == 32 { vec![ty, Q4_0, Q8_0] } else { vec![Q4_0] },
                ..TinyModel::default()
            };
            let mut file = tiny.writer();
            file.version = 1 + ty.id() % 3;
            if ty == F16 {
                file.key("general.alignment", Meta::U32(64));
                file.alignment = 64;
            }
            fs::write(folder.join(format!("{}-{architecture:?}.gguf", ty.name())), file.finish())?;
        }
    }
    Ok(())
}
