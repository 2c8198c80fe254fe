//! The engine's own drafter, by its CPU twin.

use forerun::cpu::draft::{DraftText, OrderCounters, Vote, draft_tree, scan};

use super::simulate::{Drafter, Guesses, Seen};

/// Context mixing, with counters that go on from answer to answer as they do in a session.
#[derive(Debug)]
pub struct ContextMixing {
    /// Nodes of a step, with the context's last token.
    pub n_nodes: usize,
    /// Tokens the engine's context holds.
    pub max_seq_len: usize,
    counters: OrderCounters,
    votes: Vec<Vote>,
}

impl ContextMixing {
    /// A drafter that has seen nothing yet.
    pub fn new(n_nodes: usize, max_seq_len: usize) -> ContextMixing {
        ContextMixing { n_nodes, max_seq_len, counters: OrderCounters::default(), votes: Vec::new() }
    }
}

impl Drafter for ContextMixing {
    fn draft(&mut self, seen: &Seen<'_>) -> Guesses {
        let Seen { memory, memory_capacity, context } = *seen;
        let text = DraftText { memory, context, memory_capacity, max_seq_len: self.max_seq_len };
        let draft = draft_tree(&text, &scan(&text), &self.counters, self.n_nodes);
        self.votes = draft.votes;
        draft.tokens.into_iter().zip(draft.parents).skip(1).map(|(token, parent)| (token, parent as usize)).collect()
    }

    fn learn(&mut self, token: u32) {
        self.counters.update(&self.votes, token);
    }
}
