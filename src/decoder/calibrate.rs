//! What is kept of a calibration, and what follows from its measurements: no GPU and no clock in here.
//!
//! A calibration takes a second or so, and holds as long as adapter, model and build stay the same. It is kept as a line
//! of JSON that names all three. Where it is kept others may write, so whatever is read is checked.

use serde::{Deserialize, Serialize};

use super::controller::Costs;
use super::step::BUCKETS;

/// Grows when a stored calibration means something else than it did.
const FORMAT: u32 = 1;
/// Calibrations that are kept, and bytes of them that are read.
const MAX_KEPT: usize = 64;
const MAX_BYTES: usize = 64 << 10;
/// Milliseconds that a step may take, to be believed.
const MAX_MS: f64 = 1e7;
/// Steps of a window, and windows in flight, that may be chosen.
const MOST: usize = 4;

/// What a calibration was made with. A stored one fits if all three are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The adapter, the API behind it, and what of it the kernels use.
    pub adapter: String,
    /// The model: what tells its shape, its formats and its context from those of others.
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
    /// Whether the fused plan was timed, which may have been chosen for being the faster one.
    pub is_fused: bool,
}

/// A calibration as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    key: Key,
    /// `null` for a width that is not used.
    ms: [Option<f64>; BUCKETS.len()],
    window: Option<(usize, usize)>,
    is_fused: bool,
}

impl Stored {
    /// Whether it can be true.
    fn is_sane(&self) -> bool {
        // Without the time of a plain step there is nothing to compare with.
        let is_whole = self.ms[0].is_some() && self.ms.iter().flatten().all(|ms| is_time(*ms));
        let counts = |n: usize| (1..=MOST).contains(&n);
        self.format == FORMAT && is_whole && self.window.is_none_or(|(steps, flying)| counts(steps) && counts(flying))
    }
}

/// Calibrations of earlier loads, with any adapters and models, the newest last; at most 64.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibrations {
    kept: Vec<Stored>,
}

impl Calibrations {
    /// What [`Calibrations::to_bytes`] wrote. The bytes may be anything: lines that make no sense are left out.
    pub fn from_bytes(bytes: &[u8]) -> Calibrations {
        let mut read = Calibrations::default();
        if bytes.len() <= MAX_BYTES {
            let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
            lines.filter(Stored::is_sane).for_each(|stored| read.put(stored));
        }
        read
    }

    /// A line of JSON for each calibration.
    pub fn to_bytes(&self) -> Vec<u8> {
        let lines = self.kept.iter().filter_map(|stored| serde_json::to_string(stored).ok());
        lines.flat_map(|line| (line + "\n").into_bytes()).collect()
    }

    /// What was found out with this very key.
    pub fn get(&self, key: &Key) -> Option<Calibration> {
        let stored = self.kept.iter().find(|stored| stored.key == *key)?;
        let costs = Costs { ms: stored.ms.map(|ms| ms.unwrap_or(f64::INFINITY)) };
        Some(Calibration { costs, window: stored.window, is_fused: stored.is_fused })
    }

    /// Keeps what was found out, in the place of what was known with this key. The oldest ones give way.
    pub fn insert(&mut self, key: Key, found: &Calibration) {
        let ms = found.costs.ms.map(|ms| Some(ms).filter(|ms| is_time(*ms)));
        let stored = Stored { format: FORMAT, key, ms, window: found.window, is_fused: found.is_fused };
        if stored.is_sane() {
            self.put(stored);
        }
    }

    fn put(&mut self, stored: Stored) {
        self.kept.retain(|other| other.key != stored.key);
        self.kept.push(stored);
        let too_many = self.kept.len().saturating_sub(MAX_KEPT);
        self.kept.drain(..too_many);
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

    fn found() -> Calibration {
        Calibration {
            costs: Costs { ms: [1.0, 1.5, 2.0, 3.0, 5.0, f64::INFINITY] },
            window: Some((2, 3)),
            is_fused: true,
        }
    }

    /// The bytes of one calibration.
    fn bytes(found: &Calibration) -> Vec<u8> {
        let mut known = Calibrations::default();
        known.insert(key(), found);
        known.to_bytes()
    }

    fn read(bytes: &[u8]) -> Option<Calibration> {
        Calibrations::from_bytes(bytes).get(&key())
    }

    #[test]
    fn another_adapter_model_or_build_has_none() {
        let known = Calibrations::from_bytes(&bytes(&found()));
        assert_eq!(known.get(&key()), Some(found()));
        for other in [
            Key { adapter: String::new(), ..key() },
            Key { model: "n".into(), ..key() },
            Key { build: "0.1.1".into(), ..key() },
        ] {
            assert_eq!(known.get(&other), None);
        }
    }

    #[test]
    fn the_newest_stay() {
        let mut known = Calibrations::default();
        let named = |i: usize| Key { model: i.to_string(), ..key() };
        for i in 0..=MAX_KEPT {
            known.insert(named(i), &found());
            known.insert(named(1), &Calibration { window: None, ..found() });
        }
        let known = Calibrations::from_bytes(&known.to_bytes());
        assert_eq!(known.kept.len(), MAX_KEPT);
        assert_eq!(known.get(&named(0)), None);
        assert_eq!(known.get(&named(1)), Some(Calibration { window: None, ..found() }));
        assert_eq!(known.get(&named(MAX_KEPT)), Some(found()));
        assert!(known.to_bytes().len() < MAX_BYTES / 2, "all that are kept are read again");
    }

    #[test]
    fn nonsense_is_none() {
        let text = String::from_utf8(bytes(&Calibration { costs: Costs { ms: [1.5; 6] }, ..found() })).unwrap();
        assert!(read(text.as_bytes()).is_some());
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
            assert_eq!(read(changed.as_bytes()), None, "{changed}");
            // A bad line takes none with it.
            assert!(read((changed + &text).as_bytes()).is_some());
        }
        for bytes in [text.trim().repeat(2).into_bytes(), vec![b'['; 10_000], vec![b' '; MAX_BYTES + 1], Vec::new()] {
            assert_eq!(read(&bytes), None);
        }
        assert_eq!(
            Calibrations::from_bytes(&bytes(&Calibration { costs: Costs { ms: [f64::NAN; 6] }, ..found() })),
            Calibrations::default()
        );
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
            let mut known = Calibrations::default();
            known.insert(key.clone(), &Calibration { costs: Costs { ms }, window, is_fused: false });
            let read = Calibrations::from_bytes(&known.to_bytes()).get(&key).unwrap();
            prop_assert_eq!(read.window, window);
            for (written, read) in ms.into_iter().zip(read.costs.ms) {
                // Decimal digits may lose the last bit.
                let near = (read - written).abs() <= 1e-12 * written;
                prop_assert!(near || !written.is_finite() && read.is_infinite());
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Calibrations::from_bytes(&bytes), Calibrations::default());
        }

        #[test]
        fn any_change_of_a_byte_gives_nothing_false(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = bytes(&found());
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Some(read) = read(&bytes) {
                prop_assert!(read.costs.ms.iter().all(|ms| *ms > 0.0) && read.costs.ms[0].is_finite());
            }
        }
    }
}
