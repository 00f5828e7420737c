//! Calls to slurmctld in a process of their own, `bftrainer slurm-call`: libslurm
//! may wait for long and ends its process when it finds no configuration, and
//! the agent must survive both.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::processes;
use crate::slurm::{JobComments, Slurm, TaskName};

/// The hidden subcommand that makes the call.
pub const SUBCOMMAND: &str = "slurm-call";

/// What the line with the answer starts with; libslurm may print others.
const ANSWER: &str = "answer ";

/// Longest answer that is read, in bytes.
const MAX_BYTES: usize = 64 * 1024;

/// `bftrainer slurm-call`, which only the agent starts.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

/// What is asked of slurmctld.
#[derive(Clone, Debug, clap::Subcommand)]
enum Question {
    /// Comment and AdminComment of a job
    Job {
        /// The job's own id
        job_id: u32,
    },
    /// Requeue a task and hold it
    RequeueHold {
        /// The task, A_k
        task: String,
    },
}

/// How slurmctld answered.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Job(JobComments),
    Requeued,
    Failed(String),
}

/// Runs the call and prints its answer.
pub fn run(args: &Args) -> ExitCode {
    let slurm = Slurm::new();
    let answer = match &args.question {
        Question::Job { job_id } => slurm.job_comments(*job_id).map(Answer::Job),
        Question::RequeueHold { task } => {
            let name = TaskName::Other(task.clone());
            slurm.requeue_hold(&name).map(|()| Answer::Requeued)
        }
    };
    let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
    let line = serde_json::to_string(&answer).unwrap_or_default();
    let printed = io::Write::write_all(&mut io::stdout(), format!("{ANSWER}{line}\n").as_bytes());
    match (answer, printed) {
        (Answer::Failed(_), _) | (_, Err(_)) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

/// A call under way. Whoever reaps this process's children reaps it too.
#[derive(Debug)]
pub struct Call {
    output: io::PipeReader,
    pid: libc::pid_t,
}

impl Call {
    /// Asks for the comments of the job `job_id`.
    pub fn job(job_id: u32) -> io::Result<Call> {
        Self::start(["job".into(), job_id.to_string().into()])
    }

    /// Has task `A_k` requeued and held.
    pub fn requeue_hold(task: &str) -> io::Result<Call> {
        Self::start(["requeue-hold".into(), task.into()])
    }

    /// Call it on a thread that outlives the call.
    fn start(arguments: [OsString; 2]) -> io::Result<Call> {
        let (output, input) = io::pipe()?;
        let parent = processes::own_pid();
        let mut command = Command::new("/proc/self/exe");
        command
            .arg(SUBCOMMAND)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(input.try_clone()?)
            .stderr(input);
        // SAFETY: the closure only makes system calls that are safe after fork.
        unsafe { command.pre_exec(move || processes::die_with_parent(Signal::SIGKILL, parent)) };
        let child = command.spawn()?;
        // The command holds the writing ends: without them the pipe ends with the child.
        drop(command);
        Ok(Call {
            output,
            pid: libc::pid_t::try_from(child.id()).map_err(io::Error::other)?,
        })
    }

    /// Waits for the comments, at most `limit`; blocks.
    pub fn comments(self, limit: Duration) -> Result<JobComments, String> {
        match self.answer(limit)? {
            Answer::Job(comments) => Ok(comments),
            Answer::Failed(reason) => Err(reason),
            Answer::Requeued => Err("an answer to another question".to_owned()),
        }
    }

    /// Waits for the requeueing, at most `limit`; blocks.
    pub fn requeued(self, limit: Duration) -> Result<(), String> {
        match self.answer(limit)? {
            Answer::Requeued => Ok(()),
            Answer::Failed(reason) => Err(reason),
            Answer::Job(_) => Err("an answer to another question".to_owned()),
        }
    }

    fn answer(mut self, limit: Duration) -> Result<Answer, String> {
        let read = self.read(limit);
        if read.is_err() {
            processes::signal(self.pid, libc::SIGKILL);
        }
        let text = read.map_err(|error| format!("slurmctld did not answer: {error}"))?;
        let answer = text.lines().find_map(|line| line.strip_prefix(ANSWER));
        match answer.map(serde_json::from_str) {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(format!("an unreadable answer: {error}")),
            None => Err(text
                .lines()
                .rfind(|line| !line.trim().is_empty())
                .unwrap_or("libslurm ended without an answer")
                .to_owned()),
        }
    }

    /// All that the call prints.
    fn read(&mut self, limit: Duration) -> io::Result<String> {
        let deadline = Instant::now() + limit;
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut ready = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, wait) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(Errno::EINTR) => continue,
                result => result?,
            };
            match self.output.read(&mut buffer) {
                Ok(0) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Ok(got) if bytes.len() < MAX_BYTES => bytes.extend_from_slice(&buffer[..got]),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
