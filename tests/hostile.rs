//! Files that are damaged or meant to do harm: each gets an error that names what is wrong, no panic, and no more
//! memory than its own size asks for.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{GgufWriter, Meta, Tensor, TinyModel};
use forerun::model::{
    Architecture, Blocks, BytesSource, GgmlType, MatrixInfo, Model, ModelOptions, STAGING, VectorKind, WeightSink,
};
use forerun::{Error, Result};
use half::f16;

/// Counts what this thread holds, and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    let held = HELD.get().saturating_add(more).saturating_sub(less);
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// An allocator is the one way to see allocations, and it cannot be written without unsafe.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Takes everything and keeps nothing.
struct Nowhere;

impl WeightSink for Nowhere {
    async fn vector(&mut self, _: VectorKind, _: usize, _: Vec<f32>) -> Result<()> {
        Ok(())
    }

    async fn rows(&mut self, _: &MatrixInfo, _: usize, _: Blocks) -> Result<()> {
        Ok(())
    }
}

/// Opens and streams a file from memory.
fn load(bytes: Vec<u8>) -> Result<()> {
    pollster::block_on(async {
        let source = BytesSource::new("hostile.gguf", bytes);
        let model = Model::open(&source, &ModelOptions::default()).await?;
        model.stream(&source, STAGING, &mut Nowhere).await
    })
}

/// Expects an error that says `needle`, and bounded memory.
fn check(what: &str, bytes: Vec<u8>, needle: &str) {
    let len = bytes.len();
    let before = HELD.get();
    MOST.set(before);
    let result = load(bytes);
    let most = MOST.get() - before;
    match result {
        Err(Error::ModelFormat(message) | Error::Unsupported(message)) => {
            assert!(message.contains(needle), "{what}: `{message}` does not say `{needle}`");
            assert!(
                !message.contains('\n') && message.contains(": "),
                "{what}: `{message}` is one sentence with advice"
            );
        }
        other => panic!("{what}: {other:?}"),
    }
    // The prefix and what was parsed from it; the header of the file that is spoilt has some 20 KB.
    assert!(most <= 4 * len + (128 << 10), "{what}: held {most} bytes for a file of {len}");
}

fn tiny() -> GgufWriter {
    TinyModel { architecture: Architecture::Qwen2, tied_head: false, ..TinyModel::default() }.writer()
}

fn spoilt(what: &str, needle: &str, spoil: impl FnOnce(&mut GgufWriter)) {
    let mut file = tiny();
    spoil(&mut file);
    check(what, file.finish(), needle);
}

/// An array's type, count and (too few) bytes.
fn raw_array(ty: u32, n: u64, rest: &[u8]) -> Meta {
    let mut bytes = ty.to_le_bytes().to_vec();
    bytes.extend(n.to_le_bytes());
    bytes.extend(rest);
    Meta::Raw(9, bytes)
}

#[test]
fn the_file_that_is_spoilt_is_sound() {
    load(tiny().finish()).unwrap();
}

#[test]
fn every_truncation_is_noticed() {
    let file = tiny();
    let (header, whole) = (file.header(), file.finish());
    // Every byte of the first keys and of the last tensors' entries, then here and there: all sections are hit.
    let cuts = (0..header.len()).filter(|i| *i < 600 || *i + 600 > header.len() || i % 13 == 0);
    for cut in cuts {
        check(&format!("cut at {cut} of the header"), whole[..cut].to_vec(), "");
    }
    for cut in [header.len(), header.len() + 1, (header.len() + whole.len()) / 2, whole.len() - 1] {
        check(&format!("cut at {cut}, in the data"), whole[..cut].to_vec(), "the file");
    }
    check("empty", Vec::new(), "first four bytes");
}

#[test]
fn what_is_no_gguf_is_called_so() {
    check("text", b"<!DOCTYPE html><html>".to_vec(), "not a GGUF file");
    let mut bytes = tiny().finish();
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    check("big-endian", bytes.clone(), "big-endian");
    for version in [0u32, 4, u32::MAX] {
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        check("version", bytes.clone(), "version");
    }
}

#[test]
fn absurd_counts_and_lengths() {
    for n in [1 << 20, 1 << 32, 1 << 60, u64::MAX] {
        let mut bytes = tiny().finish();
        bytes[8..16].copy_from_slice(&n.to_le_bytes());
        check("count of tensors", bytes, "table of tensors");
        let mut bytes = tiny().finish();
        bytes[16..24].copy_from_slice(&n.to_le_bytes());
        check("count of keys", bytes, "metadata");
        let mut bytes = tiny().finish();
        bytes[24..32].copy_from_slice(&n.to_le_bytes());
        check("length of a key", bytes, "metadata key 0");
        spoilt("length of a string", "`text`", |file| {
            file.key("text", Meta::Raw(8, n.to_le_bytes().to_vec()));
        });
        for ty in 0..=12 {
            spoilt("length of an array", "`array`", |file| {
                file.key("array", raw_array(ty, n, &[0; 16]));
            });
        }
        spoilt("length of a string in an array", "string 1 of metadata key `array`", |file| {
            let mut rest = 0u64.to_le_bytes().to_vec();
            rest.extend(n.to_le_bytes());
            file.key("array", raw_array(8, 2, &rest));
        });
        spoilt("dimension", "`output_norm.weight`", |file| file.tensor("output_norm.weight").shape = vec![n]);
        spoilt("product of dimensions", "`output.weight`", |file| {
            file.tensor("output.weight").shape = vec![32, n, n, n];
        });
        spoilt("offset", "`output.weight`", |file| file.tensor("output.weight").offset = Some(n & !31));
    }
    // A long array of small numbers would take eight times its bytes.
    let mut file = tiny();
    for i in 0..3 {
        file.key(&format!("bytes{i}"), raw_array(0, 1 << 20, &vec![1; 1 << 20]));
    }
    let bytes = file.finish();
    let len = bytes.len();
    let before = HELD.get();
    MOST.set(before);
    let error = load(bytes).unwrap_err().to_string();
    assert!(error.contains("more memory than the file has bytes"), "{error}");
    assert!(MOST.get() - before < 4 * len + (16 << 20));
}

#[test]
fn damaged_metadata() {
    spoilt("type of a value", "`strange`", |file| {
        file.key("strange", Meta::Raw(13, vec![0; 8]));
    });
    spoilt("type of an array", "`strange`", |file| {
        file.key("strange", raw_array(77, 1, &[0; 8]));
    });
    spoilt("bool", "`flag`", |file| {
        file.key("flag", Meta::Raw(7, vec![2]));
    });
    spoilt("UTF-8 of a value", "`text` is not valid UTF-8", |file| {
        let mut bytes = 2u64.to_le_bytes().to_vec();
        bytes.extend([0xc3, 0x28]);
        file.key("text", Meta::Raw(8, bytes));
    });
    spoilt("UTF-8 of a token", "string 0 of metadata key `texts`", |file| {
        let mut rest = 1u64.to_le_bytes().to_vec();
        rest.push(0xff);
        file.key("texts", raw_array(8, 1, &rest));
    });
    let mut bytes = tiny().finish();
    bytes[32] = 0xff;
    check("UTF-8 of a key", bytes, "name of metadata key 0");
    spoilt("integer of 64 bits in an array", "past 63 bits", |file| {
        file.key("ints", raw_array(10, 1, &u64::MAX.to_le_bytes()));
    });
    spoilt("nesting", "`nested` nests arrays", |file| {
        let mut rest = Vec::new();
        for _ in 0..100 {
            rest.extend(9u32.to_le_bytes());
            rest.extend(1u64.to_le_bytes());
        }
        file.key("nested", raw_array(9, 1, &rest));
    });
    spoilt("key twice", "`general.architecture` stands there twice", |file| {
        file.keys.push(("general.architecture".into(), "llama".into()));
    });
    spoilt("nested key twice", "`n` stands there twice", |file| {
        file.keys.push(("n".into(), raw_array(9, 0, &[])));
        file.keys.push(("n".into(), raw_array(9, 0, &[])));
    });
    for alignment in [0, 3, 48, 1 << 30] {
        spoilt("alignment", "`general.alignment`", |file| {
            file.key("general.alignment", Meta::U32(alignment));
        });
    }
    spoilt("type of the alignment", "`general.alignment`", |file| {
        file.key("general.alignment", "32");
    });
}

#[test]
fn damaged_tables_of_tensors() {
    spoilt("dimensions", "`output.weight`", |file| file.tensor("output.weight").shape = vec![]);
    spoilt("dimensions", "`output.weight`", |file| file.tensor("output.weight").shape = vec![1; 5]);
    spoilt("zero", "`output.weight`", |file| file.tensor("output.weight").shape = vec![64, 0]);
    for ty in [4, 5, 31, 99, u32::MAX] {
        spoilt("type", "unknown type", |file| file.tensor("output.weight").ty = ty);
    }
    spoilt("broken block", "`output.weight`", |file| file.tensor("output.weight").shape = vec![33, 288]);
    spoilt("misaligned", "`blk.0.attn_q.weight` starts", |file| {
        file.tensor("blk.0.attn_q.weight").offset = Some(33);
    });
    spoilt("overlap", "overlap", |file| file.tensor("blk.0.attn_q.weight").offset = Some(32));
    spoilt("same place", "overlap", |file| file.tensor("blk.0.attn_q.weight").offset = Some(0));
    spoilt("outside", "`blk.1.ffn_up.weight` goes past the end", |file| {
        file.tensor("blk.1.ffn_up.weight").offset = Some(1 << 30);
    });
    spoilt("offset that overflows", "`output.weight` goes past the end", |file| {
        file.tensor("output.weight").offset = Some(u64::MAX - 31);
    });
    spoilt("name twice", "`output.weight` stands there twice", |file| {
        let again = file.tensor("output.weight").clone();
        file.tensors.push(again);
    });
}

#[test]
fn models_that_lack_or_change_tensors() {
    let names: Vec<String> = tiny().tensors.iter().map(|tensor| tensor.name.clone()).collect();
    for name in &names {
        // A model without its head is a tied one, and sound.
        if name != "output.weight" {
            spoilt("missing", &format!("no tensor `{name}` of shape ["), |file| {
                file.tensors.retain(|tensor| tensor.name != *name);
            });
        }
        // One row, or a block of elements, less.
        spoilt("shape", "", |file| {
            let tensor = file.tensor(name);
            match tensor.shape.len() {
                1 => tensor.shape[0] -= 32,
                _ => tensor.shape[1] -= 1,
            }
        });
    }
    spoilt("shape", "`blk.1.ffn_up.weight` has the shape [64, 95] where the metadata ask for [64, 96]", |file| {
        file.tensor("blk.1.ffn_up.weight").shape = vec![64, 95];
    });
    spoilt("turned", "`blk.0.ffn_down.weight` has the shape [64, 96]", |file| {
        file.tensor("blk.0.ffn_down.weight").shape = vec![64, 96];
    });
    spoilt("third dimension", "`blk.0.attn_k.weight`", |file| {
        file.tensor("blk.0.attn_k.weight").shape = vec![64, 16, 2];
    });
    spoilt("type that is known but does not run", "is of type IQ4_NL", |file| {
        file.tensor("blk.0.attn_q.weight").ty = GgmlType::IQ4_NL.id();
    });
    spoilt("tensor without a place", "`blk.0.attn_q_norm.weight` has no place", |file| {
        let data = vec![0; 64];
        file.tensors.push(Tensor {
            name: "blk.0.attn_q_norm.weight".into(),
            ty: 0,
            shape: vec![16],
            data,
            offset: None,
        });
    });
    spoilt("layer past the last", "`blk.2.attn_norm.weight` has no place", |file| {
        let data = vec![0; 256];
        file.tensors.push(Tensor { name: "blk.2.attn_norm.weight".into(), ty: 0, shape: vec![64], data, offset: None });
    });
    for (ty, bytes) in [(GgmlType::F32, vec![0; 32]), (GgmlType::F32, vec![0; 16]), (GgmlType::F16, vec![0; 16])] {
        spoilt("rotary factors of zero, too few, or of another type", "rope_freqs.weight", |file| {
            let n = (bytes.len() / ty.block_bytes()) as u64;
            file.add("rope_freqs.weight", ty, &[n], bytes.clone());
        });
    }
}

#[test]
fn impossible_shapes() {
    let key = |name: &'static str, needle: &'static str, values: &[u64]| {
        for &value in values {
            spoilt(&format!("{name} = {value}"), needle, |file| {
                file.key(name, Meta::U64(value));
            });
        }
    };
    let absurd = [0, 1 << 40, u64::MAX];
    for name in [
        "qwen2.embedding_length",
        "qwen2.feed_forward_length",
        "qwen2.block_count",
        "qwen2.attention.head_count",
        "qwen2.attention.head_count_kv",
        "qwen2.attention.key_length",
        "qwen2.context_length",
    ] {
        key(name, name, &absurd);
        let required = !name.ends_with("_kv") && !name.ends_with("key_length");
        spoilt("missing", if required { name } else { "" }, |file| {
            file.remove_key(name);
            // Heads that no longer share the width, so that the optional keys are missed as well.
            file.key("qwen2.attention.value_length", Meta::U32(24));
        });
        spoilt("an array", name, |file| {
            file.key(name, Meta::I32s(vec![1, 2]));
        });
        spoilt("a string", name, |file| {
            file.key(name, "64");
        });
    }
    key("qwen2.embedding_length", "qwen2.embedding_length", &[65, 80]);
    key("qwen2.feed_forward_length", "qwen2.feed_forward_length", &[97]);
    key("qwen2.attention.head_count_kv", "qwen2.attention.head_count_kv", &[3, 8]);
    key("qwen2.attention.key_length", "qwen2.attention.", &[12, 4, 15]);
    key("qwen2.attention.value_length", "qwen2.attention.value_length", &[8]);
    key("qwen2.rope.dimension_count", "qwen2.rope.dimension_count", &[8, 32]);
    key("qwen2.expert_count", "qwen2.expert_count", &[8]);
    // Sound in themselves, but not what the tensors are.
    key("qwen2.embedding_length", "token_embd.weight", &[128]);
    key("qwen2.block_count", "blk.2.", &[3]);
    key("qwen2.block_count", "blk.1.", &[1]);
    let float = |name: &'static str, values: &[f32]| {
        for &value in values {
            spoilt(&format!("{name} = {value}"), name, |file| {
                file.key(name, Meta::F32(value));
            });
        }
    };
    float("qwen2.attention.layer_norm_rms_epsilon", &[f32::NAN, f32::INFINITY, -1.0, 1.0]);
    float("qwen2.rope.freq_base", &[f32::NAN, f32::INFINITY, -1.0, 0.0]);
    float("qwen2.rope.scaling.factor", &[f32::NAN, f32::INFINITY, -1.0]);
    for scaling in ["yarn", "longrope", "magic"] {
        spoilt("scaling", "qwen2.rope.scaling.type", |file| {
            file.key("qwen2.rope.scaling.type", scaling);
        });
    }
    spoilt("architecture", "`mamba` does not run here: choose a model of llama or qwen2", |file| {
        file.key("general.architecture", "mamba");
    });
    spoilt("no architecture", "general.architecture", |file| {
        file.remove_key("general.architecture");
    });
    spoilt("more tokens than rows", "tokenizer.ggml.tokens", |file| {
        file.key("tokenizer.ggml.tokens", Meta::Strs(vec![String::new(); 289]));
    });
}

#[test]
fn numbers_that_are_not_finite() {
    let nan = f16::NAN.to_le_bytes();
    let infinity = f16::INFINITY.to_le_bytes();
    let names: Vec<String> = tiny().tensors.iter().map(|tensor| tensor.name.clone()).collect();
    for name in &names {
        for (bad, bits) in [(nan, f32::NAN), (infinity, f32::NEG_INFINITY)] {
            spoilt("not finite", &format!("tensor `{name}` holds a number"), |file| {
                let tensor = file.tensor(name);
                let last = match tensor.ty {
                    0 => tensor.data.len() - 4,
                    2 => tensor.data.len() - 18,
                    _ => tensor.data.len() - 34,
                };
                if tensor.ty == 0 {
                    tensor.data[last..last + 4].copy_from_slice(&bits.to_le_bytes());
                } else {
                    tensor.data[last..last + 2].copy_from_slice(&bad);
                }
            });
        }
    }
    spoilt("the row is named", "in row 95 that", |file| {
        let tensor = file.tensor("blk.0.ffn_up.weight");
        let last = tensor.data.len() - 18;
        tensor.data[last..last + 2].copy_from_slice(&nan);
    });
}
