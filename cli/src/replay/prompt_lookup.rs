//! Prompt lookup: the text behind the latest place where the context's last tokens stood before.

use forerun::cpu::draft::SEPARATOR;

use super::simulate::{Drafter, Guesses, Seen};

/// The longest run of last tokens that is looked for; then shorter ones.
const MAX_MATCH: usize = 3;

/// Prompt lookup with a chain of guesses.
#[derive(Debug)]
pub struct PromptLookup {
    /// Nodes of a step, with the context's last token.
    pub n_nodes: usize,
}

impl Drafter for PromptLookup {
    fn draft(&mut self, seen: &Seen<'_>) -> Guesses {
        let n_guesses = self.n_nodes - 1;
        for n in (1..=MAX_MATCH.min(seen.context.len())).rev() {
            let last = &seen.context[seen.context.len() - n..];
            for region in seen.regions().into_iter().rev() {
                let behind = region.windows(n).rposition(|window| window == last);
                // The place itself is no earlier one: it has nothing behind it.
                let behind = match behind {
                    Some(i) if i + n == region.len() => region[..region.len() - 1].windows(n).rposition(|w| w == last),
                    found => found,
                };
                let Some(start) = behind.map(|i| i + n) else { continue };
                let chain = region[start..].iter().take(n_guesses).take_while(|token| **token != SEPARATOR);
                let guesses: Guesses = chain.enumerate().map(|(i, token)| (*token, i)).collect();
                if !guesses.is_empty() {
                    return guesses;
                }
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(memory: &[u32], context: &[u32]) -> Guesses {
        PromptLookup { n_nodes: 4 }.draft(&Seen { memory, memory_capacity: 100, context })
    }

    #[test]
    fn the_latest_longest_match_is_continued() {
        assert_eq!(draft(&[], &[1, 2, 3, 4, 5, 9, 2, 3, 7, 1, 2, 3]), [(4, 0), (5, 1), (9, 2)]);
        assert_eq!(draft(&[], &[3, 4, 3, 7, 3]), [(7, 0), (3, 1)]);
        assert_eq!(draft(&[], &[1, 2, 3]), []);
        assert_eq!(draft(&[], &[]), []);
        assert_eq!(draft(&[], &[5, 5]), [(5, 0)]);
    }

    #[test]
    fn the_memory_comes_second() {
        let memory = [1, 2, 8, SEPARATOR, 3, SEPARATOR, 2, 9];
        assert_eq!(draft(&memory, &[1, 2]), [(8, 0)]);
        assert_eq!(draft(&memory, &[2, 4, 2]), [(4, 0), (2, 1)]);
        assert_eq!(draft(&memory, &[3]), []);
    }
}
