//! What is kept of a calibration, and what follows from its measurements: no GPU and no clock in here.
//!
//! A calibration takes a second or so, and holds as long as adapter, model and build stay the same. It is stored as a
//! line of JSON that names all three. Where it is stored others may write, so whatever is read is checked.

use serde::{Deserialize, Serialize};

use super::controller::Costs;
use super::step::BUCKETS;

/// Grows when a stored calibration means something else than it did.
const FORMAT: u32 = 1;
/// Bytes that a stored calibration may have.
const MAX_BYTES: usize = 16 << 10;
/// Milliseconds that a step may take, to be believed.
const MAX_MS: f64 = 1e7;
/// Steps of a window, and windows in flight, that may be chosen.
const MOST: usize = 4;

/// What a calibration was made with. A stored one fits if all three are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The adapter and the API behind it.
    pub adapter: String,
    /// The model: what tells its weights and its shape from those of others.
    pub model: String,
    /// The build of the engine, whose kernels were timed.
    pub build: String,
}

/// What was found out about this device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Milliseconds of a step of each width.
    pub costs: Costs,
    /// Steps of a window and windows in flight, where they were measured.
    pub window: Option<(usize, usize)>,
}

/// A calibration as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    key: Key,
    /// `null` for a width that is not used.
    ms: [Option<f64>; BUCKETS.len()],
    window: Option<(usize, usize)>,
}

impl Calibration {
    /// The calibration as JSON, to be stored for `key`.
    pub fn to_bytes(&self, key: &Key) -> Vec<u8> {
        let ms = self.costs.ms.map(|ms| Some(ms).filter(|ms| is_time(*ms)));
        let stored = Stored { format: FORMAT, key: key.clone(), ms, window: self.window };
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// A stored calibration, if it was made with this very key and can be true. The bytes may be anything.
    pub fn from_bytes(bytes: &[u8], key: &Key) -> Option<Calibration> {
        if bytes.len() > MAX_BYTES {
            return None;
        }
        let stored: Stored = serde_json::from_slice(bytes).ok()?;
        let fits = stored.format == FORMAT && stored.key == *key;
        // Without the time of a plain step there is nothing to compare with.
        let is_whole = stored.ms[0].is_some() && stored.ms.iter().flatten().all(|ms| is_time(*ms));
        let counts = |n: usize| (1..=MOST).contains(&n);
        let has_window = stored.window.is_none_or(|(steps, flying)| counts(steps) && counts(flying));
        let costs = Costs { ms: stored.ms.map(|ms| ms.unwrap_or(f64::INFINITY)) };
        (fits && is_whole && has_window).then_some(Calibration { costs, window: stored.window })
    }
}

/// Whether a step can take so many milliseconds.
fn is_time(ms: f64) -> bool {
    ms > 0.0 && ms <= MAX_MS
}

/// The least ahead-of-time work (steps of a window times windows in flight) within 10 % of the fastest, from
/// measurements of `(steps, in flight, milliseconds a token)`; `(1, 2)` where there are none. Of equal work the
/// smaller window, whose width is the fresher one. Source: the paper's section on feedback control.
pub fn choose_window(measured: &[(usize, usize, f64)]) -> (usize, usize) {
    let measured = measured.iter().filter(|(steps, flying, ms)| *steps > 0 && *flying > 0 && is_time(*ms));
    let fastest = measured.clone().map(|(.., ms)| *ms).fold(f64::INFINITY, f64::min);
    let near = measured.filter(|(.., ms)| *ms <= 1.1 * fastest);
    near.min_by_key(|(steps, flying, _)| (steps.saturating_mul(*flying), *steps))
        .map_or((1, 2), |(steps, flying, _)| (*steps, *flying))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Key {
        Key { adapter: "a \"card\" / vulkan".into(), model: "m".into(), build: "0.1.0".into() }
    }

    #[test]
    fn the_least_work_near_the_fastest() {
        let check = |measured: &[_], chosen| assert_eq!(choose_window(measured), chosen, "{measured:?}");
        check(&[], (1, 2));
        check(&[(1, 2, 2.0), (2, 2, 1.85), (4, 2, 1.83)], (1, 2));
        check(&[(1, 2, 3.0), (1, 3, 2.4), (1, 4, 2.0), (2, 2, 2.0), (4, 4, 1.9)], (1, 4));
        check(&[(4, 2, 1.0), (2, 4, 1.0), (4, 4, 1.0)], (2, 4));
        check(&[(1, 2, f64::NAN), (2, 2, 0.0), (2, 3, -1.0), (0, 2, 0.1), (4, 3, 1.0)], (4, 3));
        check(&[(usize::MAX, usize::MAX, 1.0)], (usize::MAX, usize::MAX));
    }

    #[test]
    fn another_adapter_model_or_build_has_none() {
        let found = Calibration { costs: Costs { ms: [1.0, 1.5, 2.0, 3.0, 5.0, f64::INFINITY] }, window: Some((2, 3)) };
        let bytes = found.to_bytes(&key());
        assert_eq!(Calibration::from_bytes(&bytes, &key()), Some(found));
        for other in [
            Key { adapter: String::new(), ..key() },
            Key { model: "n".into(), ..key() },
            Key { build: "0.1.1".into(), ..key() },
        ] {
            assert_eq!(Calibration::from_bytes(&bytes, &other), None);
        }
    }

    #[test]
    fn nonsense_is_none() {
        let text =
            String::from_utf8(Calibration { costs: Costs { ms: [1.5; 6] }, window: Some((2, 3)) }.to_bytes(&key()))
                .unwrap();
        assert!(Calibration::from_bytes(text.as_bytes(), &key()).is_some());
        for (from, to) in [
            ("\"format\":1", "\"format\":2"),
            ("[1.5,", "[null,"),
            ("[1.5,", "[0,"),
            ("[1.5,", "[-1.5,"),
            ("[1.5,", "[1e300,"),
            ("[1.5,", "[1e999,"),
            ("[1.5,", "["),
            ("[1.5,", "[1.5,1.5,"),
            ("[2,3]", "[0,3]"),
            ("[2,3]", "[2,5]"),
            ("[2,3]", "[2]"),
            ("[2,3]", "[-1,3]"),
            ("[2,3]", "[2,18446744073709551616]"),
            ("{\"format\"", "{\"more\":0,\"format\""),
            ("{\"format\"", "{\"format\":1,\"format\""),
        ] {
            assert!(text.contains(from), "{from} in {text}");
            let changed = text.replacen(from, to, 1);
            assert_eq!(Calibration::from_bytes(changed.as_bytes(), &key()), None, "{changed}");
        }
        for bytes in [text.repeat(2).into_bytes(), vec![b'['; 10_000], vec![b' '; MAX_BYTES + 1], Vec::new()] {
            assert_eq!(Calibration::from_bytes(&bytes, &key()), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            ms in prop::array::uniform6(prop_oneof![3 => 1e-3f64..1e6, 1 => Just(f64::INFINITY), 1 => Just(f64::NAN)]),
            first in 1e-3f64..1e6,
            window in prop::option::of((1usize..=4, 1usize..=4)),
            adapter in any::<String>(), model in any::<String>(), build in any::<String>(),
        ) {
            let mut ms = ms;
            ms[0] = first;
            let key = Key { adapter, model, build };
            let bytes = Calibration { costs: Costs { ms }, window }.to_bytes(&key);
            let read = Calibration::from_bytes(&bytes, &key).unwrap();
            prop_assert_eq!(read.window, window);
            for (written, read) in ms.into_iter().zip(read.costs.ms) {
                // Decimal digits may lose the last bit.
                let near = (read - written).abs() <= 1e-12 * written;
                prop_assert!(near || !written.is_finite() && read.is_infinite());
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Calibration::from_bytes(&bytes, &key()), None);
        }

        #[test]
        fn any_change_of_a_byte_gives_nothing_false(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let found = Calibration { costs: Costs { ms: [1.5; 6] }, window: Some((2, 3)) };
            let mut bytes = found.to_bytes(&key());
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Some(read) = Calibration::from_bytes(&bytes, &key()) {
                prop_assert!(read.costs.ms.iter().all(|ms| *ms > 0.0) && read.costs.ms[0].is_finite());
            }
        }
    }
}
