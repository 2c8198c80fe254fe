//! Numbers: the way from GGML's types to f32 and to blocks.

mod common;

use common::{Random, random_tensor};
use forerun::model::{BLOCK, Blocks, Format, GgmlType};
use half::f16;
use proptest::prelude::*;

macro_rules! fixture {
    ($ty:ident, $name:literal) => {
        (
            GgmlType::$ty,
            include_bytes!(concat!("fixtures/ggml/", $name, ".bin")),
            include_bytes!(concat!("fixtures/ggml/", $name, ".values")),
        )
    };
}

/// Types that the engine reads, with the fixture of each: bytes of blocks, and the values that the `gguf` Python
/// package gives for them (made by `tools/ggml_fixtures.py`).
const FIXTURES: [(GgmlType, &[u8], &[u8]); 11] = [
    fixture!(F32, "f32"),
    fixture!(F16, "f16"),
    fixture!(BF16, "bf16"),
    fixture!(Q4_0, "q4_0"),
    fixture!(Q4_1, "q4_1"),
    fixture!(Q5_0, "q5_0"),
    fixture!(Q5_1, "q5_1"),
    fixture!(Q8_0, "q8_0"),
    fixture!(Q4_K, "q4_k"),
    fixture!(Q5_K, "q5_k"),
    fixture!(Q6_K, "q6_k"),
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn dequantized(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_elements()];
    assert!(ty.dequantize(bytes, &mut values));
    values
}

fn all_rows(blocks: &Blocks) -> Vec<f32> {
    let mut values = vec![0.0; blocks.n_rows * blocks.n_cols];
    for (row, values) in values.chunks_exact_mut(blocks.n_cols).enumerate() {
        blocks.dequantize_row(row, values);
    }
    values
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
}

#[test]
fn every_type_reads_as_the_python_package_reads_it() {
    for (ty, bytes, values) in FIXTURES {
        let (found, expected) = (dequantized(ty, bytes), floats(values));
        assert_eq!(found.len(), expected.len(), "{}", ty.name());
        assert!(found.len() >= 512);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{} element {i}: {found} {expected}", ty.name());
        }
    }
}

#[test]
fn exact_formats_keep_every_value() {
    for (ty, format) in [
        (GgmlType::Q4_0, Format::Q4),
        (GgmlType::Q4_0, Format::Q4Min),
        (GgmlType::Q4_0, Format::Q8),
        (GgmlType::Q4_1, Format::Q4Min),
        (GgmlType::Q5_0, Format::Q8),
        (GgmlType::Q8_0, Format::Q8),
    ] {
        assert!(format.holds_exactly(ty));
        // Three blocks a row: rows share words of scales.
        let (n_rows, n_cols) = (6, 96);
        let bytes = random_tensor(&mut Random(7), ty, n_cols, n_rows);
        let blocks = Blocks::from_ggml(format, ty, &bytes, n_rows, n_cols, |row| n_rows - 1 - row).unwrap();
        assert_eq!(blocks.codes.len(), n_rows * 3 * format.code_words());
        assert_eq!(blocks.scales.len(), format.scale_words(n_rows * 3));
        assert_eq!(blocks.bytes() as u64, format.bytes(n_rows as u64 * 3));
        let expected: Vec<f32> = dequantized(ty, &bytes).chunks(n_cols).rev().flatten().copied().collect();
        let found = all_rows(&blocks);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{} in {format:?}", ty.name());
        }
    }
}

#[test]
fn the_layout_is_the_one_that_kernels_read() {
    // Element i of the block has code i % 16, and the scales of two blocks are told apart by their halves.
    let mut block = f16::from_f32(2.0).to_le_bytes().to_vec();
    block.extend((0..16u8).map(|j| j | (j << 4)));
    block.extend(f16::from_f32(3.0).to_le_bytes());
    block.extend([0x98; 16]);
    let q4 = Blocks::from_ggml(Format::Q4, GgmlType::Q4_0, &block, 1, 64, |row| row).unwrap();
    assert_eq!(q4.codes[..4], [0x3322_1100, 0x7766_5544, 0xbbaa_9988, 0xffee_ddcc]);
    assert_eq!(q4.codes[4..], [0x9898_9898; 4]);
    assert_eq!(q4.scales, [u32::from(f16::from_f32(2.0).to_bits()) | u32::from(f16::from_f32(3.0).to_bits()) << 16]);
    let q4_min = Blocks::from_ggml(Format::Q4Min, GgmlType::Q4_0, &block, 1, 64, |row| row).unwrap();
    assert_eq!(
        q4_min.scales[0],
        u32::from(f16::from_f32(2.0).to_bits()) | u32::from(f16::from_f32(-16.0).to_bits()) << 16
    );
    let q8 = Blocks::from_ggml(Format::Q8, GgmlType::Q4_0, &block, 1, 64, |row| row).unwrap();
    assert_eq!(q8.codes[0], u32::from_le_bytes([-8i8, -7, -6, -5].map(|code| code as u8)));
    assert_eq!(q8.codes[4], q8.codes[0]);
}

#[test]
fn k_types_with_a_minimum_lose_only_the_rounding_of_their_scales() {
    let bytes = random_tensor(&mut Random(3), GgmlType::Q4_K, 512, 8);
    let values = dequantized(GgmlType::Q4_K, &bytes);
    let blocks = Blocks::from_ggml(Format::Q4Min, GgmlType::Q4_K, &bytes, 8, 512, |row| row).unwrap();
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    for (found, expected) in all_rows(&blocks).iter().zip(&values) {
        assert!((found - expected).abs() <= largest * 0.001, "{found} {expected}");
    }
}

#[test]
fn a_scale_that_is_not_finite_is_refused() {
    for (ty, bytes, _) in FIXTURES {
        for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            for format in [Format::Q4, Format::Q4Min, Format::Q8] {
                let n_cols = ty.block_elements().max(BLOCK);
                let row_bytes = n_cols / ty.block_elements() * ty.block_bytes();
                let mut bytes = bytes[..2 * row_bytes].to_vec();
                let at = row_bytes + if ty == GgmlType::Q6_K { 208 } else { 0 };
                match ty {
                    GgmlType::F32 => bytes[at..at + 4].copy_from_slice(&f32::from(bad).to_le_bytes()),
                    GgmlType::BF16 => {
                        bytes[at..at + 2].copy_from_slice(&half::bf16::from_f32(f32::from(bad)).to_le_bytes());
                    }
                    _ => bytes[at..at + 2].copy_from_slice(&bad.to_le_bytes()),
                }
                let found = Blocks::from_ggml(format, ty, &bytes, 2, n_cols, |row| row);
                assert_eq!(found.map_err(|bad| bad.row), Err(1), "{} {format:?} {bad}", ty.name());
            }
        }
    }
    // The minimum too.
    for (ty, at) in [(GgmlType::Q4_1, 2), (GgmlType::Q5_1, 2), (GgmlType::Q4_K, 2), (GgmlType::Q5_K, 2)] {
        let mut bytes = random_tensor(&mut Random(1), ty, ty.block_elements(), 1);
        bytes[at..at + 2].copy_from_slice(&f16::NAN.to_le_bytes());
        // A part whose minimum's factor is 0 is NaN all the same.
        for format in [Format::Q4, Format::Q4Min, Format::Q8] {
            assert!(Blocks::from_ggml(format, ty, &bytes, 1, ty.block_elements(), |row| row).is_err());
        }
    }
}

#[test]
fn odd_blocks_are_quantised_sensibly() {
    for format in [Format::Q4, Format::Q4Min, Format::Q8] {
        // (values, the largest absolute error allowed)
        let tiny = 6e-8;
        for (values, error) in [
            ([0.0; BLOCK], 0.0),
            ([0.3; BLOCK], 2e-4),
            ([-0.3; BLOCK], 2e-4),
            ([1e-9; BLOCK], tiny),
            ([f32::MIN_POSITIVE; BLOCK], tiny),
            (std::array::from_fn(|i| if i == 5 { 1.0 } else { 0.0 }), 1e-3),
            (std::array::from_fn(|i| if i == 5 { -1.0 } else { 0.0 }), 1e-3),
            (std::array::from_fn(|i| 1000.0 + i as f32 / 31.0), if format == Format::Q4Min { 0.5 } else { 80.0 }),
        ] {
            let blocks = Blocks::quantize(format, &values, 1, BLOCK).unwrap();
            for (found, expected) in all_rows(&blocks).iter().zip(&values) {
                assert!((found - expected).abs() <= error, "{format:?} {expected}: {found}");
            }
        }
        // What no 16-bit scale reaches is brought back to what one reaches, not to infinity.
        for huge in [1e6, 1e30, f32::MAX] {
            let values: [f32; BLOCK] = std::array::from_fn(|i| if i % 2 == 0 { huge } else { -huge });
            let blocks = Blocks::quantize(format, &values, 1, BLOCK).unwrap();
            assert!(all_rows(&blocks).iter().all(|value| value.is_finite()));
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 3 * BLOCK];
            values[2 * BLOCK + 7] = bad;
            assert_eq!(Blocks::quantize(format, &values, 3, BLOCK).map_err(|bad| bad.row), Err(2));
        }
    }
}

#[test]
fn slabs_put_together_are_the_whole() {
    for format in [Format::Q4, Format::Q4Min, Format::Q8] {
        let values: Vec<f32> = (0..7 * 96).map(|i| (i as f32 * 0.37).sin()).collect();
        let whole = Blocks::quantize(format, &values, 7, 96).unwrap();
        let mut put = Blocks::zeroed(format, 7, 96);
        for (first, n) in [(4, 3), (0, 2), (2, 2)] {
            put.put_rows(first, &Blocks::quantize(format, &values[first * 96..(first + n) * 96], n, 96).unwrap());
        }
        assert_eq!(put, whole);
    }
}

/// The quantisers everyone writes first: the scale from the largest magnitude, or from the range.
fn naive(format: Format, x: &[f32]) -> Vec<f32> {
    let round = |value: f32| f16::from_f32(value).to_f32();
    let inverse = |scale: f32| if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let extreme = x.iter().fold(0.0f32, |extreme, &x| if x.abs() > extreme.abs() { x } else { extreme });
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    match format {
        Format::Q4 => {
            let scale = round(extreme / -8.0);
            x.iter().map(|x| scale * (x * inverse(scale)).round_ties_even().clamp(-8.0, 7.0)).collect()
        }
        Format::Q8 => {
            let scale = round(extreme / 127.0);
            x.iter().map(|x| scale * (x * inverse(scale)).round_ties_even().clamp(-127.0, 127.0)).collect()
        }
        Format::Q4Min => {
            let (scale, minimum) = (round((high - low) / 15.0), round(low));
            let code = |x: f32| ((x - minimum) * inverse(scale)).round_ties_even().clamp(0.0, 15.0);
            x.iter().map(|&x| scale * code(x) + minimum).collect()
        }
    }
}

fn block() -> impl Strategy<Value = Vec<f32>> {
    let size = prop_oneof![Just(1e-6f32), Just(0.02), Just(1.0), Just(300.0)];
    (size, -3.0f32..3.0, 1u32..5, prop::collection::vec(-1.0f32..1.0, BLOCK)).prop_map(
        |(size, centre, power, values)| {
            // A higher power makes a few large values among many small ones.
            values.into_iter().map(|value| size * (value.powi(power as i32) + centre)).collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_quantiser_is_never_worse_than_the_naive_one(x in block()) {
        for format in [Format::Q4, Format::Q4Min, Format::Q8] {
            let found = squared_error(&all_rows(&Blocks::quantize(format, &x, 1, BLOCK).unwrap()), &x);
            let plain = squared_error(&naive(format, &x), &x);
            let norm = squared_error(&x, &[0.0; BLOCK]);
            // The search measures in f32; what lies below its rounding is no loss.
            prop_assert!(found <= plain * 1.0001 + norm * 1e-11, "{:?}: {} {}", format, found, plain);
        }
    }
}

#[test]
fn the_search_gains_on_weights_like_real_ones() {
    let mut random = Random(11);
    let values: Vec<f32> = (0..BLOCK * 4000).map(|_| (0..6).map(|_| random.between(-0.02, 0.02)).sum()).collect();
    for (format, gain) in [(Format::Q4, 0.93), (Format::Q4Min, 0.87), (Format::Q8, 0.99)] {
        let found = squared_error(&all_rows(&Blocks::quantize(format, &values, 4000, BLOCK).unwrap()), &values);
        let plain: f64 = values.chunks(BLOCK).map(|x| squared_error(&naive(format, x), x)).sum();
        println!("{format:?}: {found:e} where the naive quantiser has {plain:e}");
        assert!(found < gain * plain, "{format:?}: {found} {plain}");
    }
}
