//! `forerun chat`: a conversation, line by line.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use forerun::Error;
use forerun::session::{Engine, Prompt};
use forerun::text::Message;

use crate::args::ChatArgs;
use crate::failure::{Failure, Outcome, say};
use crate::{format, interrupt, load, memory, output, run};

const HELP: &str = "\
/clear  forgets the conversation
/help   shows these words
/exit   leaves (so does Ctrl-D)
Ctrl-C ends an answer. A line that starts with a space is a message, whatever follows.";

/// Bytes of a message.
const MAX_LINE: u64 = 1 << 20;

/// What a line asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Exit,
    Clear,
    Help,
    Unknown(&'a str),
    Message(&'a str),
}

impl Line<'_> {
    fn parse(line: &str) -> Line<'_> {
        let text = line.trim();
        // `/etc/hosts` may be the start of a question, `/celar` hardly.
        let is_word = text.strip_prefix('/').is_some_and(|word| word.chars().all(|c| c.is_ascii_alphabetic()));
        match text {
            "" => Line::Nothing,
            _ if line.starts_with(char::is_whitespace) || !is_word => Line::Message(text),
            "/exit" | "/quit" => Line::Exit,
            "/clear" => Line::Clear,
            "/help" => Line::Help,
            _ => Line::Unknown(text),
        }
    }
}

/// A conversation and the room it has.
struct Conversation {
    messages: Vec<Message>,
    /// Messages at the front that stay: the system's.
    n_kept: usize,
    /// Tokens to leave for an answer, where older turns can make way for them.
    reserve: usize,
}

impl Conversation {
    fn clear(&mut self) {
        self.messages.truncate(self.n_kept);
    }

    /// Drops the oldest turns until the last message and an answer to it fit the context; gives the number dropped.
    fn make_room(&mut self, engine: &Engine) -> Outcome<usize> {
        let mut dropped = 0;
        loop {
            let n_tokens = engine.tokens(Prompt::Chat(&self.messages))?.len();
            let fits = n_tokens + self.reserve <= engine.context();
            // A turn is a question and its answer; the question that waits for its answer stays.
            if !fits && self.messages.len() >= self.n_kept + 3 {
                self.messages.drain(self.n_kept..self.n_kept + 2);
                dropped += 1;
            } else if n_tokens < engine.context() {
                return Ok(dropped);
            } else {
                return Err(Error::ContextOverflow { needed: n_tokens + 1, context: engine.context() }.into());
            }
        }
    }
}

/// Talks until the input ends.
pub fn chat(args: &ChatArgs) -> Outcome {
    interrupt::listen();
    args.answer.sampling.options().check()?;
    let mut engine = load::load(&args.model, &args.engine)?;
    load::warn_of_software(&engine);
    memory::open(&mut engine, &args.answer)?;
    let messages: Vec<Message> = args.system.iter().map(|system| Message::new("system", system)).collect();
    // A model without a template, or one whose template takes no system message, shall say so before the first line.
    let trial: Vec<Message> = messages.iter().cloned().chain([Message::new("user", "Hello")]).collect();
    engine.tokens(Prompt::Chat(&trial))?;
    let most = engine.context() / 4;
    let reserve = args.answer.max_tokens.map_or(most, |n| most.min(n.get()));
    let mut conversation = Conversation { n_kept: messages.len(), messages, reserve };

    let stdin = io::stdin();
    let is_person = stdin.is_terminal();
    if is_person {
        let place = engine.adapter().map_or("the CPU", |adapter| &adapter.name);
        let room = format::things(engine.context(), "token");
        output::aside(&format!("{} on {place}, room for {room}; /help shows what you can type", args.model));
    }
    let mut line = String::new();
    loop {
        if is_person {
            let _ = write!(io::stderr(), "> ");
        }
        line.clear();
        let n_read = stdin.lock().take(MAX_LINE + 1).read_line(&mut line).map_err(|error| {
            Failure::Input(format!("cannot read the next message from stdin ({error}): give lines of text in UTF-8"))
        })?;
        if n_read as u64 > MAX_LINE {
            return Err(Failure::Input("a message is longer than 1 MiB: send it in shorter lines".into()));
        }
        if n_read == 0 {
            if is_person {
                output::aside("");
            }
            return Ok(());
        }
        match Line::parse(&line) {
            Line::Nothing => {}
            Line::Exit => return Ok(()),
            Line::Clear => {
                conversation.clear();
                if is_person {
                    output::aside("the conversation is forgotten");
                }
            }
            Line::Help => output::aside(HELP),
            Line::Unknown(word) => say(&format!("there is no {word}: /help lists the words there are")),
            Line::Message(text) => match turn(&mut engine, &mut conversation, text, args, is_person) {
                // A person can say it otherwise, and a message too long for the context is not the next one's fault.
                Err(failure) if is_person && failure.is_input() || is_overflow(&failure) => {
                    let _ = failure.report();
                    conversation.messages.pop();
                }
                other => other?,
            },
        }
    }
}

fn is_overflow(failure: &Failure) -> bool {
    matches!(failure, Failure::Engine(Error::ContextOverflow { .. }))
}

/// One question and its answer.
fn turn(engine: &mut Engine, conversation: &mut Conversation, text: &str, args: &ChatArgs, is_person: bool) -> Outcome {
    conversation.messages.push(Message::new("user", text));
    let dropped = conversation.make_room(engine)?;
    if dropped > 0 {
        let turns = if dropped == 1 { "turn".into() } else { format::things(dropped, "turn") };
        say(&format!("note: the context is full, so the oldest {turns} of the conversation had to be forgotten"));
    }
    let (completion, interrupted) =
        run::answer(engine, Prompt::Chat(&conversation.messages), &args.answer, None, true)?;
    memory::keep(engine, &args.answer)?;
    if is_person {
        let statistics = run::statistics(engine, &completion, args.answer.mode);
        output::aside(&format!("{statistics}\n"));
    }
    if interrupted && completion.text.is_empty() {
        conversation.messages.pop();
    } else {
        conversation.messages.push(Message::new("assistant", completion.text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn lines_are_words_or_messages() {
        for (line, expected) in [
            ("\n", Line::Nothing),
            ("/exit\n", Line::Exit),
            ("/quit\r\n", Line::Exit),
            ("/clear", Line::Clear),
            ("/help ", Line::Help),
            ("/celar\n", Line::Unknown("/celar")),
            (" /exit\n", Line::Message("/exit")),
            ("/etc/hosts is what?\n", Line::Message("/etc/hosts is what?")),
            ("/help me\n", Line::Message("/help me")),
            ("hello\n", Line::Message("hello")),
        ] {
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }
}
