//! How a request chooses its tokens: what can be asked for, and the same as numbers for the kernels and their twins.

use bytemuck::Zeroable;

use crate::{Error, Result};

/// Tokens whose logits a request may shift.
pub const MAX_BIAS: usize = 64;
/// The last tokens that the repetition penalty looks at.
pub const REPETITION_WINDOW: usize = 1024;
/// The largest vocabulary whose masses top-p can add up in its integers.
const MAX_VOCAB: usize = 1 << 18;
/// A logit that lies below the largest one by this much passes where min-p is off.
const FAR_BELOW: f32 = -3e38;

/// How the next token is chosen from the logits.
///
/// A logit is multiplied or divided by the repetition penalty, loses the presence and frequency penalties, and gains
/// its bias. Of the tokens that min-p, top-k and top-p leave, softmax at the temperature tells how often each is
/// chosen. Which one it is depends on the seed, the position and the logits alone, so that the same request gives the
/// same tokens in every mode.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// 0 for the most probable token; else from 0.01 to 100, where 1 is the model's own softmax.
    pub temperature: f32,
    /// Leaves the most probable tokens, as many as this, and those as probable as the last; 0 leaves all.
    pub top_k: usize,
    /// Leaves the most probable of the tokens left by the others that together have this probability; 1 leaves all.
    pub top_p: f32,
    /// Leaves the tokens that are at least this many times as probable as the most probable one; 0 leaves all.
    pub min_p: f32,
    /// Tells one answer from another.
    pub seed: u32,
    /// Divides the positive logits of the last 1,024 tokens and multiplies the negative ones; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Is taken from the logits of the answer's tokens, from -2 to 2.
    pub presence_penalty: f32,
    /// The same, once for each time that the token stands in the answer.
    pub frequency_penalty: f32,
    /// Tokens and what their logits gain, from -100 to 100; at most [`MAX_BIAS`].
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingOptions {
    /// The most probable token.
    fn default() -> SamplingOptions {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

/// The same struct as in `kernels/shared/sampling.wgsl`; a test compares the two.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Sampling {
    /// Tells one answer from another.
    pub seed: u32,
    /// What logits are multiplied by.
    pub inverse_temperature: f32,
    /// 1, or 0 where the largest logit is chosen.
    pub noise: f32,
    /// 0 for all.
    pub top_k: u32,
    /// In 65,536ths, 65,536 for all.
    pub top_p: u32,
    /// How far a logit may be from the largest one: 0 or less.
    pub min_p_below: f32,
    /// What negative logits of tokens seen are multiplied by.
    pub repetition_penalty: f32,
    /// What positive logits of tokens seen are multiplied by.
    pub inverse_repetition_penalty: f32,
    /// What a generated token's logit loses once.
    pub presence_penalty: f32,
    /// What it loses each time.
    pub frequency_penalty: f32,
    /// How many of `bias_tokens` are in use.
    pub n_bias: u32,
    /// Tokens whose logits are shifted, no token twice.
    pub bias_tokens: [u32; MAX_BIAS],
    /// By how much.
    pub bias_values: [f32; MAX_BIAS],
}

impl SamplingOptions {
    /// Whether every value is in its range, whatever the model.
    ///
    /// # Errors
    /// [`Error::BadInput`] where one is not.
    pub fn check(&self) -> Result<()> {
        if self.temperature != 0.0 {
            check("temperature", self.temperature, 0.01, 100.0, "0 for the most probable token, or ")?;
        }
        // The integers have 65,536ths.
        check("top_p", self.top_p, 1.0 / 32_768.0, 1.0, "")?;
        check("min_p", self.min_p, 0.0, 1.0, "")?;
        check("repetition_penalty", self.repetition_penalty, 0.1, 10.0, "")?;
        check("presence_penalty", self.presence_penalty, -2.0, 2.0, "")?;
        check("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "")?;
        if self.logit_bias.len() > MAX_BIAS {
            let n = self.logit_bias.len();
            return Err(Error::BadInput(format!("logit_bias has {n} tokens: give at most {MAX_BIAS}")));
        }
        for (i, &(token, bias)) in self.logit_bias.iter().enumerate() {
            check("a logit_bias", bias, -100.0, 100.0, "")?;
            if self.logit_bias[..i].iter().any(|(known, _)| *known == token) {
                return Err(Error::BadInput(format!("logit_bias names token {token} twice: give it once")));
            }
        }
        Ok(())
    }

    /// The options as numbers, checked; `None` where they ask for the largest of the model's own logits.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a value out of its range and for a token outside the vocabulary.
    pub fn resolve(&self, vocab_size: usize) -> Result<Option<Sampling>> {
        self.check()?;
        let mut sampling = Sampling {
            seed: self.seed,
            inverse_temperature: 1.0,
            top_p: 65_536,
            min_p_below: FAR_BELOW,
            repetition_penalty: self.repetition_penalty,
            inverse_repetition_penalty: 1.0 / self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            n_bias: self.logit_bias.len() as u32,
            ..Sampling::zeroed()
        };
        for (i, &(token, bias)) in self.logit_bias.iter().enumerate() {
            if token as usize >= vocab_size {
                return Err(Error::BadInput(format!(
                    "logit_bias names token {token}, outside the vocabulary of {vocab_size} tokens: give a lower one"
                )));
            }
            sampling.bias_tokens[i] = token;
            sampling.bias_values[i] = bias;
        }
        if self.temperature > 0.0 {
            let temperature = f64::from(self.temperature);
            sampling.noise = 1.0;
            sampling.inverse_temperature = (1.0 / temperature) as f32;
            sampling.top_k = if self.top_k < vocab_size { self.top_k as u32 } else { 0 };
            sampling.top_p = (f64::from(self.top_p) * 65_536.0).round() as u32;
            if self.min_p > 0.0 {
                sampling.min_p_below = (temperature * f64::from(self.min_p).ln()) as f32;
            }
            if sampling.top_p < 65_536 && vocab_size > MAX_VOCAB {
                return Err(Error::Unsupported(format!(
                    "top_p serves vocabularies of at most {MAX_VOCAB} tokens and this one has {vocab_size}: use top_k"
                )));
            }
        }
        let plain = sampling.noise == 0.0 && sampling.n_bias == 0 && !sampling.penalizes();
        Ok((!plain).then_some(sampling))
    }
}

impl Sampling {
    /// Whether some penalty changes logits.
    pub fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn check(name: &str, value: f32, least: f32, most: f32, or: &str) -> Result<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(Error::BadInput(format!("{name} is {value}: give {or}a number from {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_struct_of_the_kernels() {
        let fields = |text: &str, opening: &str| -> Vec<(String, String)> {
            let body = text.split(opening).nth(1).unwrap().split("\n}").next().unwrap().to_owned();
            let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("//") && line.contains(": "));
            let field = |line: &str| {
                let (name, kind) =
                    line.split("//").next().unwrap().trim().trim_end_matches(',').split_once(": ").unwrap();
                let kind = kind.replace("array<", "[").replace(", 64>", "; MAX_BIAS]");
                (name.trim_start_matches("pub ").to_owned(), kind)
            };
            lines.map(field).collect()
        };
        let shader = fields(include_str!("../../kernels/shared/sampling.wgsl"), "struct Sampling {");
        assert_eq!(shader, fields(include_str!("sampler.rs"), "pub struct Sampling {"));
        assert_eq!((MAX_BIAS, size_of::<Sampling>()), (64, 4 * (11 + 128)));
        let window = format!("const WINDOW: u32 = {REPETITION_WINDOW}u;");
        assert!(include_str!("../../kernels/penalize.wgsl").contains(&window));
    }

    #[test]
    fn plain_options_need_no_sampling() {
        let plain = SamplingOptions { top_k: 5, top_p: 0.5, min_p: 0.1, seed: 3, ..SamplingOptions::default() };
        assert_eq!(plain.resolve(100).unwrap(), None);
        let biased = SamplingOptions { logit_bias: vec![(3, 1.0)], ..plain.clone() };
        let sampling = biased.resolve(100).unwrap().unwrap();
        assert_eq!((sampling.noise, sampling.top_k, sampling.top_p, sampling.n_bias), (0.0, 0, 65_536, 1));
        let sampling = SamplingOptions { temperature: 0.5, ..plain }.resolve(4).unwrap().unwrap();
        assert_eq!((sampling.inverse_temperature, sampling.top_k, sampling.top_p), (2.0, 0, 32_768));
    }

    #[test]
    fn bad_values_are_told_in_a_sentence() {
        let plain = SamplingOptions::default;
        let rows = [
            (SamplingOptions { temperature: -1.0, ..plain() }, "temperature is -1"),
            (SamplingOptions { temperature: f32::NAN, ..plain() }, "temperature is NaN"),
            (SamplingOptions { temperature: 1e-5, ..plain() }, "0 for the most probable token"),
            (SamplingOptions { top_p: 0.0, ..plain() }, "top_p is 0"),
            (SamplingOptions { top_p: 1.5, ..plain() }, "top_p is 1.5"),
            (SamplingOptions { min_p: -0.1, ..plain() }, "min_p is -0.1"),
            (SamplingOptions { repetition_penalty: 0.0, ..plain() }, "repetition_penalty is 0"),
            (SamplingOptions { presence_penalty: 3.0, ..plain() }, "presence_penalty is 3"),
            (SamplingOptions { frequency_penalty: f32::INFINITY, ..plain() }, "frequency_penalty is inf"),
            (SamplingOptions { logit_bias: vec![(0, 0.0); 65], ..plain() }, "at most 64"),
            (SamplingOptions { logit_bias: vec![(1, 0.0); 2], ..plain() }, "twice"),
            (SamplingOptions { logit_bias: vec![(100, 0.0)], ..plain() }, "vocabulary"),
            (SamplingOptions { logit_bias: vec![(1, f32::NAN)], ..plain() }, "logit_bias is NaN"),
        ];
        for (options, why) in rows {
            let error = options.resolve(100).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
