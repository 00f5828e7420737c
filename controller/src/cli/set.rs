//! `bftrainer set`: changes a trainer's specification.

use std::path::PathBuf;
use std::process::ExitCode;

use bftrainer::wire::{Request, Set};
use clap::Args;

use super::ask;

/// `bftrainer set`: owners may change `weight=` and lower the maximum of `nodes=`,
/// SlurmUser and root anything.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// The trainer's array job id
    #[arg(value_name = "JOBID", value_parser = super::job_id)]
    array_job_id: u32,
    /// What to change, as weight=2,nodes=1-8
    #[arg(value_name = "KEY=VALUE,...")]
    changes: String,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs `bftrainer set`. Like scontrol it is silent when all went well.
pub fn set(args: SetArgs) -> ExitCode {
    let request = Request::Set(Set {
        array_job_id: args.array_job_id,
        changes: args.changes,
    });
    match ask::ask(request, args.config.as_deref()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bftrainer: {error}");
            ExitCode::FAILURE
        }
    }
}
