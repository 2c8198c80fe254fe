//! Tests: the controller against made-up texts, on the paper's cost curves.

use proptest::prelude::*;

use super::*;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn pick(&mut self, weights: &[f64]) -> usize {
        let mut rest = self.roll() * weights.iter().sum::<f64>();
        weights
            .iter()
            .position(|weight| {
                rest -= weight;
                rest < 0.0
            })
            .unwrap_or(weights.len() - 1)
    }
}

/// What a step at one position of a text would draft.
#[derive(Clone, Copy)]
struct Place {
    match_length: u8,
    /// Nodes of the accepted path in the widest tree.
    path: u32,
}

/// Where a tree's nodes stand: the likeliest chain's node at each depth, and the second guess's.
const CHAIN: [u32; 8] = [1, 2, 4, 5, 6, 8, 9, 12];
const SECOND: [u32; 8] = [3, 7, 10, 11, 13, 14, 16, 17];

impl Place {
    /// A draft whose token at depth `d` is right with chance `hit(d)`, and whose second guess is with a sixth of the rest.
    fn new(dice: &mut Dice, match_length: usize, hit: impl Fn(usize) -> f64) -> Place {
        let mut path = 0;
        for d in 0..8 {
            if dice.roll() < hit(d) {
                path |= 1 << CHAIN[d];
                continue;
            }
            if hit(d) > 0.0 && dice.roll() < hit(d) * 0.25 {
                path |= 1 << SECOND[d];
            }
            break;
        }
        Place { match_length: match_length as u8, path }
    }

    fn path_of(&self, nodes: usize) -> u32 {
        self.path & ((1u64 << nodes) - 1) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Long matches, each token as likely as the first.
    Good,
    /// Long matches that become less likely with depth.
    GoodDeep,
    /// Spans copied from elsewhere with a few new tokens between.
    Copy,
    Fair,
    /// Stretches of so many tokens, good and useless in turn.
    Mixed(usize),
    /// The same, and match lengths do not tell which is which.
    MixedBlind(usize),
    Useless,
    /// Long matches, never right.
    Deceptive,
    /// No match at all.
    Empty,
}

const GOOD: [f64; 9] = [0.01, 0.04, 0.04, 0.04, 0.05, 0.06, 0.08, 0.08, 0.6];
const BAD: [f64; 9] = [0.3, 0.35, 0.2, 0.08, 0.03, 0.01, 0.01, 0.01, 0.01];

fn text(kind: Kind, n_tokens: usize, seed: u64) -> Vec<Place> {
    let mut dice = Dice(seed);
    let n = n_tokens + 16;
    let good = |dice: &mut Dice, decay: f64| {
        let m = dice.pick(&GOOD);
        Place::new(dice, m, |d| if m == 0 { 0.0 } else { (0.5 + 0.05 * m as f64) * decay.powi(d as i32) })
    };
    let useless = |dice: &mut Dice| {
        let m = dice.pick(&BAD);
        Place::new(dice, m, |_| if m == 0 { 0.0 } else { 0.02 })
    };
    if kind == Kind::Copy {
        let mut places = Vec::new();
        while places.len() < n {
            let span = 8 + (dice.roll() * 30.0) as usize;
            for i in 0..span {
                let left = span - i;
                places.push(Place::new(&mut dice, (i + 2).min(8), |d| if d < left { 0.97 } else { 0.05 }));
            }
            for _ in 0..(1.0 + dice.roll() * 6.0) as usize {
                let m = dice.pick(&BAD).min(2);
                places.push(Place::new(&mut dice, m, |_| 0.05 * m as f64));
            }
        }
        return places;
    }
    let start = (dice.roll() * 1000.0) as usize;
    (0..n)
        .map(|i| match kind {
            Kind::Good => good(&mut dice, 1.0),
            Kind::GoodDeep => good(&mut dice, 0.92),
            Kind::Fair => {
                let m = dice.pick(&USUAL);
                Place::new(&mut dice, m, |_| FIRST_HIT[m])
            }
            Kind::Mixed(stretch) if ((i + start) / stretch).is_multiple_of(2) => good(&mut dice, 1.0),
            Kind::MixedBlind(stretch) => {
                let m = 1 + dice.pick(&[1.0; 8]);
                let hit = if ((i + start) / stretch).is_multiple_of(2) { 0.85 } else { 0.02 };
                Place::new(&mut dice, m, |_| hit)
            }
            Kind::Useless | Kind::Mixed(_) => useless(&mut dice),
            Kind::Deceptive => Place { match_length: 8, path: 0 },
            Kind::Empty => Place { match_length: 0, path: 0 },
            Kind::Copy => unreachable!(),
        })
        .collect()
}

const CURVES: [[f64; 6]; 3] =
    [[1.0, 1.04, 1.1, 1.2, 1.75, 2.9], [1.0, 1.12, 1.32, 1.7, 2.8, 5.0], [1.0, 1.25, 1.8, 3.0, 5.0, 9.0]];

struct Done {
    tokens: usize,
    ms: f64,
    steps: [usize; 6],
}

impl Done {
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.ms
    }
}

/// How the ends of windows are reported.
#[derive(Clone, Copy, Debug)]
enum Reports {
    Exact,
    /// Every window takes some more or less, and one in fifty is held up for long.
    HeldUp,
    /// Every other report comes only with the next one.
    Bursts,
}

/// Runs a session; `width` answers each window's width.
fn decode(
    texts: &[Vec<Place>],
    n_tokens: usize,
    real: &[f64; 6],
    (steps, in_flight, reports): (usize, usize, Reports),
    mut adaptive: Option<&mut Controller>,
    fixed: usize,
) -> Done {
    let mut done = Done { tokens: 0, ms: 0.0, steps: [0; 6] };
    let mut dice = Dice(7);
    let mut unreported = 0.0;
    for text in texts {
        if let Some(controller) = adaptive.as_deref_mut() {
            controller.begin();
        }
        let mut flying = VecDeque::new();
        let mut at = 0;
        while at < n_tokens {
            while flying.len() < in_flight {
                flying.push_back(adaptive.as_deref_mut().map_or(fixed, |controller| controller.width(steps)));
            }
            let nodes = flying.pop_front().unwrap();
            let i = BUCKETS.iter().position(|&bucket| bucket == nodes).unwrap();
            let mut ms = 0.0;
            let mut ran = 0;
            for _ in 0..steps {
                if at >= n_tokens {
                    break;
                }
                let place = text[at];
                let path = place.path_of(nodes);
                let accepted = path.count_ones() as usize;
                at += 1 + accepted;
                ms += real[i];
                ran += 1;
                done.steps[i] += 1;
                if let Some(controller) = adaptive.as_deref_mut() {
                    controller.observe(StepStats {
                        nodes: nodes as u8,
                        n_drafted: nodes as u8 - 1,
                        n_accepted: accepted as u8,
                        match_length: if nodes == 1 { 0 } else { place.match_length },
                        path,
                    });
                }
            }
            done.ms += ms;
            if let Some(controller) = adaptive.as_deref_mut() {
                let seen = match reports {
                    Reports::Exact => ms,
                    Reports::HeldUp => ms * (0.85 + 0.3 * dice.roll()) * if dice.roll() < 0.02 { 50.0 } else { 1.0 },
                    Reports::Bursts => {
                        unreported += ms;
                        if dice.roll() < 0.5 { 0.0 } else { std::mem::take(&mut unreported) }
                    }
                };
                controller.window_took(nodes, ran, Some(seen));
            }
        }
        done.tokens += n_tokens;
    }
    done
}

/// The rates of sessions of a kind, of each the adaptive one's, plain decoding's and the best fixed width's.
fn sessions(kind: Kind, requests: u64, n_tokens: usize, curve: &[f64; 6], believed: &[f64; 6]) -> Vec<[f64; 3]> {
    reported_sessions(Reports::Exact, kind, requests, n_tokens, curve, believed)
}

fn reported_sessions(
    reports: Reports,
    kind: Kind,
    requests: u64,
    n_tokens: usize,
    curve: &[f64; 6],
    believed: &[f64; 6],
) -> Vec<[f64; 3]> {
    let mut rates = Vec::new();
    for (steps, in_flight) in [(1, 2), (2, 2), (4, 2), (1, 4), (4, 4)] {
        for seed in 0..12 {
            let texts: Vec<_> = (0..requests).map(|request| text(kind, n_tokens, seed * 1000 + request)).collect();
            let mut controller = Controller::new(Costs { ms: *believed });
            let ours = decode(&texts, n_tokens, curve, (steps, in_flight, reports), Some(&mut controller), 0).rate();
            let fixed =
                BUCKETS.map(|nodes| decode(&texts, n_tokens, curve, (steps, in_flight, reports), None, nodes).rate());
            rates.push([ours, fixed[0], fixed.into_iter().fold(0.0, f64::max)]);
        }
    }
    rates
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

const GOODS: [Kind; 3] = [Kind::Good, Kind::GoodDeep, Kind::Copy];
const OTHERS: [Kind; 9] = [
    Kind::Fair,
    Kind::Mixed(100),
    Kind::Mixed(40),
    Kind::Mixed(20),
    Kind::MixedBlind(100),
    Kind::MixedBlind(40),
    Kind::Useless,
    Kind::Deceptive,
    Kind::Empty,
];

#[test]
fn a_session_is_never_slower_than_plain_decoding() {
    for curve in &CURVES {
        for kind in GOODS.into_iter().chain(OTHERS) {
            for [ours, plain, _] in sessions(kind, 6, 300, curve, curve) {
                assert!(ours >= 0.97 * plain, "{kind:?} on {curve:?}: {ours:.3} of {plain:.3}");
            }
        }
    }
}

#[test]
fn good_drafts_give_what_the_best_width_gives() {
    for curve in &CURVES {
        for kind in GOODS {
            let share = mean(sessions(kind, 6, 300, curve, curve).iter().map(|[ours, _, best]| ours / best));
            assert!(share >= 0.95, "{kind:?} on {curve:?}: {share:.3} of the best fixed width");
        }
    }
}

/// Not a single short request either, whatever its drafts are: the purse pays for the first look at them.
#[test]
fn a_first_short_request_is_not_slower() {
    for curve in &CURVES {
        for kind in GOODS.into_iter().chain(OTHERS) {
            for [ours, plain, _] in sessions(kind, 1, 64, curve, curve) {
                assert!(ours >= 0.97 * plain, "{kind:?} on {curve:?}: {ours:.3} of {plain:.3}");
            }
        }
    }
}

#[test]
fn wrong_costs_are_found_out() {
    let [cheap, middle, dear] = &CURVES;
    for (curve, believed) in [(cheap, middle), (middle, cheap), (middle, dear), (dear, middle)] {
        let share = mean(sessions(Kind::Good, 6, 300, curve, believed).iter().map(|[ours, _, best]| ours / best));
        assert!(share >= 0.7, "{believed:?} was believed and {curve:?} true: {share:.3} of the best fixed width");
        let share = mean(sessions(Kind::Useless, 6, 300, curve, believed).iter().map(|[ours, plain, _]| ours / plain));
        assert!(share >= 0.97, "{believed:?} was believed and {curve:?} true: {share:.3} of plain decoding");
    }
}

#[test]
fn late_reports_do_not_mislead() {
    for (reports, least) in [(Reports::HeldUp, 0.95), (Reports::Bursts, 0.92)] {
        for curve in &CURVES {
            for kind in GOODS {
                let all = reported_sessions(reports, kind, 6, 300, curve, curve);
                let share = mean(all.iter().map(|[ours, _, best]| ours / best));
                assert!(share >= least, "{kind:?}, {reports:?}, on {curve:?}: {share:.3} of the best fixed width");
            }
            for kind in OTHERS {
                let all = reported_sessions(reports, kind, 6, 300, curve, curve);
                let share = mean(all.iter().map(|[ours, plain, _]| ours / plain));
                assert!(share >= 0.97, "{kind:?}, {reports:?}, on {curve:?}: {share:.3} of plain decoding");
            }
        }
    }
}

#[test]
fn a_slower_clock_does_not_end_speculation() {
    let curve = CURVES[1].map(|ms| 2.0 * ms);
    let share = mean(sessions(Kind::Good, 6, 300, &curve, &CURVES[1]).iter().map(|[ours, _, best]| ours / best));
    assert!(share >= 0.75, "{share:.3} of the best fixed width");
}

proptest! {
    #[test]
    fn any_history_gives_a_width_that_there_is(
        ms in prop::array::uniform6(prop_oneof![
            4 => 0.1f64..20.0,
            1 => Just(f64::INFINITY),
            1 => Just(f64::NAN),
            1 => Just(0.0),
            1 => Just(-1.0),
        ]),
        events in prop::collection::vec((0u8..4, any::<u8>(), any::<u8>(), any::<u8>(), any::<u32>(), any::<f64>()), 0..200),
    ) {
        let mut controller = Controller::new(Costs { ms });
        for (event, a, b, c, path, took) in events {
            match event {
                0 => {
                    let width = controller.width(usize::from(a));
                    let i = BUCKETS.iter().position(|&nodes| nodes == width).unwrap();
                    prop_assert!(i == 0 || controller.costs().ms[i].is_finite());
                }
                1 => controller.observe(StepStats { nodes: a, n_drafted: b, n_accepted: b, match_length: c, path }),
                2 => controller.window_took(usize::from(a), usize::from(b), Some(took)),
                _ => controller.begin(),
            }
            prop_assert!(controller.costs().ms.iter().all(|ms| *ms > 0.0));
        }
    }

    #[test]
    fn no_text_costs_more_than_the_purse(
        places in prop::collection::vec((0u8..=8, any::<u32>(), 0u8..4), 216),
        curve in 0usize..3,
        extra in prop::array::uniform6(0.0f64..2.0),
        steps in 1usize..=4,
        in_flight in 1usize..=4,
    ) {
        let mut ms = CURVES[curve];
        ms.iter_mut().zip(extra).skip(1).for_each(|(ms, extra)| *ms *= 1.0 + extra);
        // At most 8 nodes of a tree are accepted, often the first ones and often none.
        let place = |(match_length, path, kind): (u8, u32, u8)| {
            let mut path = [0, path, 0x1fe, path & 0xff][usize::from(kind)] & !1;
            while path.count_ones() > 8 {
                path &= path - 1;
            }
            Place { match_length, path }
        };
        let text: Vec<Place> = places.into_iter().map(place).collect();
        let mut controller = Controller::new(Costs { ms });
        let done = decode(&[text], 200, &ms, (steps, in_flight, Reports::Exact), Some(&mut controller), 0);
        // The last step may bring tokens that are not wanted any more.
        let most = (done.tokens as f64 + MAX_DEPTH) * (1.0 + PURSE_RATE) + PURSE;
        prop_assert!(done.ms <= most + 1e-6, "{} of at most {most} ms", done.ms);
    }
}
