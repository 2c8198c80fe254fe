//! A conversation to one string, by the template that comes with the model.
//!
//! Templates are Jinja as [transformers](https://huggingface.co/docs/transformers/chat_templating) renders it: blocks
//! trimmed, Python's string methods, loop controls, `raise_exception`, `strftime_now`, `tojson` as `json.dumps`, and
//! the tag `generation`, which marks what the model wrote and prints nothing itself.

use std::sync::mpsc;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value, context};
use serde::{Deserialize, Serialize};

use super::guard;
use super::python::{strftime, tojson};
use crate::model::Metadata;
use crate::{Error, Result};

/// Work that a template may do, in minijinja's fuel: an instruction or 64 bytes of data cost one. Real templates need
/// a few hundred a message.
const FUEL: u64 = 1_000_000;

/// Nested loops and calls of macros a template may be in, in minijinja's measure. Real templates reach ten.
const MAX_NESTING: usize = 200;

/// The longest source of a template, in bytes; real ones have up to 30,000.
const MAX_SOURCE: usize = 1 << 18;

/// Values are printed, compared and dropped by recursion, and a source of `MAX_SOURCE` can nest them as deep as this
/// stack allows.
const STACK: usize = 256 << 20;

/// What fuel does not measure, such as comparing lists whose items are one and the same list, ends here.
const TIME_LIMIT: Duration = Duration::from_secs(10);

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
        if source.len() > MAX_SOURCE {
            return Err(Error::ModelFormat(format!(
                "the model's chat template is absurdly long ({} bytes): send the prompt without a template, or use \
                 another model",
                source.len()
            )));
        }
        guard::rewrite(source, self.environment.syntax())
            .and_then(|source| self.environment.add_template_owned(name, source))
            .map_err(|error| {
                Error::ModelFormat(format!(
                    "the model's chat template is not valid ({}): send the prompt without a template, or use another \
                     model",
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
        let mut environment = self.environment.clone();
        let input: usize = messages.iter().map(|message| message.content.len()).sum();
        // Long conversations cost more: each byte of input pays for 64 bytes of copies.
        environment.set_fuel(Some(FUEL + input as u64));
        if let Some(now) = options.now {
            environment.add_function("strftime_now", move |format: &str| strftime(format, now));
        }
        let has_tool_use = !options.tools.is_empty() && environment.get_template(TOOL_USE).is_ok();
        let name = if has_tool_use { TOOL_USE } else { DEFAULT };
        let tools = if options.tools.is_empty() { Value::from(()) } else { Value::from(Serde(options.tools)) };
        let context = context! {
            messages => Value::from(Serde(messages)),
            tools => tools,
            documents => Value::from(()),
            add_generation_prompt => options.add_generation_prompt,
            bos_token => options.bos,
            eos_token => options.eos,
        };
        aside(move || {
            let template = environment.get_template(name).map_err(|error| failure(&error))?;
            template.render(context.clone()).map_err(|error| failure(&error))
        })
    }
}

/// Runs `work` on a thread with a large stack, and for a limited time; where there are no threads, here.
fn aside(work: impl Fn() -> Result<String> + Send + Sync + 'static) -> Result<String> {
    let work = std::sync::Arc::new(work);
    let (sender, receiver) = mpsc::sync_channel(1);
    let there = work.clone();
    let thread = std::thread::Builder::new().name("chat template".into()).stack_size(STACK).spawn(move || {
        // The receiver is gone if the time is up.
        let _ = sender.send(there());
    });
    match thread {
        Err(_) => work(),
        // The thread cannot be stopped; it runs on until its fuel, or the process, ends.
        Ok(_) => receiver.recv_timeout(TIME_LIMIT).unwrap_or_else(|_| Err(endless())),
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
    environment.set_recursion_limit(MAX_NESTING);
    environment.set_unknown_method_callback(guard::method);
    environment.add_filter("tojson", tojson);
    guard::install(&mut environment);
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
        return endless();
    }
    Error::ModelFormat(format!(
        "the model's chat template failed ({}): send the prompt without a template, or use another model",
        describe(error)
    ))
}

fn endless() -> Error {
    Error::ModelFormat(
        "the model's chat template does more work than any template needs: send the prompt without a template, or use \
         another model"
            .into(),
    )
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
