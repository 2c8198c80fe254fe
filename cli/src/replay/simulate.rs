//! The simulation: a step accepts the longest drafted path that the recorded answer follows, and one token more.
//!
//! An answer's first token comes from reading the prompt, so it is no step's. The memory in front of an answer holds
//! the answers before it in the file, each followed by a separator; of a memory that overflows the oldest tokens go.

use forerun::cpu::draft::SEPARATOR;

use crate::recording::Recording;

/// Guesses behind the context's last token: each is a token and the number of its parent, with 0 for the context's last
/// token and `i + 1` for guess `i`. Parents come first.
pub type Guesses = Vec<(u32, usize)>;

/// What a drafter sees.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Earlier answers, each followed by a separator.
    pub memory: &'a [u32],
    /// Tokens that the memory may hold.
    pub memory_capacity: usize,
    /// The prompt and the answer so far.
    pub context: &'a [u32],
}

impl<'a> Seen<'a> {
    /// The texts in which the context's last tokens may stand, the latest last.
    pub fn regions(&self) -> [&'a [u32]; 2] {
        [self.memory, self.context]
    }
}

/// A way to guess.
pub trait Drafter {
    /// The guesses for one step.
    fn draft(&mut self, seen: &Seen<'_>) -> Guesses;

    /// Hears which token really followed.
    fn learn(&mut self, _token: u32) {}
}

/// Steps, and the tokens they gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Tokens behind each answer's first.
    pub tokens: usize,
    /// Steps they took.
    pub steps: usize,
}

impl Tally {
    /// Mean number of tokens a step; 1 where there was none.
    pub fn tokens_per_step(self) -> f64 {
        if self.steps == 0 { 1.0 } else { self.tokens as f64 / self.steps as f64 }
    }

    fn add(&mut self, other: Tally) {
        self.tokens += other.tokens;
        self.steps += other.steps;
    }

    /// All of them together.
    pub fn sum(tallies: &[Tally]) -> Tally {
        let mut sum = Tally::default();
        tallies.iter().for_each(|tally| sum.add(*tally));
        sum
    }
}

/// Replays the answers in order, with a memory of `memory_capacity` tokens: a tally for each answer.
pub fn simulate(recordings: &[Recording], memory_capacity: usize, drafter: &mut dyn Drafter) -> Vec<Tally> {
    let mut memory: Vec<u32> = Vec::new();
    let mut tallies = Vec::new();
    for recording in recordings {
        tallies.push(replay_answer(recording, &memory, memory_capacity, drafter));
        memory.extend_from_slice(&recording.output);
        memory.push(SEPARATOR);
        let surplus = memory.len().saturating_sub(memory_capacity);
        memory.drain(..surplus);
    }
    tallies
}

fn replay_answer(recording: &Recording, memory: &[u32], memory_capacity: usize, drafter: &mut dyn Drafter) -> Tally {
    let text = [&recording.prompt[..], &recording.output].concat();
    let mut tally = Tally::default();
    let mut n = recording.prompt.len() + 1;
    while n < text.len() {
        let guesses = drafter.draft(&Seen { memory, memory_capacity, context: &text[..n] });
        // The bonus token is there unless the answer ends with an accepted one.
        let taken = (accepted(&guesses, &text[n..]) + 1).min(text.len() - n);
        drafter.learn(text[n]);
        tally.add(Tally { tokens: taken, steps: 1 });
        n += taken;
    }
    tally
}

/// How many of the guesses on one path are the tokens that follow.
fn accepted(guesses: &Guesses, follows: &[u32]) -> usize {
    let mut node = 0;
    for (i, token) in follows.iter().enumerate() {
        match guesses.iter().position(|guess| *guess == (*token, node)) {
            Some(child) => node = child + 1,
            None => return i,
        }
    }
    follows.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(prompt: &[u32], output: &[u32]) -> Recording {
        Recording { task: "t".into(), id: "i".into(), prompt: prompt.into(), output: output.into(), decode_ms: 0.0 }
    }

    struct Fixed(Guesses);

    impl Drafter for Fixed {
        fn draft(&mut self, _: &Seen<'_>) -> Guesses {
            self.0.clone()
        }
    }

    #[test]
    fn the_longest_path_is_accepted() {
        let guesses = vec![(5, 0), (6, 0), (7, 2), (8, 1), (9, 3)];
        assert_eq!(accepted(&guesses, &[6, 7, 9, 1]), 3);
        assert_eq!(accepted(&guesses, &[5, 7]), 1);
        assert_eq!(accepted(&guesses, &[7]), 0);
        assert_eq!(accepted(&guesses, &[6, 7]), 2);
    }

    #[test]
    fn steps_are_counted_behind_the_first_token() {
        let answer = |drafter: &mut dyn Drafter, output: &[u32]| simulate(&[recording(&[1], output)], 0, drafter)[0];
        assert_eq!(answer(&mut Fixed(vec![]), &[2, 2, 2, 2]), Tally { tokens: 3, steps: 3 });
        assert_eq!(answer(&mut Fixed(vec![(2, 0)]), &[2, 2, 2, 2]), Tally { tokens: 3, steps: 2 });
        assert_eq!(answer(&mut Fixed(vec![(2, 0), (2, 1)]), &[2, 2, 2, 2]), Tally { tokens: 3, steps: 1 });
        assert_eq!(answer(&mut Fixed(vec![]), &[2]), Tally::default());
        assert_eq!(answer(&mut Fixed(vec![]), &[]), Tally::default());
        assert_eq!(Tally::default().tokens_per_step(), 1.0);
    }

    #[test]
    fn the_memory_holds_the_latest_answers() {
        struct Watch(Vec<Vec<u32>>);
        impl Drafter for Watch {
            fn draft(&mut self, seen: &Seen<'_>) -> Guesses {
                self.0.push(seen.memory.to_vec());
                Vec::new()
            }
        }
        let recordings = [recording(&[1], &[2, 3]), recording(&[1], &[4, 5]), recording(&[1], &[6, 7])];
        let mut watch = Watch(Vec::new());
        simulate(&recordings, 5, &mut watch);
        assert_eq!(watch.0, [vec![], vec![2, 3, SEPARATOR], vec![3, SEPARATOR, 4, 5, SEPARATOR]]);
    }
}
