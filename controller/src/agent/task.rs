//! `bftrainer task`: what the SPANK plugin starts in the place of a batch
//! script. It decides whether the job is a trainer at all, whether the trainer
//! has ended already, and who calls the agent; then it becomes the script or
//! the agent.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use bftrainer::spec::{AdminComment, COMMENT_PREFIX};

use super::call::Call;
use super::control_folder::{ControlFolder, Verdict};
use super::environment::is_inherited_option;
use super::identity::Identity;
use super::log::say;
use super::processes;
use super::run;
use super::times::BackOff;
use crate::slurm::JobComments;

/// How much of a script is searched for a call of the agent, in bytes.
const SEARCHED_BYTES: u64 = 1024 * 1024;

/// One question to slurmctld.
const ASK_WITHIN: Duration = Duration::from_secs(15);

/// slurmctld has just started this task, so it can't be away for long.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);

/// Exit code when slurmctld can't be asked, as in sysexits.h.
const TRY_LATER: u8 = 75;

/// Exit codes of a shell for a script that can't be run.
const NOT_RUNNABLE: u8 = 126;

/// `bftrainer task`: the batch step of a job that may be a trainer.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The job is known to be a trainer
    #[arg(long)]
    pub tagged: bool,
    /// The batch script and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub script: Vec<OsString>,
}

/// Decides and becomes the script or the agent. Call it before any thread is
/// started.
pub fn run(args: Args) -> ExitCode {
    drop_inherited_option();
    // Not an array task: no trainer, whatever its comment says.
    let Ok(identity) = Identity::from_env() else {
        return become_script(&args.script);
    };
    let mut comments = None;
    if !args.tagged {
        match ask(identity.job_id) {
            Ok(found) if !is_tagged(&found) => return become_script(&args.script),
            Ok(found) => comments = Some(found),
            Err(code) => return code,
        }
    }
    let folder = ControlFolder::new(&identity.submit_dir, identity.array_job_id);
    if let Some(verdict) = folder.verdict() {
        let comments = match comments.map_or_else(|| ask(identity.job_id), Ok) {
            Ok(comments) => comments,
            Err(code) => return code,
        };
        if is_of(&verdict, &comments) {
            let code = u8::try_from(verdict.exit_code).unwrap_or(1);
            say!("trainer {} has ended with {code}", identity.array_job_id);
            return ExitCode::from(code);
        }
    }
    if args
        .script
        .first()
        .is_some_and(|script| calls_agent(Path::new(script)))
    {
        return become_script(&args.script);
    }
    run::run(run::Args::plain(args.script))
}

/// Whether the comments make the job a trainer.
fn is_tagged(comments: &JobComments) -> bool {
    comments.comment.starts_with(COMMENT_PREFIX)
        || comments.admin_comment.starts_with(COMMENT_PREFIX)
}

/// Whether the verdict is this trainer's, not one of an earlier trainer of the
/// same number. One that was not admitted has no verdict yet.
fn is_of(verdict: &Verdict, comments: &JobComments) -> bool {
    AdminComment::parse(&comments.admin_comment)
        .is_some_and(|comment| comment.submitted_s == verdict.submit_time_s)
}

/// The job's comments; asks until slurmctld answers. The code to exit with when
/// it never does.
fn ask(job_id: u32) -> Result<JobComments, ExitCode> {
    let give_up = Instant::now() + GIVE_UP_AFTER;
    let mut back_off = BackOff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut said = false;
    loop {
        let call = Call::job(job_id).map_err(|error| error.to_string());
        let answer = call.and_then(|call| call.comments(ASK_WITHIN));
        // Leave no zombie to the script that this process becomes.
        processes::reap_all(Duration::from_secs(1));
        let reason = match answer {
            Ok(comments) => return Ok(comments),
            Err(reason) => reason,
        };
        if Instant::now() > give_up {
            say!("job {job_id} could not be looked up: {reason}");
            return Err(ExitCode::from(TRY_LATER));
        }
        if !said {
            said = true;
            say!("job {job_id} could not be looked up, trying again: {reason}");
        }
        std::thread::sleep(back_off.wait());
    }
}

/// Takes Slurm's copies of `--bftrainer` out of the environment, so that a
/// nested sbatch does not submit a trainer.
fn drop_inherited_option() {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_inherited_option) {
            // SAFETY: there is a single thread.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// Becomes the script.
fn become_script(script: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = script.split_first() else {
        return ExitCode::from(run::USAGE);
    };
    let error = Command::new(program).args(arguments).exec();
    say!("{} can't be run: {error}", Path::new(program).display());
    ExitCode::from(NOT_RUNNABLE)
}

/// Whether the script calls `bftrainer run` itself, outside of comments.
fn calls_agent(script: &Path) -> bool {
    let mut bytes = Vec::new();
    let read =
        File::open(script).and_then(|file| file.take(SEARCHED_BYTES).read_to_end(&mut bytes));
    read.is_ok() && text_calls_agent(&String::from_utf8_lossy(&bytes))
}

fn text_calls_agent(text: &str) -> bool {
    let whole_lines = text.replace("\\\n", " ");
    whole_lines
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .any(|line| {
            let words: Vec<&str> = line
                .split(|c: char| c.is_whitespace() || ";&|()`".contains(c))
                .map(|word| word.trim_matches(['"', '\'']))
                .filter(|word| !word.is_empty())
                .collect();
            words.windows(2).any(|pair| {
                Path::new(pair[0]).file_name() == Some(OsStr::new("bftrainer")) && pair[1] == "run"
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_calls_the_agent_itself_is_recognised() {
        for text in [
            "#!/bin/sh\nmodule load x\nsrun bftrainer run -- python train.py\n",
            "srun  --cpu-bind=none\tbftrainer   run --per-node -- x",
            "exec /opt/bft/bin/bftrainer run -- x",
            "srun \"bftrainer\" run -- x",
            "srun bftrainer \\\n  run -- x",
            "true && (bftrainer run -- x)",
        ] {
            assert!(text_calls_agent(text), "{text}");
        }
        for text in [
            "#!/bin/sh\npython train.py\n",
            "# srun bftrainer run -- x",
            "  #bftrainer run",
            "bftrainer progress --samples 3",
            "echo mybftrainer run",
            "bftrainer\nrun",
        ] {
            assert!(!text_calls_agent(text), "{text}");
        }
    }

    #[test]
    fn only_this_trainers_own_verdict_counts() {
        let verdict = Verdict {
            exit_code: 0,
            submit_time_s: 100,
        };
        let admitted = |time_s| JobComments {
            admin_comment: format!("bftrainer:nodes=1-4;submitted={time_s}"),
            ..JobComments::default()
        };
        assert!(is_of(&verdict, &admitted(100)));
        assert!(!is_of(&verdict, &admitted(200)));
        assert!(!is_of(&verdict, &JobComments::default()));
    }
}
