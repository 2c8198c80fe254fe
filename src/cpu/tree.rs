//! The tokens of one pass: a tree behind the committed context, of which a chain is the plain case.

/// The most nodes a pass holds: a node's ancestors are the bits of a `u32`.
pub const MAX_NODES: usize = 32;

/// The nodes of one pass, behind `n_committed` tokens that are in the cache already.
///
/// Node `i` lies in the cache at slot `n_committed + i`, but in the text at position `n_committed + depth`. It sees
/// the committed positions, then its ancestors and itself, each at its own position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Tokens whose keys and values are in the cache, at slots `0..n_committed`.
    pub n_committed: usize,
    /// Per node, bit `j` set where node `j` is an ancestor or the node itself; ancestors have lower numbers.
    pub ancestors: Vec<u32>,
}

impl Tree {
    /// A chain of `n` nodes (at most [`MAX_NODES`]): plain decoding for one, a part of a prefill for more.
    pub fn chain(n_committed: usize, n: usize) -> Tree {
        Tree { n_committed, ancestors: (0..n as u32).map(|i| u32::MAX >> (31 - i.min(31))).collect() }
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.ancestors.len()
    }

    /// The position of `node` in its text.
    pub fn position(&self, node: usize) -> usize {
        self.n_committed + (self.ancestors[node].count_ones() as usize).saturating_sub(1)
    }

    /// The slot of the cache that holds the key and the value of `node`.
    pub fn slot(&self, node: usize) -> usize {
        self.n_committed + node
    }

    /// The slots that `node` reads for the positions `first..first + slots.len()`; answers how many of these
    /// positions it sees. The rest of `slots` is left as it was.
    pub fn slots_at(&self, node: usize, first: usize, slots: &mut [usize]) -> usize {
        let n = (self.position(node) + 1).saturating_sub(first).min(slots.len());
        let mut rest = self.ancestors[node];
        for _ in self.n_committed..first {
            rest &= rest.wrapping_sub(1);
        }
        for (i, slot) in slots[..n].iter_mut().enumerate() {
            if first + i < self.n_committed {
                *slot = first + i;
            } else {
                *slot = self.n_committed + rest.trailing_zeros() as usize;
                rest &= rest.wrapping_sub(1);
            }
        }
        n
    }

    /// Whether every node is its own last ancestor and its ancestors stand before it, so that no pass can read a
    /// slot that was never written.
    pub fn is_sound(&self) -> bool {
        self.ancestors.len() <= MAX_NODES
            && self.ancestors.iter().enumerate().all(|(i, bits)| *bits != 0 && 31 - bits.leading_zeros() == i as u32)
    }
}
