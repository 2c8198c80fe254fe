//! Work spread over threads, natively.
//!
//! In a browser there is one thread, and the same work is done in turn. Each piece of work writes its own part of the
//! result, so the result's bits do not depend on who did what.

/// Calls `f(i, chunk)` for the chunks of `data` of `chunk_len` elements (the last may be shorter), in no order.
#[cfg(not(target_arch = "wasm32"))]
pub fn for_each_chunk<T: Send>(data: &mut [T], chunk_len: usize, f: impl Fn(usize, &mut [T]) + Sync + Send) {
    use rayon::prelude::*;
    if data.len() <= chunk_len {
        if !data.is_empty() {
            f(0, data);
        }
        return;
    }
    data.par_chunks_mut(chunk_len.max(1)).enumerate().for_each(|(i, chunk)| f(i, chunk));
}

/// Calls `f(i, chunk)` for the chunks of `data` of `chunk_len` elements (the last may be shorter), in order.
#[cfg(target_arch = "wasm32")]
pub fn for_each_chunk<T: Send>(data: &mut [T], chunk_len: usize, f: impl Fn(usize, &mut [T]) + Sync + Send) {
    data.chunks_mut(chunk_len.max(1)).enumerate().for_each(|(i, chunk)| f(i, chunk));
}

/// Runs `f` on one of the threads that share the work, so that handing it out costs less.
#[cfg(not(target_arch = "wasm32"))]
pub fn inside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| f())
}

/// Runs `f`.
#[cfg(target_arch = "wasm32")]
pub fn inside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    f()
}
