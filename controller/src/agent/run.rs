//! `bftrainer run`: keeper and agent for one COMMAND.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::call::Call;
use super::environment::allocated_gpus;
use super::identity::Identity;
use super::keeper::{self, Kept, PREEMPTED};
use super::live::{self, Live};
use super::log::say;
use super::processes;
use super::report_folder::{self, ReportFolder};
use super::session::Session;
use super::settings::Settings;

/// Exit code for a use that can't work, as in sysexits.h.
pub const USAGE: u8 = 64;

/// How long a keeper whose agent was killed tries to requeue the task.
const REQUEUE_WITHIN: Duration = Duration::from_secs(10);

/// `bftrainer run`: runs COMMAND elastically, as the controller says.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Ranks to start on each node [default: the allocated GPUs, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub ranks_per_node: Option<u32>,
    /// Start COMMAND once a node and leave the ranks to it
    #[arg(long, conflicts_with = "ranks_per_node")]
    pub per_node: bool,
    /// Start COMMAND once a node and let it go on when other nodes come and go: it handles
    /// membership itself, from the host file
    #[arg(long, conflicts_with_all = ["ranks_per_node", "per_node"])]
    pub live: bool,
    /// Signal COMMAND's processes that catch it when the host file has changed: USR1, USR2,
    /// HUP or WINCH
    #[arg(long, value_name = "SIGNAL", requires = "live", value_parser = live::parse_signal)]
    pub notify: Option<Signal>,
    /// The training program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

impl Args {
    /// `command` with all defaults.
    pub fn plain(command: Vec<OsString>) -> Self {
        Args {
            ranks_per_node: None,
            per_node: false,
            live: false,
            notify: None,
            command,
        }
    }
}

/// Runs the agent until the trainer, the task or the node's time is over. Call
/// it before any thread is started.
pub fn run(args: Args) -> ExitCode {
    let identity = match Identity::from_env() {
        Ok(identity) => identity,
        Err(error) => {
            say!("{error}");
            return ExitCode::from(USAGE);
        }
    };
    // srun sets it; in the batch step it is 0.
    if std::env::var("SLURM_LOCALID").is_ok_and(|local| local != "0") {
        say!(
            "srun started more than one agent on this node, this one ends: use srun -n1, and --ranks-per-node for the ranks"
        );
        return ExitCode::SUCCESS;
    }
    let folder = ReportFolder::make(identity.job_id)
        .map_err(|error| say!("no folder for progress reports, they are off: {error}"))
        .ok();
    let task = identity.task();
    let code = keeper::keep(
        |kept| {
            agent(
                args,
                identity,
                folder.as_ref().map(ReportFolder::path),
                kept,
            )
        },
        || revive(&task),
    );
    if let Some(folder) = folder {
        folder.remove();
    }
    ExitCode::from(code)
}

/// The agent's process.
fn agent(args: Args, identity: Identity, reports: Option<&Path>, kept: Kept) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match (processes::become_subreaper(), runtime) {
        (Ok(()), Ok(runtime)) => runtime,
        (Err(error), _) | (_, Err(error)) => {
            say!("the agent could not start: {error}");
            return 1;
        }
    };
    let gpus = allocated_gpus(|name| std::env::var(name).ok());
    let slots = args.ranks_per_node.or(gpus).unwrap_or(1);
    let ckpt_dir = std::env::var_os("BFT_CKPT_DIR").map(PathBuf::from);
    let work = super::session::Work {
        command: args.command,
        slots,
        per_node: args.per_node || args.live,
        live: args.live.then_some(Live {
            notify: args.notify,
        }),
        ckpt_dir,
    };
    if let Some(parent) = reports.and_then(Path::parent) {
        let parent = parent.to_owned();
        runtime.spawn_blocking(move || report_folder::remove_left_in(&parent));
    }
    let code = runtime.block_on(async {
        match Session::new(identity, Settings::find(), work, reports) {
            Ok(session) => session.run(kept).await,
            Err(error) => {
                say!("the agent could not start: {error}");
                1
            }
        }
    });
    // A thread that hangs in a file system must not hold the agent.
    runtime.shutdown_background();
    code
}

/// After the agent was killed: its task would end as FAILED, which is final, so
/// have it requeued. Slurm's SIGTERM then ends this process.
fn revive(task: &str) -> Option<u8> {
    say!("the agent was killed; requeueing {task}");
    let call = Call::requeue_hold(task).map_err(|error| error.to_string());
    match call.and_then(|call| call.requeued(REQUEUE_WITHIN)) {
        Ok(()) => Some(PREEMPTED),
        Err(reason) => {
            say!("{task} could not be requeued: {reason}");
            None
        }
    }
}
