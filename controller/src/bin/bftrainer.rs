//! The command line. (Stands in for the full one: the agent's commands only.)

use std::process::ExitCode;

use bftrainer_controller::agent::{call, progress, run, task};
use clap::Parser;

#[derive(Parser)]
#[command(version, about)]
enum Command {
    /// Run COMMAND elastically, as the controller says
    Run(run::Args),
    /// The batch step of a job that may be a trainer
    #[command(hide = true)]
    Task(task::Args),
    /// Tell the controller how far the training is
    Progress(progress::Args),
    #[command(hide = true)]
    SlurmCall(call::Args),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Run(args) => run::run(args),
        Command::Task(args) => task::run(args),
        Command::Progress(args) => progress::run(&args),
        Command::SlurmCall(args) => call::run(&args),
    }
}
