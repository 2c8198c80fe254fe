//! The one place that names instruction sets: which one this machine has, and code compiled for it.
#![allow(unsafe_code)]

/// Runs `f` compiled for the best instruction set of this machine.
///
/// `f` must be an `#[inline(always)]` closure over `#[inline(always)]` functions: only what is inlined is compiled
/// anew. The result's bits do not depend on the instruction set, since the compiler neither fuses nor reorders
/// floating-point operations on its own.
#[inline(always)]
pub fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    f()
}
