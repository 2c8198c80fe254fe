//! The controller: how wide a tree the steps of the next window shall verify.
//!
//! A wide step costs more and, where the drafts are good, brings more tokens. Between windows the controller weighs
//! the two: what a step of each width costs on this device, against how many drafted tokens a step of each width may
//! be expected to have accepted, judged by the match lengths of the last steps and by what drafts of those lengths
//! were worth so far. Where plain decoding is best it still tries a wider step now and then, as a congestion
//! controller does, rarely where that costs much. A purse of tokens gained and lost against plain decoding bounds
//! what being wrong may cost. Source: the paper's sections on feedback control and on other devices.
//!
//! Nothing here knows the GPU, the clock or chance: the same calls give the same widths.

use std::collections::VecDeque;

use super::step::BUCKETS;

#[cfg(test)]
mod simulation;

/// Widths to choose from.
const N_WIDTHS: usize = BUCKETS.len();
/// Match lengths: 0 (no candidate) to 8.
const N_LENGTHS: usize = 9;
/// Tokens that a draft may be deep.
const MAX_DEPTH: f64 = 8.0;

/// Chance that a draft's first token is right, by match length, before anything was seen.
const FIRST_HIT: [f64; N_LENGTHS] = [0.0, 0.12, 0.22, 0.32, 0.42, 0.5, 0.56, 0.62, 0.68];
/// How often each match length is met, before anything was seen.
const USUAL: [f64; N_LENGTHS] = [0.12, 0.2, 0.18, 0.12, 0.1, 0.08, 0.06, 0.05, 0.09];
/// Observations that the guesses above count for.
const PRIOR_WEIGHT: f64 = 6.0;
/// What an observed gain keeps of its weight when another one of its match length comes in.
const GAIN_DECAY: f64 = 0.97;
/// What a step's match length keeps of its weight in the next speculative step.
const RECENT_DECAY: f64 = 0.85;
/// Classes of the age of the newest observation, a class for each doubling.
const N_AGES: usize = 8;
/// What is special about the recent steps and is still there in the next one, before anything was seen, and the
/// observations that this guess counts for.
const CARRY: f64 = 0.98;
const CARRY_WEIGHT: f64 = 4.0;
/// Steps that a draft stands for in the long run: itself and the plain ones in front of it, at most so many.
const STAND: f64 = 1.0;
const STAND_MAX: f64 = 15.0;
/// What the recent match lengths keep of their weight in the next request.
const REQUEST_DECAY: f64 = 0.3;
/// Steps of the long-run mixture of match lengths that stand beside the recent ones.
const USUAL_WEIGHT: f64 = 0.5;
/// What the comparison of expected and accepted tokens keeps of its weight in the next step, and the accepted tokens
/// that it takes to be believed.
const TREND_DECAY: f64 = 0.85;
const TREND_WEIGHT: f64 = 1.5;

/// Tokens that may be lost against plain decoding before any was gained, and for each token made.
const PURSE: f64 = 0.9;
const PURSE_RATE: f64 = 0.015;
/// Gains that are remembered, in tokens.
const PURSE_LIMIT: f64 = 64.0;
/// Part of the time that goes into probes as long as they succeed, and the most doublings of the space between them:
/// from plain decoding, and from a width that pays.
const PROBE_RATE: f64 = 0.02;
const MAX_FAILURES: u32 = 1;
const WIDER_RATE: f64 = 0.006;
const WIDER_FAILURES: u32 = 3;
/// Tokens between two probes at the least.
const MIN_SPACE: f64 = 8.0;
/// A wider step must promise this much more.
const MARGIN: f64 = 1.01;
/// What a new measurement of a step's time counts for at the least (the first ones count for more), and how many times
/// the known time it may be.
const COST_RATE: f64 = 0.2;
const COST_RANGE: f64 = 2.0;
/// Windows of one width that are measured together.
const RUN_WINDOWS: usize = 4;
/// A window that took so many times what is known was held up by something else, unless so many before it were too.
const STRAY: f64 = 4.0;
const MAX_STRAYS: usize = 3;
/// How far the times of the other widths go back to their calibrated proportion with each measurement.
const COST_DRIFT: f64 = 0.03;
/// Windows in flight that are remembered.
const MAX_FLYING: usize = 16;

/// Milliseconds of a step of each width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// `ms[i]` is the time of a step of `BUCKETS[i]` nodes, infinite where there is no such step.
    pub ms: [f64; N_WIDTHS],
}

impl Costs {
    /// Whether a width can be used.
    fn has(&self, i: usize) -> bool {
        self.ms[i].is_finite()
    }
}

/// What a step reports of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepStats {
    /// The width that the step was recorded for, one of the buckets.
    pub nodes: u8,
    /// Nodes of its tree without the root.
    pub n_drafted: u8,
    /// Drafted tokens that were accepted, without the bonus token.
    pub n_accepted: u8,
    /// The match length of the drafter's best candidate, 0 to 8; 0 when plain.
    pub match_length: u8,
    /// Bit `i`: node `i` is on the accepted path; the root's bit says nothing. 0 where it is not known. The nodes of a
    /// narrower tree are the first of a wider one, so this tells what each narrower width would have had accepted.
    pub path: u32,
}

/// A mean over observations that fade.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64, decay: f64) {
        self.sum = self.sum * decay + value;
        self.weight = self.weight * decay + 1.0;
    }

    /// The mean with a guess that counts for `weight` observations.
    fn with_prior(&self, guess: f64, weight: f64) -> f64 {
        (self.sum + guess * weight) / (self.weight + weight)
    }
}

/// A window that was submitted.
#[derive(Debug, Clone, Copy)]
struct Flight {
    width: usize,
    /// Steps that have not been observed.
    steps: usize,
    probe: bool,
    observed: bool,
    /// How old the newest observation is, as a class, and the expectations: from the recent steps, in the long run.
    age: usize,
    recent: f64,
    usual: f64,
}

/// How much of what was special about the recent steps is still there in a later one: a regression that fades.
#[derive(Debug, Clone, Copy, Default)]
struct Carry {
    xy: f64,
    xx: f64,
}

/// Windows of one width in a row. Reports of their ends come in bursts, so only the time of several tells something.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    width: usize,
    windows: usize,
    steps: f64,
    ms: f64,
}

/// Chooses the width of each window.
#[derive(Debug, Clone)]
pub struct Controller {
    costs: Costs,
    /// `gains[m][i]`: tokens accepted beyond those of width `i - 1`, in steps of match length `m`.
    gains: [[Mean; N_WIDTHS]; N_LENGTHS],
    recent: [f64; N_LENGTHS],
    usual: [f64; N_LENGTHS],
    /// Accepted and expected tokens of the last steps.
    accepted: f64,
    expected: f64,
    carry: [Carry; N_AGES],
    /// Steps since the last one with a draft.
    stale: usize,
    purse: f64,
    /// Tokens since a step of at least this width, and how many probes of it failed in a row.
    since: [f64; N_WIDTHS],
    failures: [u32; N_WIDTHS],
    flying: VecDeque<Flight>,
    run: Run,
    /// Windows in a row that took far too long.
    strays: usize,
    /// The costs before any refinement.
    calibrated: Costs,
    /// How often each width was measured.
    measured: [u32; N_WIDTHS],
}

impl Controller {
    /// A controller that knows nothing but what steps cost.
    pub fn new(costs: Costs) -> Controller {
        Controller {
            costs: sane(costs),
            gains: Default::default(),
            recent: [0.0; N_LENGTHS],
            usual: USUAL.map(|share| 8.0 * share),
            accepted: 0.0,
            expected: 0.0,
            carry: Default::default(),
            stale: 0,
            purse: PURSE,
            since: [f64::MAX; N_WIDTHS],
            failures: [0; N_WIDTHS],
            flying: VecDeque::new(),
            run: Run::default(),
            strays: 0,
            calibrated: sane(costs),
            measured: [0; N_WIDTHS],
        }
    }

    /// A request begins: nothing is in flight, and its text may be of another kind.
    pub fn begin(&mut self) {
        self.flying.clear();
        self.run = Run::default();
        self.recent = self.recent.map(|weight| weight * REQUEST_DECAY);
        (self.accepted, self.expected) = (self.accepted * REQUEST_DECAY, self.expected * REQUEST_DECAY);
    }

    /// The width for the next window, which will have `steps` steps.
    pub fn width(&mut self, steps: usize) -> usize {
        let steps = steps.clamp(1, 1024);
        let (width, probe) = self.choose(steps);
        let age = self.age();
        let (recent, usual) = self.both();
        if self.flying.len() == MAX_FLYING {
            self.flying.pop_front();
        }
        self.flying.push_back(Flight {
            width,
            steps,
            probe,
            observed: false,
            age,
            recent: recent[width],
            usual: usual[width],
        });
        BUCKETS[width]
    }

    /// A step ran.
    pub fn observe(&mut self, step: StepStats) {
        let width = BUCKETS.iter().rposition(|&nodes| nodes <= usize::from(step.nodes)).unwrap_or(0);
        let most = (BUCKETS[width] - 1).min(MAX_DEPTH as usize);
        let accepted = usize::from(step.n_accepted).min(most);
        let length = usize::from(step.match_length).min(N_LENGTHS - 1);
        let tokens = 1.0 + accepted as f64;
        if let Some(flight) = self.flying.front_mut().filter(|flight| flight.width == width) {
            flight.steps = flight.steps.saturating_sub(1);
            flight.observed = true;
            if width > 0 {
                let (x, y) = (flight.recent - flight.usual, accepted as f64 - flight.usual);
                let carry = &mut self.carry[flight.age];
                *carry = Carry { xy: carry.xy * 0.99 + x * y, xx: carry.xx * 0.99 + x * x };
            }
        }
        self.purse = (self.purse + tokens * (1.0 + PURSE_RATE) - self.relative(width)).min(PURSE_LIMIT);
        for (i, since) in self.since.iter_mut().enumerate() {
            *since = if i <= width { 0.0 } else { *since + tokens };
        }
        if width == 0 {
            self.stale += 1;
            return;
        }
        self.accepted = self.accepted * TREND_DECAY + accepted as f64;
        self.expected = self.expected * TREND_DECAY + self.worth(length)[width];
        self.recent = self.recent.map(|weight| weight * RECENT_DECAY);
        self.recent[length] += 1.0;
        let stands_for = 1.0 + (self.stale as f64 * STAND).min(STAND_MAX);
        self.stale = 0;
        self.usual = self.usual.map(|weight| weight * 0.99f64.powf(stands_for));
        self.usual[length] += stands_for;
        // Without the path, the accepted nodes are taken to be the first ones.
        let path = if step.path >> 1 == 0 { (((1u64 << accepted) - 1) << 1) as u32 } else { step.path };
        let within = |i: usize| (u64::from(path >> 1) & ((1 << (BUCKETS[i] - 1)) - 1)).count_ones() as usize;
        for i in 1..=width {
            let gain = within(i).min(accepted) - within(i - 1).min(accepted);
            self.gains[length][i].add(gain as f64, GAIN_DECAY);
        }
    }

    /// The oldest window in flight is done: its `steps` steps took `ms`, where that is known. With the next window
    /// behind it, the interval between the ends of two windows is what the later one took.
    pub fn window_took(&mut self, width: usize, steps: usize, ms: Option<f64>) {
        let i = BUCKETS.iter().rposition(|&nodes| nodes <= width).unwrap_or(0);
        let ms = ms.filter(|ms| ms.is_finite() && *ms >= 0.0 && steps > 0 && self.costs.has(i));
        let is_stray = ms.is_some_and(|ms| ms > STRAY * steps as f64 * self.costs.ms[i]);
        self.strays = if is_stray { self.strays + 1 } else { 0 };
        match ms.filter(|_| !is_stray || self.strays > MAX_STRAYS) {
            Some(ms) if self.run.width == i => {
                let run = &mut self.run;
                (run.windows, run.steps, run.ms) = (run.windows + 1, run.steps + steps as f64, run.ms + ms);
                if run.windows == RUN_WINDOWS {
                    let ms = run.ms / run.steps;
                    self.run = Run { width: i, ..Run::default() };
                    self.refine(i, ms);
                }
            }
            // The first window of a width begins with the end of another's.
            _ => self.run = Run { width: i, ..Run::default() },
        }
        let Some(flight) = self.flying.pop_front() else { return };
        if flight.probe && flight.observed {
            let rates = self.rates(&self.expectation());
            let best = (0..N_WIDTHS).max_by(|&a, &b| rates[a].total_cmp(&rates[b])).unwrap_or(0);
            let failures = &mut self.failures[flight.width];
            *failures = if best >= flight.width { 0 } else { (*failures + 1).min(WIDER_FAILURES) };
        }
    }

    /// The costs as they are known now.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// Folds what a step took into what it is known to take. One late report must not count for much, and a wider step
    /// never takes less than a narrower one.
    fn refine(&mut self, i: usize, ms: f64) {
        let known = self.costs.ms[i];
        if ms.is_nan() || ms <= 0.0 {
            return;
        }
        let rate = COST_RATE.max(1.0 / (f64::from(self.measured[i]) + 2.0));
        self.measured[i] = self.measured[i].saturating_add(1);
        let now = known + rate * (ms.clamp(known / COST_RANGE, known * COST_RANGE) - known);
        // A wider step does all that this one does, and more: what made this one faster or slower, another clock for
        // instance, tells of it until it is measured itself.
        // And a width that was once measured as too dear, and so is not measured again, comes back in time.
        let calibrated = self.calibrated.ms;
        for (j, other) in self.costs.ms.iter_mut().enumerate().filter(|(_, other)| other.is_finite()) {
            *other = if j < i { other.min(now) } else { (*other * now / known).max(now) };
            let proportion = calibrated[j] / calibrated[i] * now;
            *other += COST_DRIFT * (proportion - *other);
            *other = if j < i { other.min(now) } else { other.max(now) };
        }
        self.costs.ms[i] = now;
    }

    /// What a step costs, in plain steps.
    fn relative(&self, i: usize) -> f64 {
        self.costs.ms[i] / self.costs.ms[0]
    }

    /// Drafted tokens that a step of each width has accepted for a best candidate of this match length.
    fn worth(&self, length: usize) -> [f64; N_WIDTHS] {
        let mut worth = [0.0; N_WIDTHS];
        let hit = self.gains[length][1].with_prior(FIRST_HIT[length], PRIOR_WEIGHT).min(0.98);
        for i in 1..N_WIDTHS {
            // A chain of tokens that are right as often as the first one was; wider trees spend nodes on branches too.
            let depth = |nodes: usize| 1.0 + 0.75 * (nodes as f64 - 2.0);
            let chain = |nodes: usize| hit * (1.0 - hit.powf(depth(nodes).min(MAX_DEPTH))) / (1.0 - hit);
            let guess = if i == 1 { hit } else { chain(BUCKETS[i]) - chain(BUCKETS[i - 1]) };
            worth[i] = worth[i - 1] + self.gains[length][i].with_prior(guess, PRIOR_WEIGHT);
        }
        worth
    }

    /// Drafted tokens that steps of each width have accepted: of late, and in the long run.
    fn both(&self) -> ([f64; N_WIDTHS], [f64; N_WIDTHS]) {
        let worth: [_; N_LENGTHS] = std::array::from_fn(|length| self.worth(length));
        let mean = |weights: &[f64; N_LENGTHS]| -> [f64; N_WIDTHS] {
            let total = weights.iter().sum::<f64>().max(1e-9);
            std::array::from_fn(|i| (0..N_LENGTHS).map(|m| weights[m] * worth[m][i]).sum::<f64>() / total)
        };
        let usual = mean(&self.usual);
        let scale = USUAL_WEIGHT / self.usual.iter().sum::<f64>().max(1e-9);
        let recent = mean(&std::array::from_fn(|m| self.recent[m] + scale * self.usual[m]));
        let trend = ((self.accepted + TREND_WEIGHT) / (self.expected + TREND_WEIGHT)).clamp(0.1, 2.0);
        (std::array::from_fn(|i| (recent[i] * trend).min(MAX_DEPTH).min(BUCKETS[i] as f64 - 1.0)), usual)
    }

    fn age(&self) -> usize {
        let steps = self.stale + self.flying.iter().map(|flight| flight.steps).sum::<usize>();
        (steps + 1).ilog2().min(N_AGES as u32 - 1) as usize
    }

    /// Drafted tokens that the next steps may have accepted, for each width.
    fn expectation(&self) -> [f64; N_WIDTHS] {
        let (recent, usual) = self.both();
        let age = self.age();
        let guess = CARRY.powf((1 << age) as f64 * 1.5);
        let carry = &self.carry[age];
        let carried = ((carry.xy + CARRY_WEIGHT * guess) / (carry.xx + CARRY_WEIGHT)).clamp(0.0, 1.0);
        std::array::from_fn(|i| usual[i] + carried * (recent[i] - usual[i]))
    }

    /// Expected tokens for the time of a plain step.
    fn rates(&self, expectation: &[f64; N_WIDTHS]) -> [f64; N_WIDTHS] {
        std::array::from_fn(|i| (1.0 + expectation[i]) / self.relative(i))
    }

    fn choose(&self, steps: usize) -> (usize, bool) {
        let expectation = self.expectation();
        let rates = self.rates(&expectation);
        // As if no draft in flight, nor any of this window, were accepted: so the purse never goes empty.
        let loss = |i: usize, steps: usize| steps as f64 * (self.relative(i) - 1.0);
        let left = self.purse - self.flying.iter().map(|flight| loss(flight.width, flight.steps)).sum::<f64>();
        let affordable = |i: usize| loss(i, steps) <= left.max(0.0);
        let mut best = 0;
        for i in (1..N_WIDTHS).filter(|&i| self.costs.has(i)) {
            if rates[i] > rates[best] * MARGIN && affordable(i) {
                best = i;
            }
        }
        // Try a wider one?
        let wider = (best + 1..N_WIDTHS).find(|&i| self.costs.has(i));
        if let Some(i) = wider.filter(|_| !self.flying.iter().any(|flight| flight.probe)) {
            let loss =
                steps as f64 * (self.relative(i) - (1.0 + expectation[best] * f64::from(best > 0)) / rates[best]);
            let (rate, most) = if best == 0 { (PROBE_RATE, MAX_FAILURES) } else { (WIDER_RATE, WIDER_FAILURES) };
            let space = (loss / rate).max(MIN_SPACE) * f64::from(1 << self.failures[i].min(most));
            if self.since[i] >= space && affordable(i) {
                return (i, true);
            }
        }
        (best, false)
    }
}

/// Costs that can be divided and compared.
fn sane(costs: Costs) -> Costs {
    let mut ms = costs.ms.map(|ms| if ms.is_finite() && ms > 0.0 { ms } else { f64::INFINITY });
    if !ms[0].is_finite() {
        ms[0] = ms.iter().copied().fold(f64::INFINITY, f64::min);
        if !ms[0].is_finite() {
            ms[0] = 1.0;
        }
    }
    Costs { ms }
}
