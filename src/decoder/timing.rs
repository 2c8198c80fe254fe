//! Calibration on this device: what steps of each width take, and which windows decode fastest.

use super::calibrate::{Calibration, choose_window};
use super::control::Control;
use super::controller::Costs;
use super::forward::{Fusion, Outcome};
use super::request::{Mode, Request};
use super::sampler::SamplingOptions;
use super::step::{BUCKETS, MEMORY, StepKey};
use super::window::GpuDecoder;
use crate::Result;
use crate::gpu::now_ms;

/// Steps of a short timed run; a long one has three times as many.
const STEPS: usize = 4;
/// How often each run is timed; the shortest time counts.
const REPEATS: usize = 3;
/// Tokens decoded with each pair of window and windows in flight.
const WINDOW_TOKENS: usize = 24;

impl GpuDecoder {
    /// Times steps of each width, then windows of 1, 2 and 4 steps with 2 to 4 in flight, uses what it found and
    /// answers it. The cache is empty afterwards.
    ///
    /// # Errors
    /// As [`GpuDecoder::generate`].
    pub async fn calibrate(&mut self) -> Result<Calibration> {
        let costs = self.time_widths().await?;
        self.set_costs(costs);
        let mut tried = Vec::new();
        for steps in [1, 2, 4] {
            for in_flight in [2, 3, 4] {
                self.set_window(Some((steps, in_flight)));
                if let Some(ms) = self.time_window().await? {
                    tried.push((steps, in_flight, ms));
                }
            }
        }
        self.set_window((!tried.is_empty()).then(|| choose_window(&tried)));
        self.forget();
        Ok(Calibration { costs, window: self.window, is_fused: self.planned == Fusion::ALL })
    }

    /// Uses what an earlier calibration found, in the place of a new one.
    ///
    /// # Errors
    /// As [`GpuDecoder::prepare`].
    pub async fn set_calibration(&mut self, known: &Calibration) -> Result<()> {
        self.set_costs(known.costs);
        self.set_window(known.window);
        self.prepare(Mode::Adaptive).await
    }

    /// Times steps of each width whose nodes are all live.
    async fn time_widths(&mut self) -> Result<Costs> {
        let mut runs = Vec::new();
        for (i, width) in BUCKETS.into_iter().enumerate() {
            self.admit(width).await?;
            if self.widths.contains(&width) && 3 * STEPS * width < self.scratch.max_seq_len {
                let outcome = if width == 1 { Outcome::Predict } else { Outcome::Score };
                let key = StepKey { outcome, ..self.width_key(width) };
                self.record(&[key]).await?;
                runs.push((i, key, f64::INFINITY, f64::INFINITY));
            }
        }
        // Width by width in each round: the GPU's clocks are slow at first, and that must not count for one width alone.
        for _ in 0..REPEATS {
            for (_, key, short, long) in &mut runs {
                *short = short.min(self.time_steps(*key, STEPS).await?);
                *long = long.min(self.time_steps(*key, 3 * STEPS).await?);
            }
        }
        let mut costs = Costs { ms: [f64::INFINITY; BUCKETS.len()] };
        for (i, _, short, long) in runs {
            // What the beginning and the report take falls out of the difference.
            let ms = (long - short) / (2 * STEPS) as f64;
            costs.ms[i] = if ms > 0.0 { ms } else { long / (3 * STEPS) as f64 };
        }
        Ok(costs)
    }

    /// Milliseconds of `n` steps whose nodes are all live, and of the report of their end.
    async fn time_steps(&mut self, key: StepKey, n: usize) -> Result<f64> {
        let n_context = if key.tokens == 1 { 1 } else { n * key.tokens };
        let tokens: Vec<u32> = (0..n_context as u32).map(|i| i % self.config().vocab_size as u32).collect();
        let max_context = self.scratch.max_seq_len as u32;
        let control = Control { n_context: n_context as u32, max_context, ..Control::new() };
        self.gpu.write(&self.scratch.control, 0, bytemuck::bytes_of(&control));
        self.gpu.write(&self.scratch.text, 4 * MEMORY as u64, bytemuck::cast_slice(&tokens));
        self.gpu.finish().await?;
        let started = now_ms();
        // Step by step, as in decoding: the next ones are encoded while the GPU runs the first.
        for _ in 0..n {
            self.gpu.submit(&[self.recording(key)?], None);
        }
        self.gpu.finish().await?;
        Ok(now_ms() - started)
    }

    /// Milliseconds a token of a short generation, where the context has room for one.
    async fn time_window(&mut self) -> Result<Option<f64>> {
        self.forget();
        let max_tokens = WINDOW_TOKENS.min(self.max_seq_len().saturating_sub(2));
        let request = Request {
            prompt: &[0],
            max_tokens,
            end_tokens: &[],
            mode: Mode::Loop,
            sampling: SamplingOptions::default(),
            logprobs: None,
        };
        let remembered = self.set_remembers(false);
        let generated = self.generate(&request, &mut |_| std::ops::ControlFlow::Continue(())).await;
        self.set_remembers(remembered);
        Ok(Some(generated?.decode_ms_per_token()).filter(|ms| *ms > 0.0))
    }
}
