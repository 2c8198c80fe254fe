//! Key-value metadata of a model file, whatever the file's format.

use std::collections::BTreeMap;
use std::fmt;

/// Characters of a string that a sentence shows.
const MAX_SHOWN: usize = 40;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned integer of any width.
    Uint(u64),
    /// A signed integer of any width.
    Int(i64),
    /// A float of either width.
    Float(f64),
    /// A bool.
    Bool(bool),
    /// A string.
    String(String),
    /// An array of integers or bools.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f32>),
    /// An array of strings.
    Strings(Vec<String>),
}

/// A value in a sentence: numbers as they are, a string cut short, an array by its length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Uint(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::String(text) => {
                let short: String = text.chars().take(MAX_SHOWN).collect();
                write!(f, "\"{}{}\"", short.escape_debug(), if short.len() < text.len() { "…" } else { "" })
            }
            Value::Ints(values) => write!(f, "a list of {} integers", values.len()),
            Value::Floats(values) => write!(f, "a list of {} numbers", values.len()),
            Value::Strings(values) => write!(f, "a list of {} strings", values.len()),
        }
    }
}

/// The metadata of a model file, by key.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// Sets `key`; answers the value it replaces.
    pub fn insert(&mut self, key: String, value: Value) -> Option<Value> {
        self.values.insert(key, value)
    }

    /// All keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A non-negative integer.
    pub fn uint(&self, key: &str) -> Option<u64> {
        match *self.get(key)? {
            Value::Uint(value) => Some(value),
            Value::Int(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// A float, or an integer as a float.
    pub fn float(&self, key: &str) -> Option<f64> {
        match *self.get(key)? {
            Value::Float(value) => Some(value),
            Value::Uint(value) => Some(value as f64),
            Value::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match *self.get(key)? {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A string.
    pub fn string(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.get(key)? {
            Value::Strings(values) => Some(values),
            _ => None,
        }
    }

    /// An array of integers.
    pub fn ints(&self, key: &str) -> Option<&[i64]> {
        match self.get(key)? {
            Value::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// An array of floats.
    pub fn floats(&self, key: &str) -> Option<&[f32]> {
        match self.get(key)? {
            Value::Floats(values) => Some(values),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Value;

    #[test]
    fn values_are_told_in_words() {
        for (value, words) in [
            (Value::Uint(7), "7"),
            (Value::Float(0.5), "0.5"),
            (Value::String("a\n\"b\"".into()), r#""a\n\"b\"""#),
            (Value::String("é".repeat(50)), &format!("\"{}…\"", "é".repeat(40))),
            (Value::Ints(vec![1, 2, 3]), "a list of 3 integers"),
        ] {
            assert_eq!(value.to_string(), words);
        }
    }
}
