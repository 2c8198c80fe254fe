//! Prompts and recorded answers as lines of JSON.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// A prompt of a workload.
#[derive(Debug, Clone, Deserialize)]
pub struct WorkloadPrompt {
    /// What kind of work it is.
    pub task: String,
    /// Its name, which no other prompt has.
    pub id: String,
    /// The conversation to answer.
    pub messages: Vec<WorkloadMessage>,
}

/// A message of a conversation.
#[derive(Debug, Clone, Deserialize)]
pub struct WorkloadMessage {
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// What it says.
    pub content: String,
}

/// A model's answer to a prompt, in tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The prompt's task.
    pub task: String,
    /// The prompt's name.
    pub id: String,
    /// The prompt as the model saw it.
    pub prompt: Vec<u32>,
    /// The answer, with the token that ended it.
    pub output: Vec<u32>,
    /// From the first token to the last, in milliseconds.
    #[serde(default)]
    pub decode_ms: f64,
}

/// Keeps the first `limit` prompts of each task, in their order.
pub fn first_of_each_task(prompts: &mut Vec<WorkloadPrompt>, limit: Option<NonZeroUsize>) {
    let Some(limit) = limit else { return };
    let mut seen: HashMap<String, usize> = HashMap::new();
    prompts.retain(|prompt| {
        let n = seen.entry(prompt.task.clone()).or_default();
        *n += 1;
        *n <= limit.get()
    });
}

/// Reads a file of lines of JSON; empty lines do not count.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> Outcome<Vec<T>> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("cannot read {name} ({error}): give a file of JSON lines")))?;
    parse_lines(&text, path)
}

/// The values of `text`, which `path` holds.
pub fn parse_lines<T: DeserializeOwned>(text: &str, path: &Path) -> Outcome<Vec<T>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| {
            Failure::Input(format!(
                "line {} of {} is not as expected ({error}): mend or remove it",
                i + 1,
                path.display()
            ))
        })
    };
    lines.map(parse).collect()
}
