//! Key-value metadata of a model file, whatever the file's format.

use std::collections::BTreeMap;

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
