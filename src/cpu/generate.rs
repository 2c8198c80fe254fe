//! The decoding loop on the CPU, with the same requests and answers as the GPU's.

use std::ops::ControlFlow;

use super::model::{CpuModel, LogitsOf, Pass};
use super::{MAX_NODES, argmax, choose, logprobs};
use crate::decoder::request::{Finish, Generated, News, OnTokens, Request, check_request, check_tokens, common_prefix};
use crate::gpu::{breathe, now_ms};
use crate::{Error, Result};

impl CpuModel {
    /// Continues `request.prompt`. What the cache holds of the prompt already is not computed again.
    ///
    /// # Errors
    /// As [`GpuDecoder::generate`](crate::decoder::GpuDecoder::generate).
    pub async fn generate(&mut self, request: &Request<'_>, on_tokens: OnTokens<'_>) -> Result<Generated> {
        let started = now_ms();
        let sampling = check_request(request, self.config(), self.max_seq_len())?;
        let n_prompt = request.prompt.len();
        let cached_tokens = common_prefix(self.committed(), request.prompt).min(n_prompt - 1);
        let mut generated = Generated::nothing(n_prompt, cached_tokens);
        let mut logits = match self.prefill(request.prompt, |_| on_tokens(&News::default())).await {
            Ok(logits) => logits,
            Err(Error::Aborted) => return Ok(generated),
            Err(error) => return Err(error),
        };
        let max_tokens = request.max_tokens.min(self.max_seq_len() - n_prompt);
        let mut context = request.prompt.to_vec();
        let first = now_ms();
        generated.ttft_ms = first - started;
        loop {
            // Penalties change the logits, and log-probabilities are of the model's own.
            let own = request.logprobs.filter(|_| sampling.is_some()).map(|_| logits.clone());
            let token = match &sampling {
                None => argmax(&logits),
                Some(sampling) => choose(&mut logits, sampling, &context, n_prompt, &[]),
            };
            let told = request.logprobs.map(|n_top| logprobs(own.as_ref().unwrap_or(&logits), token, n_top));
            generated.logprobs.extend(told);
            context.push(token);
            generated.tokens.push(token);
            generated.steps += 1;
            generated.decode_ms = now_ms() - first;
            if request.end_tokens.contains(&token) {
                generated.finish = Some(Finish::EndToken);
            } else if generated.tokens.len() == max_tokens {
                generated.finish = Some(Finish::Length);
            }
            let told = generated.logprobs.last().map_or(&[][..], std::slice::from_ref);
            if on_tokens(&News { tokens: &[token], logprobs: told, ..News::default() }).is_break() {
                generated.finish = None;
                return Ok(generated);
            }
            if generated.finish.is_some() {
                return Ok(generated);
            }
            breathe().await;
            let pass = Pass::chain(&[token]);
            logits = self.forward(&pass, LogitsOf::Last)?;
            self.commit(&pass, 0);
        }
    }

    /// Logits of every token of `tokens`, for measuring: `on_logits(i, logits)` gets the logits behind token `i`.
    ///
    /// # Errors
    /// As [`CpuModel::generate`].
    pub fn score(&mut self, tokens: &[u32], on_logits: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>) -> Result<()> {
        if tokens.len() > self.max_seq_len() {
            return Err(Error::ContextOverflow { needed: tokens.len(), context: self.max_seq_len() });
        }
        check_tokens(tokens, self.config())?;
        let vocab_size = self.config().vocab_size;
        self.truncate(0);
        for (chunk, tokens) in tokens.chunks(MAX_NODES).enumerate() {
            let pass = Pass::chain(tokens);
            let logits = self.forward(&pass, LogitsOf::All)?;
            self.commit(&pass, tokens.len() - 1);
            for (i, logits) in logits.chunks(vocab_size).enumerate() {
                if on_logits(chunk * MAX_NODES + i, logits).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
