//! Keeps what a template puts into variables plain and small.
//!
//! minijinja's fuel pays for instructions and strings, but a template can double a list sixty times in sixty cheap
//! steps, nest one a hundred thousand deep, or put a namespace into itself; the first print, comparison or drop of such
//! a value never ends or overflows the stack. So the source is rewritten before it is compiled: whatever `set` stores
//! goes through a filter that copies it, pays for each item, and refuses what is nested too deeply or is not data.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// The filter for variables, which may be namespaces and macros themselves.
const VARIABLE: &str = "__variable";
/// The filter for attributes of namespaces.
const ATTRIBUTE: &str = "__attribute";

/// Lists in lists in lists; templates reach four.
const MAX_DEPTH: usize = 32;

/// Tokens that one tag may have. The parser goes one call deeper for each operator of a chain, and a page's stack ends
/// after some thousands; the longest tags of real templates have a hundred.
const MAX_TAG: usize = 1000;

/// Adds the filters that [`rewrite`] calls.
pub(super) fn install(environment: &mut Environment) {
    environment.add_filter(ATTRIBUTE, |state: &State, value: &Value| data(state, value, 0));
    environment.add_filter(VARIABLE, |state: &State, value: &Value| {
        let whole = value.kind() == ValueKind::Plain || is_namespace(value);
        if whole { Ok(value.clone()) } else { data(state, value, 0) }
    });
}

/// Python's methods of strings, lists and dictionaries.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    // The method `format` allocates whatever width it is asked for, unlike the filter of that name.
    if name == "format" && value.as_str().is_some_and(|text| has_long_number(text.as_bytes())) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a format asks for an absurd width"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Whether five digits follow one another.
fn has_long_number(text: &[u8]) -> bool {
    text.windows(5).any(|five| five.iter().all(u8::is_ascii_digit))
}

/// `source` with a filter behind each value that is set, and with the tag `generation`, which minijinja does not know,
/// made a condition that always holds. A tag may be `MAX_TAG` tokens long.
///
/// # Errors
/// If `source` is not made of tokens.
pub(super) fn rewrite(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    enum Set {
        /// Before the `=`.
        Target {
            dotted: bool,
        },
        Value {
            filter: &'static str,
        },
    }
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut copied = 0;
    let mut replace = |start: usize, end: usize, text: &str| {
        out.push_str(source.get(copied..start).unwrap_or_default());
        out.push_str(text);
        copied = end;
    };
    let mut at_block_start = false;
    let mut set = None;
    let mut in_tag = 0;
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        in_tag = if matches!(token, Token::BlockStart | Token::VariableStart) { 0 } else { in_tag + 1 };
        if in_tag > MAX_TAG {
            return Err(Error::new(ErrorKind::SyntaxError, "a tag is longer than any template needs"));
        }
        match (&token, &mut set) {
            (Token::Ident("generation"), _) if at_block_start => replace(start, end, "if true"),
            (Token::Ident("endgeneration"), _) if at_block_start => replace(start, end, "endif"),
            (Token::Ident("set"), _) if at_block_start => set = Some(Set::Target { dotted: false }),
            (Token::Dot, Some(Set::Target { dotted })) => *dotted = true,
            (Token::Assign, Some(Set::Target { dotted })) => {
                replace(end, end, "(");
                set = Some(Set::Value { filter: if *dotted { ATTRIBUTE } else { VARIABLE } });
            }
            (Token::BlockEnd, _) => {
                if let Some(Set::Value { filter }) = set.take() {
                    replace(start, start, &format!(")|{filter}"));
                }
            }
            _ => {}
        }
        at_block_start = matches!(token, Token::BlockStart);
    }
    replace(source.len(), source.len(), "");
    Ok(out)
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().contains("Namespace"))
}

/// A copy of `value` that shares no lists and does nothing late.
fn data(state: &State, value: &Value, depth: usize) -> Result<Value, Error> {
    state.consume_fuel(1)?;
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply to be stored"));
    }
    Ok(match value.kind() {
        ValueKind::Undefined
        | ValueKind::None
        | ValueKind::Bool
        | ValueKind::Number
        | ValueKind::String
        | ValueKind::Bytes => value.clone(),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| data(state, &item, depth + 1)).collect::<Result<Vec<_>, _>>()?;
            if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
        }
        ValueKind::Map if !is_namespace(value) => {
            let pair = |key: Value| Ok((key.clone(), data(state, &value.get_item(&key)?, depth + 1)?));
            Value::from_pairs(value.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>()?)
        }
        kind => return Err(Error::new(ErrorKind::InvalidOperation, format!("a {kind} cannot be stored"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten() {
        for (source, expected) in [
            ("{% set x = 1 %}", "{% set x =( 1 )|__variable%}"),
            ("{%- set ns.x = a, b -%}\n", "{%- set ns.x =( a, b )|__attribute-%}\n"),
            ("{%set a.b=a.b~'%}'%}x", "{%set a.b=(a.b~'%}')|__attribute%}x"),
            ("{% set x %}a=b{% endset %}", "{% set x %}a=b{% endset %}"),
            ("{% raw %}{% set x.y = 1 %}{% endraw %}", "{% raw %}{% set x.y = 1 %}{% endraw %}"),
            ("{# {% set x.y = 1 #}{{ '{% set x.y = 1 %}' }}", "{# {% set x.y = 1 #}{{ '{% set x.y = 1 %}' }}"),
            ("{%- generation %}a{% endgeneration -%}", "{%- if true %}a{% endif -%}"),
            (
                "{% if add_generation_prompt %}generation{% endif %}",
                "{% if add_generation_prompt %}generation{% endif %}",
            ),
            ("{% set é = 'é' %}é", "{% set é = 'é' %}é"),
        ] {
            let mut syntax = SyntaxConfig::builder();
            let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build().unwrap();
            match rewrite(source, &syntax) {
                Ok(got) => assert_eq!(got, expected),
                Err(error) => assert!(!source.is_ascii(), "{source}: {error}"),
            }
        }
    }
}
