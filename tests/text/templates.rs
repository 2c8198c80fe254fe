//! Templates give what transformers gives.

use forerun::Error;
use forerun::model::{Metadata, Value};
use forerun::text::{ChatTemplate, Message, RenderOptions};
use serde_json::Value as Json;

use crate::fixture;

/// Renders `chat` with `template`.
pub fn render(template: &ChatTemplate, chat: &Json, bos: &str, eos: &str) -> forerun::Result<String> {
    let messages: Vec<Message> = serde_json::from_value(chat["messages"].clone()).unwrap();
    let no_tools = Vec::new();
    let options = RenderOptions {
        add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap(),
        bos,
        eos,
        tools: chat.get("tools").map_or(&no_tools, |tools| tools.as_array().unwrap()),
        now: None,
    };
    template.render(&messages, &options)
}

/// Compares every conversation with the reference.
pub fn check(name: &str, template: &ChatTemplate, chats: &Json, bos: &str, eos: &str) {
    for chat in chats.as_array().unwrap() {
        let got = render(template, chat, bos, eos);
        match chat.get("error") {
            None => assert_eq!(got.unwrap(), chat["text"].as_str().unwrap(), "{name}: {}", chat["messages"]),
            Some(error) => {
                let message = got.unwrap_err().to_string();
                assert!(message.ends_with(error.as_str().unwrap()), "{name}: {message}");
            }
        }
    }
}

#[test]
fn known_templates() {
    for case in fixture("templates.json").as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let template = ChatTemplate::from_source(text("template")).unwrap();
        check(text("name"), &template, &case["chats"], text("bos"), text("eos"));
    }
}

#[test]
fn the_date_is_the_callers() {
    let source = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}";
    let template = ChatTemplate::from_source(source).unwrap();
    let render = |now| template.render(&[], &RenderOptions { now, ..RenderOptions::default() }).unwrap();
    assert_eq!(render(None), "26 Jul 2024");
    assert_eq!(render(Some(1_767_225_600)), "01 Jan 2026");
}

#[test]
fn templates_are_found_in_metadata() {
    let mut metadata = Metadata::default();
    assert!(ChatTemplate::from_metadata(&metadata).unwrap().is_none());
    metadata.insert("tokenizer.chat_template".into(), Value::String("plain".into()));
    metadata.insert("tokenizer.chat_template.tool_use".into(), Value::String("tools".into()));
    let template = ChatTemplate::from_metadata(&metadata).unwrap().unwrap();
    let tools = [serde_json::json!({})];
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "plain");
    assert_eq!(template.render(&[], &RenderOptions { tools: &tools, ..RenderOptions::default() }).unwrap(), "tools");
}

#[test]
fn errors_are_one_sentence() {
    let compile = |source: &str| ChatTemplate::from_source(source).unwrap_err().to_string();
    assert_eq!(
        compile("a\n{% if %}"),
        "the model's chat template is not valid (syntax error: unexpected end of block, line 2): send the prompt \
         without a template, or use another model"
    );
    let render = |source: &str| {
        let template = ChatTemplate::from_source(source).unwrap();
        template.render(&[Message::new("user", "x")], &RenderOptions::default()).unwrap_err()
    };
    let error = render("{{ raise_exception('no\\nway') }}");
    assert!(matches!(error, Error::BadInput(_)));
    assert_eq!(error.to_string(), "the model's chat template refuses this conversation: no way");
    for source in
        ["{{ missing.field.field }}", "{{ messages | nope }}", "{{ nope() }}", "{{ 'x'.nope() }}", "{{ 1 // 0 }}"]
    {
        let Ok(template) = ChatTemplate::from_source(source) else { continue };
        let error = template.render(&[], &RenderOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with("the model's chat template failed (") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn long_conversations_have_the_fuel_they_need() {
    let templates = fixture("templates.json");
    let turns = |n: usize, text: &str| -> Vec<Message> {
        (0..n).map(|i| Message::new(["user", "assistant"][i % 2], text)).collect()
    };
    let options = RenderOptions { add_generation_prompt: true, bos: "<s>", eos: "</s>", ..RenderOptions::default() };
    for case in templates.as_array().unwrap() {
        let template = ChatTemplate::from_source(case["template"].as_str().unwrap()).unwrap();
        for messages in [turns(2001, "hello"), turns(3, &"many words ".repeat(400_000))] {
            let rendered = template.render(&messages, &options).unwrap();
            assert!(rendered.len() > 10 || case["name"] == "corners", "{}", case["name"]);
        }
    }
}
