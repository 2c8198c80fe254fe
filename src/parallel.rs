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

/// Calls `visit(row, first's row, second's row)` for every row and answers one row for which it answered true, if any;
/// rows behind it may then be left unvisited. Each side comes with the length of its rows.
#[cfg(not(target_arch = "wasm32"))]
pub fn find_row<A: Send, B: Send>(
    (first, a): (&mut [A], usize),
    (second, b): (&mut [B], usize),
    visit: impl Fn(usize, &mut [A], &mut [B]) -> bool + Sync,
) -> Option<usize> {
    use rayon::prelude::*;
    // Sixteen rows a task keep the cost of a task small beside its work.
    first
        .par_chunks_exact_mut(a.max(1))
        .zip(second.par_chunks_exact_mut(b.max(1)))
        .enumerate()
        .with_min_len(16)
        .find_map_any(|(row, (a, b))| visit(row, a, b).then_some(row))
}

/// Calls `visit(row, first's row, second's row)` for every row and answers the first row for which it answered true.
#[cfg(target_arch = "wasm32")]
pub fn find_row<A, B>(
    (first, a): (&mut [A], usize),
    (second, b): (&mut [B], usize),
    visit: impl Fn(usize, &mut [A], &mut [B]) -> bool,
) -> Option<usize> {
    first
        .chunks_exact_mut(a.max(1))
        .zip(second.chunks_exact_mut(b.max(1)))
        .enumerate()
        .find_map(|(row, (a, b))| visit(row, a, b).then_some(row))
}
