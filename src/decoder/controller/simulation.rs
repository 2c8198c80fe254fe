//! Tests: the controller against made-up texts, on the paper's cost curves.

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
            Kind::Mixed(stretch) if (i + start) / stretch % 2 == 0 => good(&mut dice, 1.0),
            Kind::MixedBlind(stretch) => {
                let m = 1 + dice.pick(&[1.0; 8]);
                let hit = if (i + start) / stretch % 2 == 0 { 0.85 } else { 0.02 };
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

/// Runs a session; `width` answers each window's width.
fn decode(
    texts: &[Vec<Place>],
    n_tokens: usize,
    real: &[f64; 6],
    steps: usize,
    in_flight: usize,
    mut adaptive: Option<&mut Controller>,
    fixed: usize,
) -> Done {
    let mut done = Done { tokens: 0, ms: 0.0, steps: [0; 6] };
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
                controller.window_took(nodes, ran, ms);
            }
        }
        done.tokens += n_tokens;
    }
    done
}

#[test]
fn report() {
    use Kind::*;
    for (requests, n_tokens) in [(6, 300), (1, 64)] {
        for kind in [
            Good,
            GoodDeep,
            Copy,
            Fair,
            Mixed(100),
            Mixed(40),
            Mixed(20),
            MixedBlind(100),
            MixedBlind(40),
            Useless,
            Deceptive,
            Empty,
        ] {
            for (c, curve) in CURVES.iter().enumerate() {
                let mut line = format!("{requests}x{n_tokens} {kind:?} c{c}:");
                let seeds = 12;
                let (mut worst_plain, mut worst_fixed) = (f64::MAX, f64::MAX);
                for (w, k) in [(1, 2), (2, 2), (4, 2), (1, 4), (4, 4)] {
                    let (mut plain_min, mut fixed_min, mut fixed_sum, mut plain_sum) = (f64::MAX, f64::MAX, 0.0, 0.0);
                    for seed in 0..seeds {
                        let texts: Vec<_> =
                            (0..requests).map(|r| text(kind, n_tokens, seed * 1000 + r as u64)).collect();
                        let mut controller = Controller::new(Costs { ms: *curve });
                        let ours = decode(&texts, n_tokens, curve, w, k, Some(&mut controller), 0).rate();
                        let best = BUCKETS
                            .iter()
                            .map(|&n| decode(&texts, n_tokens, curve, w, k, None, n).rate())
                            .fold(0.0, f64::max);
                        plain_min = f64::min(plain_min, ours);
                        fixed_min = f64::min(fixed_min, ours / best);
                        fixed_sum += ours / best / seeds as f64;
                        plain_sum += ours / seeds as f64;
                    }
                    worst_plain = worst_plain.min(plain_min);
                    worst_fixed = worst_fixed.min(fixed_min);
                    line += &format!("  {plain_min:.2}/{plain_sum:.2} {fixed_min:.2}/{fixed_sum:.2}");
                }
                println!("{line}");
            }
        }
    }
}
