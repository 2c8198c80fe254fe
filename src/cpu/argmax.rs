//! Twin of the `argmax` kernel: the most probable token.

/// The token with the largest of `logits`, `[vocab_size]`: the lowest one on a tie. NaN never wins; 0 if all are.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    let mut found = false;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.0 || (!found && !logit.is_nan()) {
            best = (logit, token as u32);
            found = true;
        }
    }
    best.1
}
