//! Rows over threads natively, one after the other in the browser.

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
