//! A suffix tree, in the manner of SuffixDecoding: how often a continuation followed decides.
//!
//! For each length of the context's last tokens that stood before, the continuations of all these places are a tree
//! with counts; a node's probability is its share of its parent's count times its parent's probability. The most
//! probable nodes, more of them for a longer match, are a draft, and the length whose draft has the largest sum of
//! probabilities is taken. Places are found by reading the text, which gives the counts that a built tree would hold.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use forerun::cpu::draft::SEPARATOR;

use super::simulate::{Drafter, Guesses, Seen};

/// The longest match that is told from a shorter one.
const MAX_MATCH: usize = 32;
/// Guesses for each token of the match.
const GUESSES_PER_TOKEN: usize = 4;

/// Drafts by frequency.
#[derive(Debug)]
pub struct SuffixTree {
    /// Nodes of a step, with the context's last token.
    pub n_nodes: usize,
}

impl Drafter for SuffixTree {
    fn draft(&mut self, seen: &Seen<'_>) -> Guesses {
        // What follows each earlier place of the last token, with the length of the match.
        let mut places: Vec<(usize, &[u32])> = Vec::new();
        let Some(last) = seen.context.last() else { return Vec::new() };
        for region in seen.regions() {
            for (i, pair) in region.windows(2).enumerate() {
                if pair[0] == *last && pair[1] != SEPARATOR {
                    let suffixes = region[..=i].iter().rev().zip(seen.context.iter().rev()).take(MAX_MATCH);
                    let length = suffixes.take_while(|(a, b)| a == b).count();
                    let behind = &region[i + 1..region.len().min(i + self.n_nodes)];
                    places.push((length, behind.split(|token| *token == SEPARATOR).next().unwrap_or_default()));
                }
            }
        }
        places.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
        let mut best = (0.0, Vec::new());
        let mut n = 0;
        while n < places.len() {
            let length = places[n].0;
            n += places[n..].iter().take_while(|place| place.0 == length).count();
            let continuations: Vec<&[u32]> = places[..n].iter().map(|(_, behind)| *behind).collect();
            let draft = most_probable(continuations, (self.n_nodes - 1).min(GUESSES_PER_TOKEN * length));
            // Of equals the longer match, which came first.
            if draft.0 > best.0 {
                best = draft;
            }
        }
        best.1
    }
}

/// A node that could be guessed next.
struct Open<'a> {
    probability: f64,
    /// Of equals the earlier is taken.
    number: usize,
    token: u32,
    parent: usize,
    /// What follows the node at each of its places.
    behind: Vec<&'a [u32]>,
}

impl PartialEq for Open<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open<'_> {}

impl PartialOrd for Open<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Open<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.probability.total_cmp(&other.probability).then(other.number.cmp(&self.number))
    }
}

/// The `n_guesses` most probable nodes of the continuations' tree, and the sum of their probabilities.
fn most_probable(continuations: Vec<&[u32]>, n_guesses: usize) -> (f64, Guesses) {
    let mut open = BinaryHeap::new();
    let mut number = 0;
    let mut sum = 0.0;
    let mut guesses = Guesses::new();
    let mut node = (1.0, 0, continuations);
    loop {
        let (probability, parent, behind) = node;
        let total = behind.len() as f64;
        let mut children: BTreeMap<u32, Vec<&[u32]>> = BTreeMap::new();
        for rest in behind {
            if let Some((token, rest)) = rest.split_first() {
                children.entry(*token).or_default().push(rest);
            }
        }
        for (token, behind) in children {
            let probability = probability * behind.len() as f64 / total;
            open.push(Open { probability, number, token, parent, behind });
            number += 1;
        }
        if guesses.len() == n_guesses {
            return (sum, guesses);
        }
        let Some(next) = open.pop() else { return (sum, guesses) };
        sum += next.probability;
        guesses.push((next.token, next.parent));
        node = (next.probability, guesses.len(), next.behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(memory: &[u32], context: &[u32]) -> Guesses {
        SuffixTree { n_nodes: 5 }.draft(&Seen { memory, memory_capacity: 100, context })
    }

    #[test]
    fn frequencies_choose() {
        // Behind 1 stood 2 twice and 3 once; behind 1, 2 stood 4 once and 5 once.
        assert_eq!(draft(&[], &[1, 2, 4, 1, 3, 1, 2, 5, 1])[..2], [(2, 0), (3, 0)]);
        // A longer match that is sure goes in front of a shorter one that is not.
        assert_eq!(draft(&[8, 1, 6, 7, 9, SEPARATOR], &[1, 2, 1, 3, 8, 1]), [(6, 0), (7, 1), (9, 2)]);
        assert_eq!(draft(&[], &[1, 2]), []);
        assert_eq!(draft(&[], &[]), []);
    }

    #[test]
    fn drafts_have_a_limit() {
        let context = [7; 40];
        assert_eq!(draft(&[], &context), [(7, 0), (7, 1), (7, 2), (7, 3)]);
    }
}
