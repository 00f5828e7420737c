//! bftrainer, the command line and the worker agent.

use std::process::ExitCode;

use bftrainer_controller::agent::{call, progress, run, task};
use bftrainer_controller::{cli, replay, trace};
use clap::{Parser, Subcommand};

/// Elastic training in the idle nodes of a Slurm cluster.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the trainers
    #[command(disable_help_flag = true)]
    Queue(cli::QueueArgs),
    /// Show the nodes of the pool and what they are used for
    #[command(disable_help_flag = true)]
    Nodes(cli::NodesArgs),
    /// Show one trainer, or the controller's totals
    #[command(disable_help_flag = true)]
    Show(cli::ShowArgs),
    /// Show the last decisions and their reasons
    #[command(disable_help_flag = true)]
    Why(cli::WhyArgs),
    /// Show what rank 0 of a trainer has written
    Logs(cli::LogsArgs),
    /// Replay a log of idle nodes: what would have been gained
    Replay(replay::Args),
    /// Look at a log of idle nodes, or convert it
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Report progress from a training script
    Progress(progress::Args),
    /// Train in this array task: start and stop COMMAND as the controller says
    Run(run::Args),
    /// What the Slurm plugin starts in a batch script's place
    #[command(hide = true)]
    Task(task::Args),
    #[command(hide = true)]
    SlurmCall(call::Args),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Queue(args) => cli::queue(&args),
        Command::Nodes(args) => cli::nodes(&args),
        Command::Show(args) => cli::show(&args),
        Command::Why(args) => cli::why(&args),
        Command::Logs(args) => cli::logs(&args),
        Command::Replay(args) => replay::command(&args),
        Command::Trace(command) => trace::command(&command),
        Command::Progress(args) => progress::run(&args),
        Command::Run(args) => run::run(args),
        Command::Task(args) => task::run(args),
        Command::SlurmCall(args) => call::run(&args),
    }
}
