//! Calibration.

/// The least ahead-of-time work (steps of a window times windows in flight) within 10 % of the fastest, from
/// measurements of `(steps, in flight, milliseconds a token)`; `(1, 2)` where there are none.
pub fn choose_window(measured: &[(usize, usize, f64)]) -> (usize, usize) {
    let fastest = measured.iter().map(|(.., ms)| *ms).fold(f64::INFINITY, f64::min);
    let near = measured.iter().filter(|(.., ms)| *ms <= 1.1 * fastest);
    near.min_by_key(|(steps, flying, _)| (steps * flying, *steps))
        .map_or((1, 2), |(steps, flying, _)| (*steps, *flying))
}
