//! Twin of the `threshold` kernel: which logits min-p, top-k and top-p leave.

use super::numbers::exp;
use crate::decoder::sampler::Sampling;

/// A logit's bits in the order of the logits: equal where these are, and 0 where this is no number.
pub fn key_of(logit: f32) -> u32 {
    match logit.to_bits() {
        _ if logit.is_nan() => 0,
        bits if bits > 0x8000_0000 => !bits,
        bits => bits | 0x8000_0000,
    }
}

/// The logit of a key.
pub fn logit_of(key: u32) -> f32 {
    f32::from_bits(if key >= 0x8000_0000 { key & 0x7fff_ffff } else { !key })
}

/// The lowest key of `logits`, `[vocab_size]`, that is left. Where the kernel selects a byte at a time, this sorts: all
/// sums are of integers and have no order.
pub fn threshold(logits: &[f32], sampling: &Sampling) -> u32 {
    let largest = logit_of(logits.iter().map(|logit| key_of(*logit)).max().unwrap_or(0));
    let mut threshold = key_of(largest + sampling.min_p_below).max(1);
    if sampling.top_k > 0 && (sampling.top_k as usize) <= logits.len() {
        let mut keys: Vec<u32> = logits.iter().map(|logit| key_of(*logit)).collect();
        let at = keys.len() - sampling.top_k as usize;
        threshold = threshold.max(*keys.select_nth_unstable(at).1);
    }
    if sampling.top_p < 65_536 {
        let mass_of = |logit: f32| -> u64 {
            let x = (logit - largest) * sampling.inverse_temperature;
            // 2^28 e^-19.5 is below 1.
            if x < -19.5 { 0 } else { ((exp(x) * (1u32 << 28) as f32) as u64).min((1 << 28) - 1) }
        };
        let left = logits.iter().map(|logit| (key_of(*logit), *logit)).filter(|(key, _)| *key >= threshold);
        let mut masses: Vec<(u32, u64)> = left.map(|(key, logit)| (key, mass_of(logit))).collect();
        masses.retain(|(_, mass)| *mass > 0);
        let total: u64 = masses.iter().map(|(_, mass)| mass).sum();
        // In the unit in which all of it fits 31 bits.
        let shift = (64 - total.leading_zeros()).max(31) - 31;
        let total: u64 = masses.iter().map(|(_, mass)| mass >> shift).sum();
        let wanted = ((total * u64::from(sampling.top_p)) >> 16).max(1);
        masses.sort_unstable_by_key(|(key, _)| std::cmp::Reverse(*key));
        let mut sum = 0;
        let reached = masses.iter().find(|(_, mass)| {
            sum += mass >> shift;
            sum >= wanted
        });
        threshold = threshold.max(reached.map_or(0, |(key, _)| *key));
    }
    threshold
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::sampler::SamplingOptions;

    fn kept(logits: &[f32], options: SamplingOptions) -> Vec<usize> {
        let options = SamplingOptions {
            temperature: if options.temperature == 0.0 { 1.0 } else { options.temperature },
            ..options
        };
        let threshold = threshold(logits, &options.resolve(logits.len()).unwrap().unwrap());
        (0..logits.len()).filter(|i| key_of(logits[*i]) >= threshold).collect()
    }

    #[test]
    fn keys_are_in_the_order_of_the_logits() {
        let logits = [f32::NEG_INFINITY, -1e30, -1.0, -1e-40, 0.0, 1e-40, 1.0, 1e30, f32::INFINITY];
        assert!(logits.windows(2).all(|pair| key_of(pair[0]) < key_of(pair[1])));
        assert_eq!((key_of(-0.0), key_of(f32::NAN)), (key_of(0.0), 0));
        assert!(logits.iter().all(|logit| logit_of(key_of(*logit)) == *logit));
    }

    #[test]
    fn leaves_what_was_asked_for() {
        let plain = SamplingOptions::default;
        // Probabilities of 0.4, 0.2, 0.2, 0.1, 0.05, 0.05.
        let logits: Vec<f32> = [0.2f32, 0.4, 0.05, 0.2, 0.1, 0.05].iter().map(|p| p.ln()).collect();
        let all = [0, 1, 2, 3, 4, 5];
        for (top_k, want) in [(0, &all[..]), (1, &[1]), (2, &[0, 1, 3]), (3, &[0, 1, 3]), (4, &[0, 1, 3, 4]), (9, &all)]
        {
            assert_eq!(kept(&logits, SamplingOptions { top_k, ..plain() }), want, "top_k {top_k}");
        }
        for (top_p, want) in
            [(0.01, &[1][..]), (0.39, &[1]), (0.41, &[0, 1, 3]), (0.79, &[0, 1, 3]), (0.85, &[0, 1, 3, 4]), (1.0, &all)]
        {
            assert_eq!(kept(&logits, SamplingOptions { top_p, ..plain() }), want, "top_p {top_p}");
        }
        for (min_p, want) in [(0.0, &all[..]), (0.1, &all), (0.24, &[0, 1, 3, 4]), (0.6, &[1]), (1.0, &[1])] {
            assert_eq!(kept(&logits, SamplingOptions { min_p, ..plain() }), want, "min_p {min_p}");
        }
        // top_p counts among those that the others leave, at the temperature.
        assert_eq!(kept(&logits, SamplingOptions { top_p: 0.49, top_k: 3, ..plain() }), [1]);
        assert_eq!(kept(&logits, SamplingOptions { top_p: 0.6, temperature: 0.5, ..plain() }), [1]);
        assert_eq!(kept(&logits, SamplingOptions { min_p: 0.3, temperature: 2.0, ..plain() }), all);
        let none = [f32::NAN; 3];
        assert_eq!(kept(&none, SamplingOptions { top_p: 0.5, top_k: 2, min_p: 0.1, ..plain() }), [0; 0]);
    }
}
