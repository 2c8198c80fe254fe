//! The CPU twins give the same bits whatever the instruction set, the threads and the split into passes.

use forerun::cpu::simd::{self, Level};
use forerun::cpu::{PackedBlocks, Quantized, matmul, quantize};
use forerun::model::{Blocks, Format};
use std::sync::Mutex;

/// The level is one for the whole process, so tests that set it take turns.
static LEVEL: Mutex<()> = Mutex::new(());

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    fn float(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// Any codes, and finite scales of either sign.
    fn blocks(&mut self, format: Format, n_rows: usize, n_cols: usize) -> Blocks {
        let n = n_rows * n_cols / 32;
        let mut scale = || u32::from(half::f16::from_f32(self.float() * 0.05).to_bits());
        let scales = (0..format.scale_words(n)).map(|_| scale() | scale() << 16).collect();
        let codes = (0..n * format.code_words()).map(|_| self.bits()).collect();
        Blocks { format, n_rows, n_cols, codes, scales }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `f` at every level of this machine, with one thread and with three.
fn everywhere(mut f: impl FnMut(&str)) {
    let _turn = LEVEL.lock().unwrap();
    for level in [Level::Plain, Level::Avx2, Level::AvxVnni, Level::Avx512Vnni] {
        if simd::limit(level) == level {
            f(&format!("{level:?}"));
        }
    }
    simd::limit(Level::Avx512Vnni);
}

#[test]
fn products_are_the_same_bits_everywhere() {
    let mut random = Random(1);
    // Odd numbers of blocks and rows, each number of lanes, and both ends of a lane's range.
    for (n_rows, n_cols) in [(1, 32), (17, 96), (48, 576), (16, 2048), (33, 2080), (15, 8192), (5, 8224), (40, 9728)] {
        for format in [Format::Q4, Format::Q4Min, Format::Q8] {
            let weights = random.blocks(format, n_rows, n_cols);
            let x = quantize(&random.floats(32 * n_cols), n_cols);
            let expected = matmul(&weights, &x);
            let mut packed = PackedBlocks::new(format, n_rows, n_cols);
            assert!(packed.set_rows(0, &weights));
            everywhere(|place| {
                for n in [1, 2, 3, 7, 8, 9, 31, 32] {
                    let y = packed.matmul(&x.slice(0..n));
                    assert_eq!(bits(&y), bits(&expected[..n * n_rows]), "{format:?} {n_rows}x{n_cols}, {n}, {place}");
                }
                assert_eq!(bits(&matmul(&weights, &x.slice(0..2))), bits(&expected[..2 * n_rows]), "{place}");
            });
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    for format in [Format::Q4, Format::Q4Min, Format::Q8] {
        for code in [0u32, 0x7f7f_7f7f, 0x8080_8080, u32::MAX] {
            let n = 16 * 3;
            let weights = Blocks {
                format,
                n_rows: 16,
                n_cols: 96,
                codes: vec![code; n * format.code_words()],
                scales: vec![0x3c00_3c00; format.scale_words(n)],
            };
            let x = Quantized {
                n_cols: 96,
                codes: [vec![0x7f7f_7f7f; 24], vec![0x8181_8181; 24]].concat(),
                scales: [vec![[1.0, 32.0 * 127.0]; 3], vec![[1.0, -32.0 * 127.0]; 3]].concat(),
            };
            let expected = matmul(&weights, &x);
            let mut packed = PackedBlocks::new(format, 16, 96);
            assert!(packed.set_rows(0, &weights));
            everywhere(|place| assert_eq!(bits(&packed.matmul(&x)), bits(&expected), "{format:?} {code:#x} {place}"));
        }
    }
}

#[test]
fn packing_keeps_every_row() {
    let mut random = Random(2);
    for format in [Format::Q4, Format::Q4Min, Format::Q8] {
        let blocks = random.blocks(format, 37, 96);
        let mut packed = PackedBlocks::new(format, 37, 96);
        assert!(packed.set_rows(0, &blocks));
        let order: Vec<u32> = (0..37).collect();
        // An odd count of blocks leaves half a word of scales over, which packing does not keep.
        let mut expected = blocks.clone();
        if format != Format::Q4Min {
            *expected.scales.last_mut().unwrap() &= 0xffff;
        }
        assert_eq!(packed.rows(&order), expected);
        // Row by row, as a loader may deliver them.
        let mut again = PackedBlocks::new(format, 37, 96);
        for row in 0..37 {
            assert!(again.set_rows(row, &packed.rows(&[row as u32])));
        }
        assert_eq!(again.rows(&order), expected);
        assert!(!again.set_rows(37, &packed.rows(&[0])));
        assert!(!again.set_rows(usize::MAX, &packed.rows(&[0])));
    }
}
