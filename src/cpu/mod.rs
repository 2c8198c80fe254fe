//! Placeholder until the twins are merged.
use crate::model::Config;
/// cos and sin, `[max_seq_len, head_dim / 2]`.
pub fn rope_table(config: &Config, max_seq_len: usize) -> Vec<[f32; 2]> {
    (0..max_seq_len)
        .flat_map(|p| {
            config.rope_frequencies.iter().map(move |f| {
                let a = p as f64 * f;
                [a.cos() as f32, a.sin() as f32]
            })
        })
        .collect()
}
