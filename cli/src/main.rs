//! The command line program: one file a command, and what they share.
//!
//! Answers go to stdout; progress, statistics and errors go to stderr. An error is one sentence, and the exit code is
//! 2 for bad input, 1 for whatever else fails and 130 where Ctrl-C ended the work.

mod agreement;
mod args;
mod cache;
mod chat;
mod driver;
mod failure;
mod format;
mod generate_workload;
mod input;
mod inspect;
mod interrupt;
mod load;
mod memory;
mod output;
mod perplexity;
mod recording;
mod replay;
mod run;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::{Failure, Outcome};

fn main() -> ExitCode {
    failure::tell_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return args::explain(&error),
    };
    if cli.command.uses_gpu() {
        driver::silence();
    }
    let outcome = std::panic::catch_unwind(|| execute(&cli.command));
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => failure.report(),
        // The hook has told it.
        Err(_) => ExitCode::from(Failure::OTHER),
    }
}

fn execute(command: &Command) -> Outcome {
    match command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::chat(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Perplexity(args) => perplexity::perplexity(args),
        Command::GenerateWorkload(args) => generate_workload::generate_workload(args),
        Command::Agreement(args) => agreement::agreement(args),
        Command::Replay(args) => replay::replay(args),
    }
}
