//! The drafter: guesses the next tokens from earlier places where the context's last tokens stood.
//!
//! Twin of the kernels `match` ([`scan`]) and `draft` ([`draft_tree`]); acceptance keeps the [`OrderCounters`]. The
//! order of a candidate is the length of its match. After prediction by partial matching: longer matches speak first
//! and the rest of the weight escapes to shorter ones, by how often each order was right so far. All of it is `u32`
//! arithmetic that never overflows, and its result does not depend on the sequence in which anything is visited, so a
//! kernel gives the same tree.
//!
//! # The text
//! One buffer, the memory in front of the context: memory token `i` is at position `i`, context token `i` at
//! `memory_capacity + i`. The memory holds earlier outputs, each followed by [`SEPARATOR`], which is never equal to a
//! token of the context and ends a continuation. Used are the positions `0..n_memory` and
//! `memory_capacity..memory_capacity + n_context`, the two regions.
//!
//! # Scan
//! 1. For each used position `p` the order `m` is the number of `i` in `0..8`, counted up to the first failure, for
//!    which `p - 1 - i` and `n_context - 1 - i` exist in their regions and `text[p - 1 - i]` is the context's token
//!    `n_context - 1 - i`. The position is a candidate if `m >= 1` and `text[p]` is no separator. Its key is
//!    `m << 24 | p`.
//! 2. Positions `0..memory_capacity + max_seq_len` are cut into chunks of [`DraftText::chunk_len`] positions, at most
//!    128 chunks. Each keeps its 8 largest keys.
//! 3. The 64 largest of these, in descending order, are the candidates `c = 0, 1, …`: long matches first, of equals
//!    the latest first, and the context in front of the memory.
//!
//! # Tree
//! 1. Reliability of an order as a fraction of 65,536:
//!    `r[m] = ((hits[m] + PRIOR_HITS[m]) << 16) / (tries[m] + PRIOR_TRIES)`,
//!    above 0 and below 65,536.
//! 2. `rest = 65,536`. For `m` from 8 down to 1 where `n_m > 0` candidates have order `m`: these share
//!    `share = (rest * r[m] >> 16) << 6`, the later more of it: with `q(j) = 1024 / (j + 1)`, the candidate that has `j`
//!    of its order in front gets the weight `w = share * q(j) / (q(0) + … + q(n_m - 1))`. Then
//!    `rest = rest * (65,536 - r[m]) >> 16`. All divisions round down.
//! 3. The continuation of a candidate is `text[p..]` up to its region's end or a separator, at most 8 tokens. Its
//!    weight at depth 1 is `w`, and at depth `d + 1` it is `weight at d * (r[min(m + d, 8)] >> 6) >> 10`.
//! 4. Candidates whose continuations agree in their first `d` tokens are a node of depth `d`. Its number is
//!    `(d - 1) * 64 + c` with its lowest candidate `c`, its weight the sum over its candidates of their weights at `d`,
//!    below `2^22`. Its key is `weight << 9 | (511 - number)`.
//! 5. Emitted are, in descending order of keys, the largest `n_nodes - 1` with a weight above 0, as nodes `1, 2, …`.
//!    A candidate's weight never grows with depth and a deeper node has no more candidates, so a parent's key is above
//!    its children's, and every emitted node's parent is emitted in front of it.

use super::MAX_NODES;

/// Tokens that the memory holds on the GPU, in front of the context; more add next to nothing (`docs/speculation.md`).
pub const MEMORY: usize = 32_768;
/// Ends an output in the memory; no token has this number.
pub const SEPARATOR: u32 = u32::MAX;
/// The longest match that is told from a shorter one, in tokens.
pub const MAX_ORDER: usize = 8;
/// The longest continuation, in tokens.
pub const MAX_DEPTH: usize = 8;
/// The most candidates.
pub const MAX_CANDIDATES: usize = 64;
/// Chunks of the text, at most.
pub const MAX_CHUNKS: usize = 128;
/// Candidates that a chunk keeps, at most.
pub const PER_CHUNK: usize = 8;
/// What a step adds to an order's tries: as much as it can add to the hits, and fine enough for a part of it.
pub const TRY: u32 = 16;
/// Tries above which an order's counters are halved, so that the past counts for less.
pub const MAX_TRIES: u32 = 4096;
/// Tries of each order before the first.
pub const PRIOR_TRIES: u32 = 64;
/// Hits among these, for the orders 1 to 8.
pub const PRIOR_HITS: [u32; MAX_ORDER] = [8, 16, 24, 32, 40, 44, 48, 56];

/// Positions of a chunk in a buffer of `len`: a 128th of it, rounded up to a power of two and at least 1,024.
pub fn chunk_len(len: usize) -> usize {
    len.div_ceil(MAX_CHUNKS).next_power_of_two().max(1024)
}

/// What the drafter reads.
#[derive(Debug, Clone, Copy)]
pub struct DraftText<'a> {
    /// Earlier outputs, each followed by [`SEPARATOR`]: `[n_memory]`, at most `memory_capacity`.
    pub memory: &'a [u32],
    /// The request's prompt and what was generated: `[n_context]`, at most `max_seq_len`.
    pub context: &'a [u32],
    /// Where the context begins, in tokens: [`MEMORY`] on the GPU. The whole buffer is shorter than 2^24 tokens.
    pub memory_capacity: usize,
    /// Tokens the context may hold.
    pub max_seq_len: usize,
}

impl DraftText<'_> {
    /// Positions of a chunk of this text's buffer.
    pub fn chunk_len(&self) -> usize {
        chunk_len(self.memory_capacity + self.max_seq_len)
    }

    /// The region that holds `position`, and the place in it.
    fn locate(&self, position: usize) -> (&[u32], usize) {
        match position.checked_sub(self.memory_capacity) {
            Some(i) => (self.context, i),
            None => (self.memory, position),
        }
    }

    /// Tokens from `position` on, up to the end of the region or a separator, at most [`MAX_DEPTH`].
    fn continuation(&self, position: u32) -> &[u32] {
        let (region, i) = self.locate(position as usize);
        let rest = region.get(i..).unwrap_or_default();
        let rest = &rest[..rest.len().min(MAX_DEPTH)];
        rest.split(|token| *token == SEPARATOR).next().unwrap_or_default()
    }
}

/// A place where the context's last tokens stood before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Length of the match: 1 to [`MAX_ORDER`] tokens.
    pub order: u32,
    /// Position of the token behind the match.
    pub position: u32,
}

impl Candidate {
    /// What candidates are sorted by.
    pub fn key(self) -> u32 {
        self.order << 24 | self.position
    }

    /// The candidate of a key.
    pub fn from_key(key: u32) -> Candidate {
        Candidate { order: key >> 24, position: key & 0xFF_FFFF }
    }
}

/// The best candidates, at most [`MAX_CANDIDATES`], by descending key.
pub fn scan(text: &DraftText<'_>) -> Vec<Candidate> {
    let Some(last) = text.context.last() else { return Vec::new() };
    let chunk_len = text.chunk_len();
    let mut kept: Vec<u32> = Vec::new();
    let mut chunk: Vec<u32> = Vec::new();
    let mut chunk_end = chunk_len;
    for (region, start) in [(text.memory, 0), (text.context, text.memory_capacity)] {
        for (before, pair) in region.windows(2).enumerate() {
            if pair[0] != *last || pair[1] == SEPARATOR {
                continue;
            }
            let i = before + 1;
            let suffixes = region[..i].iter().rev().zip(text.context.iter().rev()).take(MAX_ORDER);
            let order = suffixes.take_while(|(a, b)| a == b).count();
            let position = start + i;
            while position >= chunk_end {
                keep_largest(&mut chunk, PER_CHUNK);
                kept.append(&mut chunk);
                chunk_end += chunk_len;
            }
            chunk.push(Candidate { order: order as u32, position: position as u32 }.key());
        }
    }
    keep_largest(&mut chunk, PER_CHUNK);
    kept.append(&mut chunk);
    keep_largest(&mut kept, MAX_CANDIDATES);
    kept.into_iter().map(Candidate::from_key).collect()
}

fn keep_largest(keys: &mut Vec<u32>, n: usize) {
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys.truncate(n);
}

/// How often each order was right, in sixteenths of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrderCounters {
    /// Sixteen for a step in which all candidates of the order were right: index 0 is order 1.
    pub hits: [u32; MAX_ORDER],
    /// Sixteen for each step in which the order had candidates.
    pub tries: [u32; MAX_ORDER],
}

impl OrderCounters {
    /// The share of an order's candidates that are right, as a fraction of 65,536: index 0 is order 1.
    pub fn reliability(&self) -> [u32; MAX_ORDER] {
        std::array::from_fn(|m| ((self.hits[m] + PRIOR_HITS[m]) << 16) / (self.tries[m] + PRIOR_TRIES))
    }

    /// Counts a step in which the model predicted `token` behind node 0.
    pub fn update(&mut self, votes: &[Vote], token: u32) {
        for m in 0..MAX_ORDER {
            let of_order = votes.iter().filter(|vote| vote.order as usize == m + 1);
            let (n, right) = of_order.fold((0, 0), |(n, right), vote| (n + 1, right + u32::from(vote.token == token)));
            if n == 0 {
                continue;
            }
            self.tries[m] += TRY;
            self.hits[m] += TRY * right / n;
            if self.tries[m] > MAX_TRIES {
                self.tries[m] /= 2;
                self.hits[m] /= 2;
            }
        }
    }
}

/// What a candidate says of the next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    /// The candidate's order.
    pub order: u32,
    /// The token at its position.
    pub token: u32,
}

/// A tree of guesses. Node 0 is the context's last token; its children guess the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    /// The token of each node: `[n]`, at most `n_nodes`; empty where the context is.
    pub tokens: Vec<u32>,
    /// The parent of each node, which has a lower number; 0 for node 0.
    pub parents: Vec<u32>,
    /// Bit `j` of node `i`: node `j` is an ancestor of `i`, or `i` itself.
    pub ancestors: Vec<u32>,
    /// Order of the best candidate, 0 where there is none.
    pub match_length: u32,
    /// What each candidate says of the next token, for [`OrderCounters::update`].
    pub votes: Vec<Vote>,
}

/// The most probable tree of at most `n_nodes` nodes (at most [`MAX_NODES`], at least 1) over the continuations of
/// `candidates`, which [`scan`] gave for the same text.
pub fn draft_tree(text: &DraftText<'_>, candidates: &[Candidate], counters: &OrderCounters, n_nodes: usize) -> Draft {
    let Some(root) = text.context.last() else { return Draft::default() };
    let reliability = counters.reliability();
    let continuations: Vec<&[u32]> = candidates.iter().map(|c| text.continuation(c.position)).collect();
    let weights = weights(candidates, &reliability);

    // Nodes of the trie, as keys: a candidate stands for those behind it that agree with it, unless one in front does.
    let agree = |a: usize, b: usize, depth: usize| {
        continuations[a].len() >= depth && continuations[b].get(..depth) == Some(&continuations[a][..depth])
    };
    let lowest = |c: usize, depth: usize| (0..=c).find(|other| agree(*other, c, depth));
    let mut keys = Vec::new();
    for depth in 1..=MAX_DEPTH {
        for c in (0..candidates.len()).filter(|c| lowest(*c, depth) == Some(*c)) {
            let members = (c..candidates.len()).filter(|other| agree(c, *other, depth));
            let weight: u32 = members.map(|member| weights[member][depth - 1]).sum();
            let number = (depth - 1) * MAX_CANDIDATES + c;
            if weight > 0 {
                keys.push(weight << 9 | (511 - number as u32));
            }
        }
    }
    keep_largest(&mut keys, n_nodes.clamp(1, MAX_NODES) - 1);

    let numbers: Vec<usize> = keys.iter().map(|key| 511 - (key & 511) as usize).collect();
    let mut draft = Draft { tokens: vec![*root], parents: vec![0], ancestors: vec![1], ..Draft::default() };
    for (i, number) in numbers.iter().enumerate() {
        let (depth, c) = (number / MAX_CANDIDATES + 1, number % MAX_CANDIDATES);
        // The parent is emitted already: see the module's text.
        let parent = lowest(c, depth - 1)
            .filter(|_| depth > 1)
            .and_then(|lowest| numbers[..i].iter().position(|other| *other == (depth - 2) * MAX_CANDIDATES + lowest));
        let parent = parent.map_or(0, |i| i + 1);
        draft.tokens.push(continuations[c][depth - 1]);
        draft.parents.push(parent as u32);
        draft.ancestors.push(draft.ancestors[parent] | 1 << (i + 1));
    }
    draft.match_length = candidates.first().map_or(0, |best| best.order);
    let first = continuations.iter().map(|tokens| tokens.first());
    let votes = candidates.iter().zip(first).filter_map(|(c, token)| Some(Vote { order: c.order, token: *token? }));
    draft.votes = votes.collect();
    draft
}

/// The weight of each candidate at the depths 1 to 8: `[n_candidates]`.
fn weights(candidates: &[Candidate], reliability: &[u32; MAX_ORDER]) -> Vec<[u32; MAX_DEPTH]> {
    let order = |c: &Candidate| (c.order as usize).clamp(1, MAX_ORDER);
    let recency = |j: usize| 1024 / (j as u32 + 1);
    let mut share = [0; MAX_ORDER];
    let mut parts = [1; MAX_ORDER];
    let mut rest = 1 << 16;
    for m in (0..MAX_ORDER).rev() {
        let n = candidates.iter().filter(|c| order(c) == m + 1).count();
        if n > 0 {
            share[m] = ((rest * reliability[m]) >> 16) << 6;
            parts[m] = (0..n).map(recency).sum();
            rest = (rest * ((1 << 16) - reliability[m])) >> 16;
        }
    }
    let at_depths = |(i, c): (usize, &Candidate)| {
        let m = order(c);
        let in_front = candidates[..i].iter().filter(|other| order(other) == m).count();
        let mut weight = share[m - 1] * recency(in_front) / parts[m - 1];
        std::array::from_fn(|d| {
            if d > 0 {
                weight = (weight * (reliability[(m + d).min(MAX_ORDER) - 1] >> 6)) >> 10;
            }
            weight
        })
    };
    candidates.iter().enumerate().map(at_depths).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn text<'a>(memory: &'a [u32], context: &'a [u32]) -> DraftText<'a> {
        DraftText { memory, context, memory_capacity: MEMORY, max_seq_len: 4096 }
    }

    fn at(position: usize, order: u32) -> Candidate {
        Candidate { order, position: position as u32 }
    }

    fn draft(memory: &[u32], context: &[u32], n_nodes: usize) -> Draft {
        let text = text(memory, context);
        draft_tree(&text, &scan(&text), &OrderCounters::default(), n_nodes)
    }

    #[test]
    fn empty_texts_give_empty_drafts() {
        assert_eq!(draft(&[], &[], 8), Draft::default());
        assert_eq!(draft(&[5, SEPARATOR], &[], 8), Draft::default());
        let alone = Draft { tokens: vec![5], parents: vec![0], ancestors: vec![1], ..Draft::default() };
        assert_eq!(draft(&[], &[5], 8), alone);
        assert_eq!(draft(&[5, SEPARATOR, 6, SEPARATOR], &[5], 8), alone);
        assert_eq!(draft(&[5, 6], &[5], 1).tokens, [5]);
    }

    #[test]
    fn matches_end_at_separators_and_regions() {
        // The token in front of the context's first is the memory's last only in the buffer, not in the text.
        let context = [1, 2, 3, 1, 2];
        assert_eq!(scan(&text(&[], &context)), [at(MEMORY + 2, 2)]);
        let memory = [9, 1, 2, 7, SEPARATOR, 2, 8, SEPARATOR, 1, 2, SEPARATOR];
        assert_eq!(scan(&text(&memory, &context)), [at(MEMORY + 2, 2), at(3, 2), at(6, 1)]);
        // A full memory touches the context and still does not run over into it.
        let full: Vec<u32> = (0..MEMORY as u32).map(|i| i + 100).collect();
        let last = full[MEMORY - 1];
        assert_eq!(scan(&text(&full, &[last - 1, last])), []);
        assert_eq!(scan(&text(&full, &[last - 2, last - 1])), [at(MEMORY - 1, 2)]);
        assert_eq!(text(&full, &[1]).continuation(MEMORY as u32 - 1), [last]);
        assert_eq!(text(&memory, &context).continuation(3), [7]);
    }

    #[test]
    fn orders_end_at_eight_and_chunks_keep_eight() {
        let context = [7; 40];
        let found = scan(&text(&[], &context));
        // Positions 1 to 39 match with up to 8 tokens; the 8 best are the latest.
        let latest: Vec<Candidate> = (32..40).rev().map(|i| at(MEMORY + i, 8)).collect();
        assert_eq!(found, latest);
        // Over several chunks, chunks of 1,024: 8 of each, and 64 in all.
        let memory = [7; 12 * 1024];
        let found = scan(&text(&memory, &context));
        assert_eq!(found.len(), MAX_CANDIDATES);
        assert_eq!(found[8], at(12 * 1024 - 1, 8));
        assert_eq!(found[16], at(11 * 1024 - 1, 8));
    }

    #[test]
    fn chunks_cover_the_text() {
        let len =
            |max_seq_len| DraftText { memory_capacity: MEMORY, max_seq_len, memory: &[], context: &[] }.chunk_len();
        assert_eq!((len(1), len(4096), len(98_304), len(98_305), len(131_072)), (1024, 1024, 1024, 2048, 2048));
        assert!((MEMORY + 131_072).div_ceil(len(131_072)) <= MAX_CHUNKS);
    }

    #[test]
    fn a_tree_branches_where_continuations_differ() {
        // Behind [1, 2] stood [3, 5] once and then [3, 4] twice; behind another 2 stood 6.
        let context = [1, 2, 3, 5, 1, 2, 3, 4, 1, 2, 3, 4, 9, 2, 6, 8, 1, 2];
        let tree = draft(&[], &context, 8);
        assert_eq!(tree.match_length, 2);
        // What stood there often and late is in front; tokens stand with their parents' tokens.
        assert_eq!((tree.tokens[1], tree.parents[1], tree.ancestors[1]), (3, 0, 0b11));
        let edges: Vec<(u32, usize)> =
            (1..tree.tokens.len()).map(|i| (tree.tokens[tree.parents[i] as usize], i)).collect();
        let place = |from: u32, to: u32| edges.iter().position(|(a, i)| *a == from && tree.tokens[*i] == to);
        assert!(place(2, 6).is_some() && place(3, 4) < place(3, 5) && place(3, 4).is_some());
        let votes: Vec<(u32, u32)> = tree.votes.iter().map(|vote| (vote.order, vote.token)).collect();
        assert_eq!(votes, [(2, 3), (2, 3), (2, 3), (1, 6)]);
    }

    #[test]
    fn counters_follow_success() {
        let mut counters = OrderCounters::default();
        let before = counters.reliability();
        let votes = [(3, 5), (3, 5), (3, 6), (1, 6)].map(|(order, token)| Vote { order, token });
        counters.update(&votes, 5);
        assert_eq!((counters.hits[2], counters.tries[2]), (10, 16));
        assert_eq!((counters.hits[0], counters.tries[0]), (0, 16));
        assert_eq!(counters.tries[1], 0);
        assert!(counters.reliability()[2] > before[2] && counters.reliability()[0] < before[0]);
        for _ in 0..1000 {
            counters.update(&votes, 6);
            assert!(
                counters.tries.iter().zip(&counters.hits).all(|(tries, hits)| hits <= tries && *tries <= MAX_TRIES)
            );
        }
        assert!(counters.reliability()[0] > 64_000);
    }

    /// A small alphabet, so that much repeats.
    fn tokens(max: usize) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(prop_oneof![12 => 0u32..4, 1 => Just(SEPARATOR)], 0..max)
    }

    fn counters() -> impl Strategy<Value = OrderCounters> {
        prop::array::uniform8((0..=MAX_TRIES, 0..=MAX_TRIES))
            .prop_map(|pairs| OrderCounters { hits: pairs.map(|(a, b)| a.min(b)), tries: pairs.map(|(a, b)| a.max(b)) })
    }

    proptest! {
        #[test]
        fn candidates_are_matches(memory in tokens(3000), context in prop::collection::vec(0u32..4, 0..300)) {
            let text = text(&memory, &context);
            let found = scan(&text);
            prop_assert!(found.len() <= MAX_CANDIDATES);
            prop_assert!(found.is_sorted_by(|a, b| a.key() > b.key()));
            for candidate in &found {
                let (region, i) = text.locate(candidate.position as usize);
                let m = candidate.order as usize;
                prop_assert!((1..=MAX_ORDER).contains(&m) && region[i] != SEPARATOR);
                prop_assert_eq!(&region[i - m..i], &context[context.len() - m..]);
                let longer = m < MAX_ORDER && m < i && m < context.len();
                prop_assert!(!longer || region[i - m - 1] != context[context.len() - m - 1]);
            }
            let best = (1..context.len()).filter(|i| context[i - 1] == context[context.len() - 1]).count();
            prop_assert!(best == 0 || !found.is_empty());
        }

        #[test]
        fn trees_are_sound(
            memory in tokens(3000),
            context in prop::collection::vec(0u32..4, 0..300),
            counters in counters(),
            n_nodes in 0usize..40,
        ) {
            let text = text(&memory, &context);
            let candidates = scan(&text);
            let tree = draft_tree(&text, &candidates, &counters, n_nodes);
            prop_assert_eq!(&tree, &draft_tree(&text, &candidates, &counters, n_nodes));
            let n = tree.tokens.len();
            prop_assert!(n <= n_nodes.clamp(1, MAX_NODES) && tree.parents.len() == n && tree.ancestors.len() == n);
            prop_assert_eq!(n == 0, context.is_empty());
            let mut siblings = Vec::new();
            for i in 1..n {
                let parent = tree.parents[i];
                prop_assert!((parent as usize) < i && tree.tokens[i] != SEPARATOR);
                prop_assert_eq!(tree.ancestors[i], tree.ancestors[parent as usize] | 1 << i);
                prop_assert!(tree.ancestors[i].count_ones() as usize <= MAX_DEPTH + 1);
                prop_assert!(!siblings.contains(&(parent, tree.tokens[i])));
                siblings.push((parent, tree.tokens[i]));
            }
            // A narrower tree is the beginning of a wider one.
            let narrow = draft_tree(&text, &candidates, &counters, n_nodes.min(4));
            prop_assert_eq!(&narrow.tokens[..], &tree.tokens[..narrow.tokens.len()]);
        }

        /// Against a trie that is written as one thinks of it: paths and their weights.
        #[test]
        fn trees_are_the_heaviest_paths(
            memory in tokens(3000),
            context in prop::collection::vec(0u32..4, 1..300),
            counters in counters(),
        ) {
            let text = text(&memory, &context);
            let candidates = scan(&text);
            let mut paths: BTreeMap<&[u32], u32> = BTreeMap::new();
            for (candidate, weights) in candidates.iter().zip(weights(&candidates, &counters.reliability())) {
                let tokens = text.continuation(candidate.position);
                for depth in 1..=tokens.len() {
                    *paths.entry(&tokens[..depth]).or_default() += weights[depth - 1];
                }
            }
            prop_assert!(paths.values().all(|weight| *weight < 1 << 22));
            let tree = draft_tree(&text, &candidates, &counters, MAX_NODES);
            let path = |node: usize| -> Vec<u32> {
                (1..=node).filter(|i| tree.ancestors[node] >> i & 1 == 1).map(|i| tree.tokens[i]).collect()
            };
            let emitted: Vec<u32> = (1..tree.tokens.len()).map(|node| paths[&path(node)[..]]).collect();
            let mut all: Vec<u32> = paths.into_values().filter(|weight| *weight > 0).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.truncate(MAX_NODES - 1);
            prop_assert_eq!(emitted, all);
        }
    }
}
