//! The state of the loop in a GPU buffer, which the CPU only reads between windows.

use bytemuck::Zeroable;

use super::controller::StepStats;
use super::request::{TokenLogprobs, TreeNode};
use crate::cpu::MAX_NODES;
use crate::cpu::draft::{MAX_CANDIDATES, MAX_ORDER};

/// End tokens that the loop can watch for.
pub const MAX_END_TOKENS: usize = 24;
/// Generated tokens that the control state keeps for the CPU to drain.
pub const RECENT: usize = 256;
/// Decode steps whose statistics the control state keeps.
pub const STEP_STATS: usize = 64;

/// Tokens that a step generates at most: a drafted path of 8, and the one that follows.
pub const MAX_NEW: usize = 9;
/// The most probable tokens that can be asked for besides the chosen one.
pub const MAX_TOP: usize = 20;
/// Generated tokens whose log-probabilities stand behind the control state: those of a window of 4 steps, at most 9 each.
pub const LOGPROBS: usize = 64;
/// Bytes of the control buffer: the control state, and the log-probabilities behind it.
pub const CONTROL_BYTES: u64 = (size_of::<Control>() + LOGPROBS * size_of::<Logprobs>()) as u64;

/// Log-probabilities of a generated token, the same struct as in `kernels/logprobs.wgsl`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Logprobs {
    /// That of the token.
    pub chosen: f32,
    /// The most probable tokens, in order.
    pub tokens: [u32; MAX_TOP],
    /// Theirs.
    pub logprobs: [f32; MAX_TOP],
}

impl Logprobs {
    /// The same with `n_top` of the most probable tokens.
    pub fn told(&self, n_top: usize) -> TokenLogprobs {
        let top = self.tokens.iter().copied().zip(self.logprobs.iter().copied()).take(n_top);
        TokenLogprobs { logprob: self.chosen, top: top.collect() }
    }
}

/// The same struct as in `kernels/shared/control.wgsl`; a test compares the two.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Control {
    /// Positions whose keys and values are in the cache for good.
    pub n_committed: u32,
    /// Live nodes of this step, 0 when there is nothing to do.
    pub n_nodes: u32,
    /// Tokens in the context: prompt and generated.
    pub n_context: u32,
    /// Tokens generated for this request.
    pub n_generated: u32,
    /// The request ends when the context holds this many tokens.
    pub max_context: u32,
    /// 0 running, 1 an end token was generated, 2 `max_context` was reached.
    pub finished: u32,
    /// Decode steps that processed at least one node.
    pub n_steps: u32,
    /// How many of `end_tokens` are in use.
    pub n_end_tokens: u32,
    /// The first nodes of the step, which the context holds already; the others are drafted.
    pub n_given: u32,
    /// Tokens in the memory.
    pub n_memory: u32,
    /// The context's last tokens that the draft's best candidate follows, 0 without a draft.
    pub match_length: u32,
    /// Candidates of the draft.
    pub n_candidates: u32,
    /// Tokens that this step generated.
    pub n_new: u32,
    /// The most probable tokens to tell for each, where log-probabilities are asked for.
    pub n_top: u32,
    /// Tokens that end the request.
    pub end_tokens: [u32; MAX_END_TOKENS],
    /// The token of each node.
    pub tokens: [u32; MAX_NODES],
    /// Bit `j` of node `i`: node `j` is an ancestor of `i`, or `i` itself.
    pub ancestors: [u32; MAX_NODES],
    /// The cache row of each node.
    pub slots: [u32; MAX_NODES],
    /// Of each match length from 1 on: steps whose candidates were right, in sixteenths.
    pub hits: [u32; MAX_ORDER],
    /// Of each match length: steps that had candidates, in sixteenths.
    pub tries: [u32; MAX_ORDER],
    /// What the draft's candidates have for the next token.
    pub candidate_tokens: [u32; MAX_CANDIDATES],
    /// Their match lengths.
    pub candidate_orders: [u32; MAX_CANDIDATES],
    /// Generated token number `g` stands at `g % 256`.
    pub recent: [u32; RECENT],
    /// Of decode step `s` at `s % 64`: nodes, n_accepted, match_length, a byte each from the lowest on.
    pub step_stats: [u32; STEP_STATS],
    /// Of the same step: bit `i`, node `i` is on the accepted path.
    pub step_paths: [u32; STEP_STATS],
}

/// Why generation ended, as `Control::finished` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end token was generated.
    EndToken,
    /// The token limit or the end of the context was reached.
    Length,
}

impl Control {
    /// A control state with nothing in it.
    pub fn new() -> Control {
        Control::zeroed()
    }

    /// What decode step `step` reported, one of the last [`STEP_STATS`], which was recorded for `width` nodes.
    pub fn step(&self, step: u32, width: usize) -> StepStats {
        let at = step as usize % STEP_STATS;
        let [nodes, n_accepted, match_length, _] = self.step_stats[at].to_le_bytes();
        let path = self.step_paths[at];
        StepStats { nodes: width as u8, n_drafted: nodes.saturating_sub(1), n_accepted, match_length, path }
    }

    /// The draft tree of the last decode step; empty where it had no draft.
    pub fn tree(&self) -> Vec<TreeNode> {
        let n_nodes = (self.n_nodes as usize).min(MAX_NODES);
        if self.n_given != 1 || n_nodes < 2 || self.n_steps == 0 {
            return Vec::new();
        }
        let path = self.step_paths[(self.n_steps as usize - 1) % STEP_STATS];
        let node = |node: usize| TreeNode {
            token: self.tokens[node],
            parent: (self.ancestors[node] & !(1 << node)).checked_ilog2().unwrap_or(0) as usize,
            accepted: path >> node & 1 == 1,
        };
        (0..n_nodes).map(node).collect()
    }

    /// Why generation ended, if it has.
    pub fn finish(&self) -> Option<Finish> {
        match self.finished {
            0 => None,
            1 => Some(Finish::EndToken),
            _ => Some(Finish::Length),
        }
    }
}

impl Default for Control {
    fn default() -> Control {
        Control::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_struct_of_the_kernels() {
        let shader = include_str!("../../kernels/shared/control.wgsl");
        let rust = include_str!("control.rs");
        let fields = |text: &str, opening: &str| -> Vec<(String, String)> {
            let body = text.split(opening).nth(1).unwrap().split("\n}").next().unwrap().to_owned();
            let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("//") && line.contains(": "));
            lines
                .map(|line| {
                    let (name, rest) = line.split_once(": ").unwrap();
                    let kind = rest.split("//").next().unwrap().trim().trim_end_matches(',').to_owned();
                    let length: String = kind.trim_start_matches("array<u32").trim_start_matches("[u32").to_owned();
                    let length = length
                        .replace("MAX_END_TOKENS", "24")
                        .replace("MAX_NODES", "32")
                        .replace("RECENT", "256")
                        .replace("MAX_ORDER", "8")
                        .replace("MAX_CANDIDATES", "64")
                        .replace("STEP_STATS", "64")
                        .chars()
                        .filter(char::is_ascii_digit)
                        .collect::<String>();
                    (name.trim_start_matches("pub ").to_owned(), if kind == "u32" { String::new() } else { length })
                })
                .collect()
        };
        assert_eq!(fields(shader, "struct Control {"), fields(rust, "pub struct Control {"));
        assert_eq!((MAX_END_TOKENS, MAX_NODES, RECENT), (24, 32, 256));
        assert_eq!((MAX_ORDER, MAX_CANDIDATES, STEP_STATS), (8, 64, 64));
    }
}
