//! A conversation to one string, by the template that comes with the model.
//!
//! Templates are Jinja as [transformers](https://huggingface.co/docs/transformers/chat_templating) renders it: blocks
//! trimmed, Python's string methods, loop controls, `raise_exception`, `strftime_now`, `tojson` as `json.dumps`, and
//! the tag `generation`, which marks what the model wrote and prints nothing itself.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value, context};
use serde::{Deserialize, Serialize};

use super::python::{strftime, tojson};
use crate::model::Metadata;
use crate::{Error, Result};

/// Work that a template may do, in minijinja's fuel: an instruction or 64 bytes of data cost one. Real templates need
/// a few hundred a message.
const FUEL: u64 = 1_000_000;

/// The name of the template for conversations with tools, where a model has a separate one.
const TOOL_USE: &str = "tool_use";
const DEFAULT: &str = "default";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
    /// Other fields that templates read, such as `tool_calls` or `name`.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A message of a role and a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: serde_json::Map::new() }
    }
}

/// What a template is told besides the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions<'a> {
    /// Ends the text with the start of an answer, so that the model writes one.
    pub add_generation_prompt: bool,
    /// The spelling of the token BOS; empty if the model has none.
    pub bos: &'a str,
    /// The spelling of the token EOS; empty if the model has none.
    pub eos: &'a str,
    /// Descriptions of functions the model may call, as JSON schemas.
    pub tools: &'a [serde_json::Value],
    /// The wall clock in seconds since 1970, for templates that print the date. Without it they print the date they
    /// fall back to, so the text depends on nothing else.
    pub now: Option<i64>,
}

/// A model's chat template, compiled.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// The template in a model file's metadata (`tokenizer.chat_template`, and `tokenizer.chat_template.tool_use` for
    /// conversations with tools); `None` if it has none, which is so for models that were not trained to chat.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] if a template is not valid.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        let key = "tokenizer.chat_template";
        let named = |name: &str| metadata.string(&format!("{key}.{name}"));
        let Some(default) = metadata.string(key).or_else(|| named(DEFAULT)) else { return Ok(None) };
        let mut template = Self::from_source(default)?;
        if let Some(source) = named(TOOL_USE) {
            template.add(TOOL_USE, source)?;
        }
        Ok(Some(template))
    }

    /// A template from its source.
    ///
    /// # Errors
    /// [`Error::ModelFormat`] if it is not valid.
    pub fn from_source(source: &str) -> Result<Self> {
        let mut template = Self { environment: environment() };
        template.add(DEFAULT, source)?;
        Ok(template)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<()> {
        let source = without_generation_tags(source).into_owned();
        self.environment.add_template_owned(name, source).map_err(|error| {
            Error::ModelFormat(format!(
                "the model's chat template is not valid ({}): send the prompt without a template, or use another model",
                describe(&error)
            ))
        })
    }

    /// The conversation as one string, to be encoded without adding BOS and EOS: the template spells them.
    ///
    /// # Errors
    /// [`Error::BadInput`] if the template refuses the conversation, such as one in which the roles do not alternate;
    /// [`Error::ModelFormat`] if the template fails, or does more work than any template needs.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let mut environment = Cow::Borrowed(&self.environment);
        let input: usize = messages.iter().map(|message| message.content.len()).sum();
        // Long conversations cost more: each byte of input pays for 64 bytes of copies.
        environment.to_mut().set_fuel(Some(FUEL + input as u64));
        if let Some(now) = options.now {
            environment.to_mut().add_function("strftime_now", move |format: &str| strftime(format, now));
        }
        let failed = |error: minijinja::Error| failure(&error);
        let name = if options.tools.is_empty() { DEFAULT } else { TOOL_USE };
        let template = environment.get_template(name).or_else(|_| environment.get_template(DEFAULT)).map_err(failed)?;
        let tools = if options.tools.is_empty() { Value::from(()) } else { Value::from(Serde(options.tools)) };
        let context = context! {
            messages => Value::from(Serde(messages)),
            tools => tools,
            documents => Value::from(()),
            add_generation_prompt => options.add_generation_prompt,
            bos_token => options.bos,
            eos_token => options.eos,
        };
        template.render(context).map_err(failed)
    }
}

/// The message of a call to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    // Python's strings are sequences too, and templates ask.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        value.try_iter().is_ok() || matches!(value.kind(), ValueKind::String | ValueKind::Undefined)
    });
    environment.add_function("raise_exception", |message: &str| -> Result<String, minijinja::Error> {
        let raised = Raised(message.to_owned());
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned()).with_source(raised))
    });
    environment
}

/// `source` with the tag `generation`, which minijinja does not know, made a condition that always holds.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let name = tag.trim_start_matches(['-', '+']).trim_start();
        let replacement = |word: &str| {
            let after = name.strip_prefix(word)?;
            let end = after.trim_start().trim_start_matches(['-', '+']);
            end.starts_with("%}").then_some(after)
        };
        let found = replacement("generation").map(|after| ("if true", after));
        match found.or_else(|| replacement("endgeneration").map(|after| ("endif", after))) {
            Some((instead, after)) => {
                out.push_str(&tag[..tag.len() - name.len()]);
                out.push_str(instead);
                rest = after;
            }
            None => rest = tag,
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The engine's error for a template that failed.
fn failure(error: &minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return Error::BadInput(format!(
                "the model's chat template refuses this conversation: {}",
                one_line(message)
            ));
        }
        source = cause.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::ModelFormat(
            "the model's chat template does more work than any template needs: send the prompt without a template, or \
             use another model"
                .into(),
        );
    }
    Error::ModelFormat(format!(
        "the model's chat template failed ({}): send the prompt without a template, or use another model",
        describe(error)
    ))
}

fn describe(error: &minijinja::Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text += &format!(": {}", one_line(detail));
    }
    if let Some(line) = error.line() {
        text += &format!(", line {line}");
    }
    text
}

/// `text` without line breaks and of bounded length.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}
