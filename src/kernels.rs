//! The kernels' texts, and how the host writes a model's numbers into them.
//!
//! A kernel is a `.wgsl` file whose `const` lines are its parameters. [`compose`] writes values in place of the
//! defaults and appends the shared helpers behind the file, so that error lines match it.

use std::fmt::Display;

use crate::gpu::{Access, KernelSource};
use crate::hash::fnv_1a;
use crate::{Error, Result};

macro_rules! texts {
    ($($name:literal)*) => {
        /// Every kernel and helper by name.
        const TEXTS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../kernels/", $name, ".wgsl")))),*];
    };
}

texts! {
    "accept" "argmax" "attention" "begin" "draft" "embed" "gate_up" "logprob_parts" "logprobs" "match" "matmul" "merge"
    "norm_quantize" "penalize" "project" "qkv" "rope_cache" "sample" "silu_quantize" "threshold"
    "shared/best" "shared/control" "shared/dot_packed" "shared/dot_plain" "shared/exchange_plain"
    "shared/exchange_subgroup" "shared/input_normed" "shared/input_quantized" "shared/keys" "shared/logprobs"
    "shared/norm" "shared/numbers" "shared/q4" "shared/q4_min" "shared/q8" "shared/quant" "shared/reduce"
    "shared/rotary" "shared/row_of" "shared/rows" "shared/sampling" "shared/silu" "shared/sort" "shared/store_quantized"
}

/// The text of a kernel or, under `shared/`, of a helper.
///
/// # Errors
/// [`Error::Gpu`] for a name that does not exist.
pub fn text(name: &str) -> Result<&'static str> {
    let found = TEXTS.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| fault(name, "there is no such kernel"))
}

/// Tells these kernels from those of other builds.
pub fn fingerprint() -> u64 {
    fnv_1a(TEXTS.iter().flat_map(|(name, text)| name.bytes().chain(text.bytes())))
}

/// What the device lets a kernel use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Threads whose registers a butterfly may cross: the smallest subgroup, at most 32; 1 without subgroups.
    pub exchange: u32,
    /// Whether `dot4I8Packed` exists.
    pub packed_dot: bool,
}

impl Features {
    /// Nothing beyond the core.
    pub const PLAIN: Features = Features { exchange: 1, packed_dot: false };
}

/// Composes the kernel `name`: `values` in place of the defaults of its `const` lines, `helpers` behind it.
///
/// # Errors
/// [`Error::Gpu`] for an unknown kernel, helper or parameter: a fault of the engine.
pub fn compose(
    name: &str,
    values: &[(&str, &dyn Display)],
    helpers: &[&str],
    features: Features,
) -> Result<KernelSource> {
    let mut text = text(name)?.to_owned();
    for (parameter, value) in values {
        text = with_parameter(&text, parameter, value)
            .ok_or_else(|| fault(name, &format!("it has no parameter {parameter}")))?;
    }
    let subgroups = features.exchange > 1;
    for helper in helpers {
        let name = match *helper {
            "exchange" if subgroups => "exchange_subgroup",
            "exchange" => "exchange_plain",
            "dot" if features.packed_dot => "dot_packed",
            "dot" => "dot_plain",
            other => other,
        };
        let mut helper = self::text(&format!("shared/{name}"))?.to_owned();
        if name == "exchange_subgroup" {
            helper = with_parameter(&helper, "EXCHANGE", &features.exchange)
                .ok_or_else(|| fault(name, "it has no parameter EXCHANGE"))?;
        }
        text.push('\n');
        text.push_str(&helper);
    }
    let access = bindings(&text).ok_or_else(|| fault(name, "its bindings are not numbered from 0 on"))?;
    Ok(KernelSource { name: name.to_owned(), text, access, subgroups: subgroups && helpers.contains(&"exchange") })
}

/// The text with another value in the line `const PARAMETER: type = value;`.
fn with_parameter(text: &str, parameter: &str, value: &dyn Display) -> Option<String> {
    let start = text.find(&format!("const {parameter}: "))?;
    let equals = start + text[start..].find("= ")? + 2;
    let end = equals + text[equals..].find(';')?;
    let suffix = match text[start..equals].contains(": u32") {
        true => "u",
        false => "",
    };
    Some(format!("{}{value}{suffix}{}", &text[..equals], &text[end..]))
}

/// How the text accesses each of its storage bindings, in the order of their numbers.
fn bindings(text: &str) -> Option<Vec<Access>> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("@group(0) @binding(")) {
        let number = line.strip_prefix("@group(0) @binding(")?.split(')').next()?.parse::<usize>().ok()?;
        let access = if line.contains("<storage, read>") { Access::Read } else { Access::ReadWrite };
        found.push((number, access));
    }
    found.sort_by_key(|(number, _)| *number);
    let numbered = found.iter().enumerate().all(|(i, (number, _))| i == *number);
    numbered.then(|| found.into_iter().map(|(_, access)| access).collect())
}

fn fault(kernel: &str, message: &str) -> Error {
    Error::Gpu { what: format!("kernel {kernel}"), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Features = Features { exchange: 1, packed_dot: true };

    #[test]
    fn writes_values_in_place_of_defaults() {
        let source = compose("begin", &[("TOKENS", &8)], &["control"], PLAIN).unwrap();
        assert!(source.text.contains("const TOKENS: u32 = 8u;"));
        assert_eq!(source.access, [Access::ReadWrite, Access::Read, Access::Read]);
    }

    #[test]
    fn an_unknown_parameter_is_an_error() {
        assert!(compose("begin", &[("TOKENZ", &8)], &["control"], PLAIN).is_err());
        assert!(compose("begun", &[], &[], PLAIN).is_err());
    }
}
