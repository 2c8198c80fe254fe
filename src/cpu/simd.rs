//! The one place that names instruction sets: which one this machine has, code compiled for it, fused multiply-add,
//! and the dot products of blocks written for it by hand.
//!
//! All of them give the same bits as plain Rust: integer sums are exact, and floats are multiplied and added in
//! the twins' order.
#![allow(unsafe_code)]

use super::numbers::f16_to_f32;
use crate::model::Format;
use std::sync::atomic::{AtomicU8, Ordering};

/// Rows in a group of [`super::packed::PackedBlocks`]: the rows that one vector holds.
pub const GROUP: usize = 16;

/// An instruction set, from the plainest to the fastest. Where a level is not of this architecture, it is never
/// chosen; WebAssembly and ARM choose theirs when compiled and stay at [`Level::Plain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// What the program was compiled for.
    Plain = 1,
    /// AVX2 with FMA and F16C.
    Avx2 = 2,
    /// AVX2 with the dot product of AVX-VNNI.
    AvxVnni = 3,
    /// AVX-512 (F, BW, DQ, VL) with VNNI.
    Avx512Vnni = 4,
}

/// The level in use, 0 before the first question.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The level in use: the best of this machine, unless [`limit`] lowered it.
#[inline]
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        0 => {
            let best = best(Level::Avx512Vnni);
            LEVEL.store(best as u8, Ordering::Relaxed);
            best
        }
        2 => Level::Avx2,
        3 => Level::AvxVnni,
        4 => Level::Avx512Vnni,
        _ => Level::Plain,
    }
}

/// Uses at most `level` from now on, in the whole process; answers the level that is then in use. For tests and
/// measurements.
pub fn limit(level: Level) -> Level {
    let level = best(level);
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

/// The best level of this machine up to `most`.
fn best(most: Level) -> Level {
    if cfg!(feature = "unfused") {
        return Level::Plain;
    }
    let levels = [Level::Avx512Vnni, Level::AvxVnni, Level::Avx2];
    levels.into_iter().find(|level| *level <= most && has(*level)).unwrap_or(Level::Plain)
}

/// Whether this machine can run `level`.
#[cfg(target_arch = "x86_64")]
fn has(level: Level) -> bool {
    use std::arch::is_x86_feature_detected as detected;
    let avx2 = detected!("avx2") && detected!("fma") && detected!("f16c");
    match level {
        Level::Plain => true,
        Level::Avx2 => avx2,
        Level::AvxVnni => avx2 && detected!("avxvnni"),
        Level::Avx512Vnni => {
            avx2 && detected!("avx512f")
                && detected!("avx512bw")
                && detected!("avx512dq")
                && detected!("avx512vl")
                && detected!("avx512vnni")
        }
    }
}

/// Whether this machine can run `level`.
#[cfg(not(target_arch = "x86_64"))]
fn has(level: Level) -> bool {
    level == Level::Plain
}

/// Runs `f` compiled for the best instruction set of this machine.
///
/// `f` must be an `#[inline(always)]` closure over `#[inline(always)]` functions: only what is inlined is compiled
/// anew. Inner loops are plain `for` loops for the same reason: closures given to `map` or `from_fn` are often left
/// outside, and then every `fma` is a call. The result's bits do not depend on the instruction set, since the compiler
/// neither fuses nor reorders floating-point operations on its own.
#[inline(always)]
pub fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match level() {
        Level::Plain => f(),
        // SAFETY: `level` never answers more than this machine has.
        Level::Avx2 | Level::AvxVnni => unsafe { x86::with_avx2(f) },
        // SAFETY: as above.
        Level::Avx512Vnni => unsafe { x86::with_avx512(f) },
    }
    #[cfg(not(target_arch = "x86_64"))]
    f()
}

/// `q · k` for 32 keys at once, in 4 partials each (element `j` adds to partial `j % 4`): `[32, 4]` from `q`,
/// `[head_dim]`, and `k`, `[head_dim / 4, 32, 4]`.
pub fn dot_keys(q: &[f32], k: &[[f32; 128]]) -> [f32; 128] {
    let q = q.as_chunks::<4>().0;
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::Avx2 {
        // SAFETY: `level` never answers more than this machine has, and the levels above AVX2 contain it.
        return unsafe { x86::dot_keys(q, k) };
    }
    let mut acc = [0.0; 128];
    for ([a, b, c, d], k) in q.iter().zip(k) {
        let q = [*a, *b, *c, *d, *a, *b, *c, *d, *a, *b, *c, *d, *a, *b, *c, *d];
        for (acc, k) in acc.as_chunks_mut().0.iter_mut().zip(k.as_chunks().0) {
            fma_16(&q, k, acc);
        }
    }
    acc
}

/// `acc[d] = fma(p, v[d], acc[d])`, position after position: `acc` is `[head_dim]`, `p` is `[n]` and `v` is
/// `[n, head_dim]`, with `head_dim` a multiple of 8.
pub fn add_values(p: &[f32], v: &[f32], acc: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::Avx2 {
        // SAFETY: `level` never answers more than this machine has, and the levels above AVX2 contain it.
        return unsafe { x86::add_values(p, v, acc) };
    }
    for (p, v) in p.iter().zip(v.chunks_exact(acc.len())) {
        let (acc, acc_rest) = acc.as_chunks_mut();
        let (v, v_rest) = v.as_chunks();
        for (acc, v) in acc.iter_mut().zip(v) {
            fma_16(&[*p; 16], v, acc);
        }
        for (acc, v) in acc_rest.iter_mut().zip(v_rest) {
            *acc = fma(*p, *v, *acc);
        }
    }
}

/// `acc = a * b + acc` in each lane, rounded once.
#[inline(always)]
fn fma_16(a: &[f32; 16], b: &[f32; 16], acc: &mut [f32; 16]) {
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    wasm::fma_16(a, b, acc);
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    for ((a, b), acc) in a.iter().zip(b).zip(acc) {
        *acc = fma(*a, *b, *acc);
    }
}

/// One word of codes of each row of a group: four codes a row.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub struct Line(pub [u32; GROUP]);

/// A group of 16 rows: as many blocks as `scales` has.
///
/// The codes of the 8-bit format are held with 128 added, since the fastest dot product takes unsigned weights.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// The blocks' format.
    pub format: Format,
    /// Codes, `[n_blocks, code_words]`.
    pub codes: &'a [Line],
    /// Scales as f16 bits, `[n_blocks]`.
    pub scales: &'a [[u16; GROUP]],
    /// Minima as f16 bits, `[n_blocks]` for the format that has them, else empty.
    pub minima: &'a [[u16; GROUP]],
}

/// A block of activations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Activations {
    /// Signed 8-bit codes, four a word.
    pub codes: [u32; 8],
    /// The block's scale.
    pub scale: f32,
    /// The sum of the codes.
    pub sum: f32,
}

/// Adds the products of every block of `group` with every token to `acc`: the vector over the rows at
/// `[b % lanes, token]` takes up block `b`. `x` is `[n_blocks, n_tokens]`, `acc` is `[lanes, n_tokens]`.
pub fn accumulate(group: Group<'_>, x: &[Activations], n_tokens: usize, acc: &mut [[f32; GROUP]]) {
    // The kernels take their lengths from these, so a wrong one is an error here and nowhere else.
    let n_blocks = group.scales.len();
    assert_eq!(group.codes.len(), n_blocks * group.format.code_words());
    assert_eq!(x.len(), n_blocks * n_tokens);
    if n_tokens == 0 || n_blocks == 0 {
        return;
    }
    match group.format {
        Format::Q8 => accumulate_format::<true, false>(group, x, n_tokens, acc),
        Format::Q4 => accumulate_format::<false, false>(group, x, n_tokens, acc),
        Format::Q4Min => accumulate_format::<false, true>(group, x, n_tokens, acc),
    }
}

fn accumulate_format<const Q8: bool, const MIN: bool>(
    group: Group<'_>,
    x: &[Activations],
    n_tokens: usize,
    acc: &mut [[f32; GROUP]],
) {
    #[cfg(target_arch = "x86_64")]
    match level() {
        Level::Plain => plain::accumulate::<Q8, MIN>(group, x, n_tokens, acc),
        // SAFETY: `level` never answers more than this machine has.
        Level::Avx2 => unsafe { x86::accumulate_avx2::<Q8, MIN>(group, x, n_tokens, acc) },
        // SAFETY: as above.
        Level::AvxVnni => unsafe { x86::accumulate_avx_vnni::<Q8, MIN>(group, x, n_tokens, acc) },
        // SAFETY: as above.
        Level::Avx512Vnni => unsafe { x86::accumulate_avx512_vnni::<Q8, MIN>(group, x, n_tokens, acc) },
    }
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    wasm::accumulate::<Q8, MIN>(group, x, n_tokens, acc);
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "wasm32", target_feature = "simd128"))))]
    plain::accumulate::<Q8, MIN>(group, x, n_tokens, acc);
}

/// The kernel in plain Rust, in the shape that compilers turn into vector code.
#[allow(dead_code, reason = "WebAssembly with vectors has its own")]
mod plain {
    use super::*;

    pub fn accumulate<const Q8: bool, const MIN: bool>(
        group: Group<'_>,
        x: &[Activations],
        n_tokens: usize,
        acc: &mut [[f32; GROUP]],
    ) {
        let lanes = acc.len() / n_tokens;
        for (b, x) in x.chunks_exact(n_tokens).enumerate() {
            // The codes with their sign, `[word, byte, row]`.
            let mut w = [[[0i16; GROUP]; 4]; 8];
            let code_words = group.format.code_words();
            for (i, line) in group.codes[b * code_words..][..code_words].iter().enumerate() {
                for (row, word) in line.0.iter().enumerate() {
                    for (j, byte) in word.to_le_bytes().into_iter().enumerate() {
                        if Q8 {
                            w[i][j][row] = i16::from(byte) - 128;
                        } else {
                            let zero = if MIN { 0 } else { 8 };
                            w[i][j][row] = i16::from(byte & 15) - zero;
                            w[4 + i][j][row] = i16::from(byte >> 4) - zero;
                        }
                    }
                }
            }
            let d = group.scales[b].map(f16_to_f32);
            let m = if MIN { group.minima[b].map(f16_to_f32) } else { [0.0; GROUP] };
            for (x, acc) in x.iter().zip(&mut acc[b % lanes * n_tokens..][..n_tokens]) {
                let mut dot = [0i32; GROUP];
                for (w, a) in w.iter().zip(x.codes) {
                    for (w, a) in w.iter().zip(a.to_le_bytes()) {
                        for (dot, w) in dot.iter_mut().zip(w) {
                            *dot += i32::from(*w) * i32::from(a as i8);
                        }
                    }
                }
                for (row, acc) in acc.iter_mut().enumerate() {
                    *acc = if MIN {
                        fma(x.scale, fma(dot[row] as f32, d[row], m[row] * x.sum), *acc)
                    } else {
                        fma(dot[row] as f32, d[row] * x.scale, *acc)
                    };
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    /// # Safety
    /// The machine must have the features named here.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
    pub unsafe fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    /// # Safety
    /// The machine must have the features named here.
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    /// 8 floats.
    #[inline]
    #[target_feature(enable = "avx")]
    fn load_8(v: &[f32; 8]) -> __m256 {
        // SAFETY: the array is 32 readable bytes.
        unsafe { _mm256_loadu_ps(v.as_ptr()) }
    }

    /// 8 floats.
    #[inline]
    #[target_feature(enable = "avx")]
    fn store_8(v: &mut [f32; 8], value: __m256) {
        // SAFETY: the array is 32 writable bytes.
        unsafe { _mm256_storeu_ps(v.as_mut_ptr(), value) }
    }

    /// # Safety
    /// The machine must have the features named here.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn dot_keys(q: &[[f32; 4]], k: &[[f32; 128]]) -> [f32; 128] {
        let mut out = [0.0; 128];
        for (half, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let mut acc = [_mm256_setzero_ps(); 8];
            for (&[a, b, c, d], k) in q.iter().zip(k) {
                let q = _mm256_setr_ps(a, b, c, d, a, b, c, d);
                for (acc, k) in acc.iter_mut().zip(&k.as_chunks::<8>().0[8 * half..]) {
                    *acc = _mm256_fmadd_ps(q, load_8(k), *acc);
                }
            }
            for (out, acc) in out.as_chunks_mut().0.iter_mut().zip(acc) {
                store_8(out, acc);
            }
        }
        out
    }

    /// # Safety
    /// The machine must have the features named here.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn add_values(p: &[f32], v: &[f32], acc: &mut [f32]) {
        let head_dim = acc.len();
        let (wide, rest) = acc.as_chunks_mut::<64>();
        for (i, acc) in wide.iter_mut().enumerate() {
            add_columns::<8>(p, v, head_dim, 64 * i, acc.as_chunks_mut().0);
        }
        let first = 64 * wide.len();
        for (i, acc) in rest.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            add_columns::<1>(p, v, head_dim, first + 8 * i, std::slice::from_mut(acc));
        }
    }

    /// The columns from `first` on of [`add_values`], in `N` registers.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn add_columns<const N: usize>(p: &[f32], v: &[f32], head_dim: usize, first: usize, acc: &mut [[f32; 8]]) {
        let mut sums = [_mm256_setzero_ps(); N];
        for (sum, acc) in sums.iter_mut().zip(&*acc) {
            *sum = load_8(acc);
        }
        for (p, v) in p.iter().zip(v.chunks_exact(head_dim)) {
            let p = _mm256_set1_ps(*p);
            for (sum, v) in sums.iter_mut().zip(v[first..].as_chunks().0) {
                *sum = _mm256_fmadd_ps(p, load_8(v), *sum);
            }
        }
        for (acc, sum) in acc.iter_mut().zip(sums) {
            store_8(acc, sum);
        }
    }

    /// A line's vector of 16 rows.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn line_512(line: &Line) -> __m512i {
        // SAFETY: a line is 64 readable bytes, aligned to 64.
        unsafe { _mm512_load_si512((&raw const line.0).cast()) }
    }

    /// 16 values from f16.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn f16_512(bits: &[u16; GROUP]) -> __m512 {
        // SAFETY: the array is 32 readable bytes.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bits.as_ptr().cast()) })
    }

    /// # Safety
    /// The machine must have the features named here.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub unsafe fn accumulate_avx512_vnni<const Q8: bool, const MIN: bool>(
        group: Group<'_>,
        x: &[Activations],
        n_tokens: usize,
        acc: &mut [[f32; GROUP]],
    ) {
        let lanes = acc.len() / n_tokens;
        let low = _mm512_set1_epi8(15);
        // What one unit of the activations' sum must be corrected by, since weights are unsigned here.
        let zero = if Q8 {
            -128
        } else if MIN {
            0
        } else {
            -8
        };
        for (b, x) in x.chunks_exact(n_tokens).enumerate() {
            let mut w = [_mm512_setzero_si512(); 8];
            if Q8 {
                for (w, line) in w.iter_mut().zip(&group.codes[8 * b..8 * b + 8]) {
                    *w = line_512(line);
                }
            } else {
                for (i, line) in group.codes[4 * b..4 * b + 4].iter().enumerate() {
                    let line = line_512(line);
                    w[i] = _mm512_and_si512(line, low);
                    w[4 + i] = _mm512_and_si512(_mm512_srli_epi16::<4>(line), low);
                }
            }
            let d = f16_512(&group.scales[b]);
            let m = if MIN { f16_512(&group.minima[b]) } else { d };
            for (x, acc) in x.iter().zip(&mut acc[b % lanes * n_tokens..][..n_tokens]) {
                let mut dot = _mm512_set1_epi32(zero * x.sum as i32);
                for (w, a) in w.iter().zip(&x.codes) {
                    dot = _mm512_dpbusd_epi32(dot, *w, _mm512_set1_epi32(*a as i32));
                }
                let dot = _mm512_cvtepi32_ps(dot);
                let s = _mm512_set1_ps(x.scale);
                // SAFETY: the accumulator is 64 readable and writable bytes.
                unsafe {
                    let sum = _mm512_loadu_ps(acc.as_ptr());
                    let sum = if MIN {
                        let m = _mm512_mul_ps(m, _mm512_set1_ps(x.sum));
                        _mm512_fmadd_ps(s, _mm512_fmadd_ps(dot, d, m), sum)
                    } else {
                        _mm512_fmadd_ps(dot, _mm512_mul_ps(d, s), sum)
                    };
                    _mm512_storeu_ps(acc.as_mut_ptr(), sum);
                }
            }
        }
    }

    /// Half a line: the vector of 8 rows.
    #[inline]
    #[target_feature(enable = "avx")]
    fn half_line(line: &Line, half: usize) -> __m256i {
        // SAFETY: each half of a line is 32 readable bytes, aligned to 32.
        unsafe { _mm256_load_si256(line.0[8 * half..8 * half + 8].as_ptr().cast()) }
    }

    /// 8 of 16 values from f16.
    #[inline]
    #[target_feature(enable = "avx,f16c")]
    fn half_f16(bits: &[u16; GROUP], half: usize) -> __m256 {
        // SAFETY: each half of the array is 16 readable bytes.
        _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bits[8 * half..8 * half + 8].as_ptr().cast()) })
    }

    /// The dot products of 8 rows' blocks with a block of activations. `w` is unsigned; with `Q8` 128 is in it.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn dot_avx2<const Q8: bool, const MIN: bool>(w: &[__m256i; 8], x: &Activations) -> __m256i {
        let ones = _mm256_set1_epi16(1);
        if Q8 {
            let mut dot = _mm256_setzero_si256();
            for (w, a) in w.iter().zip(&x.codes) {
                // The pair sums fit 16 bits since one factor is at most 127 and the other at most 128.
                let w = _mm256_xor_si256(*w, _mm256_set1_epi8(-128));
                let a = _mm256_sign_epi8(_mm256_set1_epi32(*a as i32), w);
                dot = _mm256_add_epi32(dot, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), a), ones));
            }
            dot
        } else {
            // 16 products of at most 15 * 127 fit 16 bits.
            let mut dot = _mm256_setzero_si256();
            for (w, a) in w.iter().zip(&x.codes) {
                dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(*w, _mm256_set1_epi32(*a as i32)));
            }
            let zero = if MIN { 0 } else { -8 };
            _mm256_add_epi32(_mm256_madd_epi16(dot, ones), _mm256_set1_epi32(zero * x.sum as i32))
        }
    }

    /// As [`dot_avx2`].
    #[inline]
    #[target_feature(enable = "avx2,avxvnni")]
    fn dot_avx_vnni<const Q8: bool, const MIN: bool>(w: &[__m256i; 8], x: &Activations) -> __m256i {
        let zero = if Q8 {
            -128
        } else if MIN {
            0
        } else {
            -8
        };
        let mut dot = _mm256_set1_epi32(zero * x.sum as i32);
        for (w, a) in w.iter().zip(&x.codes) {
            dot = _mm256_dpbusd_avx_epi32(dot, *w, _mm256_set1_epi32(*a as i32));
        }
        dot
    }

    /// The kernel with vectors of 8 rows, which differs between two instruction sets by its dot product alone.
    macro_rules! accumulate_256 {
        ($name:ident, $features:literal, $dot:ident) => {
            /// # Safety
            /// The machine must have the features named here.
            #[target_feature(enable = $features)]
            pub unsafe fn $name<const Q8: bool, const MIN: bool>(
                group: Group<'_>,
                x: &[Activations],
                n_tokens: usize,
                acc: &mut [[f32; GROUP]],
            ) {
                let lanes = acc.len() / n_tokens;
                let low = _mm256_set1_epi8(15);
                for (b, x) in x.chunks_exact(n_tokens).enumerate() {
                    for half in 0..2 {
                        let mut w = [_mm256_setzero_si256(); 8];
                        if Q8 {
                            for (w, line) in w.iter_mut().zip(&group.codes[8 * b..8 * b + 8]) {
                                *w = half_line(line, half);
                            }
                        } else {
                            for (i, line) in group.codes[4 * b..4 * b + 4].iter().enumerate() {
                                let line = half_line(line, half);
                                w[i] = _mm256_and_si256(line, low);
                                w[4 + i] = _mm256_and_si256(_mm256_srli_epi16::<4>(line), low);
                            }
                        }
                        let d = half_f16(&group.scales[b], half);
                        let m = if MIN { half_f16(&group.minima[b], half) } else { d };
                        for (x, acc) in x.iter().zip(&mut acc[b % lanes * n_tokens..][..n_tokens]) {
                            let dot = _mm256_cvtepi32_ps($dot::<Q8, MIN>(&w, x));
                            let s = _mm256_set1_ps(x.scale);
                            let acc = &mut acc[8 * half..8 * half + 8];
                            // SAFETY: this half of the accumulator is 32 readable and writable bytes.
                            unsafe {
                                let sum = _mm256_loadu_ps(acc.as_ptr());
                                let sum = if MIN {
                                    let m = _mm256_mul_ps(m, _mm256_set1_ps(x.sum));
                                    _mm256_fmadd_ps(s, _mm256_fmadd_ps(dot, d, m), sum)
                                } else {
                                    _mm256_fmadd_ps(dot, _mm256_mul_ps(d, s), sum)
                                };
                                _mm256_storeu_ps(acc.as_mut_ptr(), sum);
                            }
                        }
                    }
                }
            }
        };
    }

    accumulate_256!(accumulate_avx2, "avx2,fma,f16c", dot_avx2);
    accumulate_256!(accumulate_avx_vnni, "avx2,fma,f16c,avxvnni", dot_avx_vnni);
}

/// `a * b + c`, rounded once; with the feature `unfused`, rounded twice, as GPUs played by a program do.
///
/// On x86 this is one instruction only inside [`dispatch`]; elsewhere it is a slow but equal call.
#[cfg(not(target_arch = "wasm32"))]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(feature = "unfused") { a * b + c } else { a.mul_add(b, c) }
}

/// `a * b + c`, rounded once.
///
/// WebAssembly has no such instruction. The product is exact in f64, so only a sum that lies halfway between two
/// f32 values can be rounded wrongly by rounding twice; that case is nudged towards the true sum (as musl does).
#[cfg(target_arch = "wasm32")]
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    if sum.to_bits() & 0x1fff_ffff == 0x1000_0000 { fma_halfway(product, c, sum) } else { sum as f32 }
}

/// The rare half of [`fma`]: `sum` is `product + c` rounded to f64, halfway between two f32 values.
#[cfg(any(target_arch = "wasm32", test))]
#[cold]
pub(super) fn fma_halfway(product: f64, c: f64, sum: f64) -> f32 {
    if !sum.is_finite() || (sum - product == c && sum - c == product) {
        return sum as f32;
    }
    let negative = sum < 0.0;
    let error = if negative == (c > product) { product - sum + c } else { c - sum + product };
    let bits = sum.to_bits();
    f64::from_bits(if negative == (error < 0.0) { bits + 1 } else { bits - 1 }) as f32
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm {
    use super::*;
    use std::arch::wasm32::*;

    /// `a * b + c` in each lane, rounded once (see [`super::fma`]).
    #[inline(always)]
    fn fma_4(a: v128, b: v128, c: v128) -> v128 {
        let half = |a: v128, b: v128, c: v128| {
            let product = f64x2_mul(f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(b));
            let c = f64x2_promote_low_f32x4(c);
            let sum = f64x2_add(product, c);
            let tail = v128_and(sum, u64x2_splat(0x1fff_ffff));
            if !v128_any_true(u64x2_eq(tail, u64x2_splat(0x1000_0000))) {
                return f32x4_demote_f64x2_zero(sum);
            }
            let fix = |product: f64, c: f64, sum: f64| {
                if sum.to_bits() & 0x1fff_ffff == 0x1000_0000 { fma_halfway(product, c, sum) } else { sum as f32 }
            };
            f32x4(
                fix(f64x2_extract_lane::<0>(product), f64x2_extract_lane::<0>(c), f64x2_extract_lane::<0>(sum)),
                fix(f64x2_extract_lane::<1>(product), f64x2_extract_lane::<1>(c), f64x2_extract_lane::<1>(sum)),
                0.0,
                0.0,
            )
        };
        let high = |v: v128| i64x2_shuffle::<1, 1>(v, v);
        i64x2_shuffle::<0, 2>(half(a, b, c), half(high(a), high(b), high(c)))
    }

    /// See [`super::fma_16`].
    #[inline(always)]
    pub fn fma_16(a: &[f32; 16], b: &[f32; 16], acc: &mut [f32; 16]) {
        let four = |v: &[f32; 4]| f32x4(v[0], v[1], v[2], v[3]);
        let parts = a.as_chunks().0.iter().zip(b.as_chunks().0).zip(acc.as_chunks_mut().0);
        for ((a, b), acc) in parts {
            *acc = lanes_4(fma_4(four(a), four(b), four(acc)));
        }
    }

    /// The four lanes of a vector.
    #[inline(always)]
    fn lanes_4(v: v128) -> [f32; 4] {
        [f32x4_extract_lane::<0>(v), f32x4_extract_lane::<1>(v), f32x4_extract_lane::<2>(v), f32x4_extract_lane::<3>(v)]
    }

    /// Four rows of a line.
    #[inline(always)]
    fn quarter_line(line: &Line, quarter: usize) -> v128 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| line.0[4 * quarter + i]);
        u32x4(a, b, c, d)
    }

    pub fn accumulate<const Q8: bool, const MIN: bool>(
        group: Group<'_>,
        x: &[Activations],
        n_tokens: usize,
        acc: &mut [[f32; GROUP]],
    ) {
        let lanes = acc.len() / n_tokens;
        for (b, x) in x.chunks_exact(n_tokens).enumerate() {
            let d = group.scales[b].map(f16_to_f32);
            let m = if MIN { group.minima[b].map(f16_to_f32) } else { [0.0; GROUP] };
            for quarter in 0..4 {
                // The signed codes of four rows in 16 bits: two rows in each vector.
                let mut w = [[i16x8_splat(0); 2]; 8];
                let widen = |w: v128| [i16x8_extend_low_i8x16(w), i16x8_extend_high_i8x16(w)];
                if Q8 {
                    for (w, line) in w.iter_mut().zip(&group.codes[8 * b..8 * b + 8]) {
                        *w = widen(v128_xor(quarter_line(line, quarter), u8x16_splat(128)));
                    }
                } else {
                    let zero = i8x16_splat(if MIN { 0 } else { 8 });
                    for (i, line) in group.codes[4 * b..4 * b + 4].iter().enumerate() {
                        let line = quarter_line(line, quarter);
                        w[i] = widen(i8x16_sub(v128_and(line, u8x16_splat(15)), zero));
                        w[4 + i] = widen(i8x16_sub(u8x16_shr(line, 4), zero));
                    }
                }
                let four = |v: &[f32; GROUP]| {
                    f32x4(v[4 * quarter], v[4 * quarter + 1], v[4 * quarter + 2], v[4 * quarter + 3])
                };
                let (d, m) = (four(&d), four(&m));
                for (x, acc) in x.iter().zip(&mut acc[b % lanes * n_tokens..][..n_tokens]) {
                    let (mut first, mut second) = (i32x4_splat(0), i32x4_splat(0));
                    for (w, a) in w.iter().zip(&x.codes) {
                        let a = i16x8_extend_low_i8x16(u32x4_splat(*a));
                        first = i32x4_add(first, i32x4_dot_i16x8(w[0], a));
                        second = i32x4_add(second, i32x4_dot_i16x8(w[1], a));
                    }
                    // A row's dot product lies in two neighbouring lanes.
                    let even = i32x4_shuffle::<0, 2, 4, 6>(first, second);
                    let odd = i32x4_shuffle::<1, 3, 5, 7>(first, second);
                    let dot = f32x4_convert_i32x4(i32x4_add(even, odd));
                    let s = f32x4_splat(x.scale);
                    let sum = four(acc);
                    let sum = if MIN {
                        fma_4(s, fma_4(dot, d, f32x4_mul(m, f32x4_splat(x.sum))), sum)
                    } else {
                        fma_4(dot, f32x4_mul(d, s), sum)
                    };
                    acc[4 * quarter..4 * quarter + 4].copy_from_slice(&lanes_4(sum));
                }
            }
        }
    }
}
