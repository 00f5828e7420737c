//! bftrainer, the command line and the worker agent. Built without the feature `slurm` it has the
//! commands that need no cluster.

use std::process::ExitCode;

#[cfg(feature = "slurm")]
use bftrainer_controller::agent::{call, progress, run, task};
#[cfg(feature = "slurm")]
use bftrainer_controller::{cli, manual};
use bftrainer_controller::{replay, solve, solver, trace};
#[cfg(feature = "slurm")]
use clap::CommandFactory;
use clap::{Parser, Subcommand};

/// Elastic training in the idle nodes of a Slurm cluster.
#[derive(Parser)]
#[command(name = "bftrainer", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "slurm")]
    /// Show the trainers
    #[command(disable_help_flag = true)]
    Queue(cli::QueueArgs),
    #[cfg(feature = "slurm")]
    /// Show the nodes of the pool and what they are used for
    #[command(disable_help_flag = true)]
    Nodes(cli::NodesArgs),
    #[cfg(feature = "slurm")]
    /// Show one trainer, or the controller's totals
    #[command(disable_help_flag = true)]
    Show(cli::ShowArgs),
    #[cfg(feature = "slurm")]
    /// Show the last decisions and their reasons
    #[command(disable_help_flag = true)]
    Why(cli::WhyArgs),
    #[cfg(feature = "slurm")]
    /// Show what rank 0 of a trainer has written
    Logs(cli::LogsArgs),
    #[cfg(feature = "slurm")]
    /// Change a trainer's specification
    Set(cli::SetArgs),
    #[cfg(feature = "slurm")]
    /// Check the configuration and the live site, and say what to write
    #[command(disable_help_flag = true)]
    Check(cli::CheckArgs),
    #[cfg(feature = "slurm")]
    /// Show the node-hours harvested by day, user and account
    #[command(disable_help_flag = true)]
    History(cli::HistoryArgs),
    #[cfg(feature = "slurm")]
    /// Command the controller, as root or SlurmUser
    Admin(cli::AdminArgs),
    #[cfg(feature = "slurm")]
    /// Report progress from a training script
    Progress(progress::Args),
    #[cfg(feature = "slurm")]
    /// Train in this array task: start and stop COMMAND as the controller says
    Run(run::Args),
    #[cfg(feature = "slurm")]
    /// What the Slurm plugin starts in a batch script's place
    #[command(hide = true)]
    Task(task::Args),
    #[cfg(feature = "slurm")]
    /// Write manual pages and shell completions
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    #[cfg(feature = "slurm")]
    #[command(hide = true)]
    SlurmCall(call::Args),
    /// Replay a log of idle nodes: what would have been gained
    Replay(replay::Args),
    /// Look at a log of idle nodes, or convert it
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    /// Solve allocation instances, one JSON object a line
    Solve(solve::SolveArgs),
}

fn main() -> ExitCode {
    if let Some(code) = solver::child::run_if_asked() {
        return code;
    }
    match Arguments::parse().command {
        #[cfg(feature = "slurm")]
        Command::Queue(args) => cli::queue(&args),
        #[cfg(feature = "slurm")]
        Command::Nodes(args) => cli::nodes(&args),
        #[cfg(feature = "slurm")]
        Command::Show(args) => cli::show(&args),
        #[cfg(feature = "slurm")]
        Command::Why(args) => cli::why(&args),
        #[cfg(feature = "slurm")]
        Command::Logs(args) => cli::logs(&args),
        #[cfg(feature = "slurm")]
        Command::Set(args) => cli::set(args),
        #[cfg(feature = "slurm")]
        Command::Check(args) => cli::check(&args),
        #[cfg(feature = "slurm")]
        Command::History(args) => cli::history(&args),
        #[cfg(feature = "slurm")]
        Command::Admin(args) => cli::admin(args),
        #[cfg(feature = "slurm")]
        Command::Progress(args) => progress::run(&args),
        #[cfg(feature = "slurm")]
        Command::Run(args) => run::run(args),
        #[cfg(feature = "slurm")]
        Command::Task(args) => task::run(args),
        #[cfg(feature = "slurm")]
        Command::Manual(args) => {
            let daemon = bftrainer_controller::daemon::Arguments::command();
            match manual::write(&args, &Arguments::command(), &daemon) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("bftrainer: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        #[cfg(feature = "slurm")]
        Command::SlurmCall(args) => call::run(&args),
        Command::Replay(args) => replay::command(&args),
        Command::Trace(command) => trace::command(&command),
        Command::Solve(args) => solve::solve(&args),
    }
}
