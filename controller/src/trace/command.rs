//! `bftrainer trace`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{SourceArgs, Stats, TraceError, convert, open};
use crate::stdout;

/// What is to be done with a log.
#[derive(Subcommand, Clone, Debug)]
pub enum TraceCommand {
    /// Say how much is idle, for how long, how many nodes at a time
    Stats {
        #[command(flatten)]
        source: SourceArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the log as node transitions: time,node,state,end
    Convert {
        #[command(flatten)]
        source: SourceArgs,
        /// The file to write; compressed when its name ends in .gz or .zst
        output: PathBuf,
    },
}

/// Runs the command.
pub fn command(command: &TraceCommand) -> ExitCode {
    match run(command) {
        Ok(text) => stdout::print(&(text + "\n")),
        Err(error) => {
            eprintln!("bftrainer trace: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &TraceCommand) -> Result<String, TraceError> {
    match command {
        TraceCommand::Stats { source, json } => {
            let stats = Stats::of(open(&source.source()?)?)?;
            Ok(if *json {
                serde_json::json!(stats).to_string()
            } else {
                stats.to_string()
            })
        }
        TraceCommand::Convert { source, output } => {
            let rows = convert(open(&source.source()?)?, output)?;
            Ok(format!("{rows} rows in {}", output.display()))
        }
    }
}
