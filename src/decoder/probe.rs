//! The probe at load: the steps of decoding and of prefill are compared, bit for bit on this very device, with the step
//! of one token in the plainest kernels. What differs is not used.

use super::control::Control;
use super::forward::{Fusion, Outcome, vocab_parts};
use super::step::{BUCKETS, MEMORY, StepKey, draft_chunks};
use super::window::{FusionChoice, GpuDecoder};
use crate::Result;
use crate::gpu::now_ms;

/// Tokens that the probe runs on a GPU (the widest step is whole, with a token behind it), and on a program that plays
/// one, where each takes long.
const PROBE_TOKENS: usize = 33;
const PROBE_TOKENS_SOFTWARE: usize = 5;
/// Nodes of the widest prefill step on a program that plays a GPU: a wider one gains nothing there.
const WIDEST_SOFTWARE: usize = 8;

/// The residual of each token, and the best logits behind it where the step has a head.
#[derive(Default)]
pub(super) struct Trace {
    x: Vec<Vec<u32>>,
    best: Vec<Option<Vec<u32>>>,
}

impl GpuDecoder {
    /// Records, probes and, for [`FusionChoice::Auto`], times the plans, and notes what was left out.
    pub(super) async fn choose_plan(&mut self, choice: FusionChoice) -> Result<()> {
        let mut left_out = Vec::new();
        let decode = |fusion, plain| StepKey { fusion, plain, ..StepKey::PLAIN };
        let key = decode(Fusion::NONE, true);
        self.record(&[key]).await?;
        let reference = self.trace(key).await?;
        let wanted = match choice {
            FusionChoice::None => Fusion::NONE,
            FusionChoice::All => Fusion::ALL,
            FusionChoice::Auto => self.faster().await?,
        };
        self.planned = wanted;
        for (fusion, plain) in [(wanted, false), (Fusion::NONE, false), (wanted, true), (Fusion::NONE, true)] {
            (self.fusion, self.plain) = (fusion, plain);
            let key = self.decode_key();
            self.record(&[key]).await?;
            if self.trace(key).await?.agrees(&reference) {
                break;
            }
            let plan = if fusion == Fusion::NONE { "the plan of a kernel an operation" } else { "the fused plan" };
            let features = if plain { "" } else { ", with this device's subgroups and packed dot product," };
            left_out.push(format!("{plan}{features} gives other bits than the plain kernels on this device"));
        }
        // The widest prefill step that agrees; a step of one always does.
        let software = self.gpu.adapter().is_software;
        let widest = if software { WIDEST_SOFTWARE } else { usize::MAX }.min(self.scratch.max_tokens);
        for &tokens in BUCKETS.iter().rev().filter(|&&tokens| tokens <= widest) {
            self.prefill_tokens = tokens;
            let key = self.prefill_key();
            self.record(&[key]).await?;
            if self.trace(key).await?.agrees(&reference) {
                break;
            }
            left_out.push(format!("steps of {tokens} tokens give other bits than steps of one on this device"));
        }
        self.reference = reference;
        self.left_out = left_out;
        Ok(())
    }

    /// Records the decode step of a width and lets it be used, unless its kernels give other bits on this device.
    pub(super) async fn admit(&mut self, width: usize) -> Result<()> {
        let known = self.widths.contains(&width) || self.refused.contains(&width);
        if known || !BUCKETS.contains(&width) || width > self.scratch.max_tokens {
            return Ok(());
        }
        // `match` sorts a chunk's positions in workgroup memory, besides a few words of its own.
        let (chunk, _) = draft_chunks(self.scratch.max_seq_len);
        if 4 * (chunk + 16) > self.gpu.adapter().max_workgroup_memory as usize {
            self.refused.push(width);
            self.left_out
                .push(format!("draft trees of {width} nodes cannot search a context this long on this device"));
            return Ok(());
        }
        // A step that scores has the same layers and the same head, and takes a chain instead of a draft.
        let scores = StepKey { outcome: Outcome::Score, ..self.width_key(width) };
        self.record(&[scores, self.width_key(width)]).await?;
        self.forget();
        if self.trace(scores).await?.agrees(&self.reference) {
            self.widths.push(width);
        } else {
            self.refused.push(width);
            self.left_out
                .push(format!("draft trees of {width} nodes give other bits than single steps on this device"));
        }
        Ok(())
    }

    /// Runs a fixed context through steps of one kind.
    async fn trace(&self, key: StepKey) -> Result<Trace> {
        let most = if self.gpu.adapter().is_software { PROBE_TOKENS_SOFTWARE } else { PROBE_TOKENS };
        let n = most.min(self.scratch.max_seq_len - 1);
        self.start_probe(n);
        let (dim, parts) = (self.config.dim, vocab_parts(self.config.vocab_size));
        let kept = usize::from(key.outcome == Outcome::Prefill);
        let mut trace = Trace { x: Vec::new(), best: Vec::new() };
        let step = self.recording(key)?;
        for first in (0..n - kept).step_by(key.tokens) {
            let nodes = key.tokens.min(n - kept - first);
            self.gpu.submit(&[step], None);
            let bytes = self.gpu.read(&self.scratch.x, 0, (4 * nodes * dim) as u64).await?;
            trace.x.extend(bytemuck::pod_collect_to_vec::<u8, u32>(&bytes).chunks(dim).map(<[u32]>::to_vec));
            if key.outcome == Outcome::Prefill {
                trace.best.extend(vec![None; nodes]);
            } else {
                let bytes = self.gpu.read(&self.scratch.best, 0, (8 * nodes * parts) as u64).await?;
                let best = bytemuck::pod_collect_to_vec::<u8, u32>(&bytes);
                trace.best.extend(best.chunks(2 * parts).map(|best| Some(best.to_vec())));
            }
        }
        Ok(trace)
    }

    fn start_probe(&self, n: usize) {
        let vocab_size = self.config.vocab_size as u32;
        let tokens: Vec<u32> = (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) % vocab_size).collect();
        let control = Control { n_context: n as u32, max_context: self.scratch.max_seq_len as u32, ..Control::new() };
        self.gpu.write(&self.scratch.control, 0, bytemuck::bytes_of(&control));
        self.gpu.write(&self.scratch.text, 4 * MEMORY as u64, bytemuck::cast_slice(&tokens));
    }

    /// The plan whose decode step takes less time.
    async fn faster(&mut self) -> Result<Fusion> {
        let mut best = (f64::INFINITY, Fusion::NONE);
        for fusion in [Fusion::NONE, Fusion::ALL] {
            let key = StepKey { fusion, ..StepKey::PLAIN };
            self.record(&[key]).await?;
            let step = self.recording(key)?;
            let mut shortest = f64::INFINITY;
            let (repeats, steps) = if self.gpu.adapter().is_software { (1, 1) } else { (3, 8) };
            for _ in 0..repeats {
                self.start_probe(2);
                self.gpu.finish().await?;
                let started = now_ms();
                self.gpu.submit(&vec![step; steps], None);
                self.gpu.finish().await?;
                shortest = f64::min(shortest, now_ms() - started);
            }
            if shortest < best.0 {
                best = (shortest, fusion);
            }
        }
        Ok(best.1)
    }
}

impl Trace {
    /// Whether all that both have is the same, bit for bit.
    fn agrees(&self, reference: &Trace) -> bool {
        let x = self.x.iter().zip(&reference.x).all(|(a, b)| a == b);
        let pairs = self.best.iter().zip(&reference.best);
        x && pairs.flat_map(|(a, b)| a.iter().zip(b)).all(|(a, b)| a == b)
    }
}
