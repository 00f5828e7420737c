//! Starting ranks: each in a process group of its own, killed by the kernel
//! when the agent dies, without standard input.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use nix::sys::signal::Signal;

use super::environment;
use super::processes;

/// One rank, or with `--per-node` the node's one COMMAND.
#[derive(Debug)]
pub struct Rank {
    /// Its process, which leads its process group.
    pub pid: libc::pid_t,
    /// How it ended.
    pub status: Option<ExitStatus>,
    /// Whether no process of its group is left; then its number may be another's.
    pub group_is_gone: bool,
}

/// A rank's output, when it is to be copied.
pub type Output = (ChildStdout, ChildStderr);

impl Rank {
    /// Starts `command` with the agent's environment and `variables`. Call it on
    /// the main thread: the kernel kills the rank when the starting thread ends.
    pub fn start(
        command: &[OsString],
        variables: &[(&'static str, OsString)],
        piped: bool,
    ) -> io::Result<(Rank, Option<Output>)> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut child = Command::new(program);
        child.args(arguments).stdin(Stdio::null()).process_group(0);
        if piped {
            child.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        for (name, _) in std::env::vars_os() {
            if environment::is_cleared(&name) {
                child.env_remove(name);
            }
        }
        child.envs(
            variables
                .iter()
                .map(|(name, value)| (OsStr::new(name), value)),
        );
        let agent = processes::own_pid();
        // SAFETY: the closure only makes system calls that are safe after fork.
        unsafe { child.pre_exec(move || processes::die_with_parent(Signal::SIGKILL, agent)) };
        let mut child = child.spawn()?;
        let output = child.stdout.take().zip(child.stderr.take());
        let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
        let rank = Rank {
            pid,
            status: None,
            group_is_gone: false,
        };
        Ok((rank, output))
    }

    /// Sends `signal` to all of its process group.
    pub fn signal(&self, signal: i32) {
        if !self.group_is_gone {
            processes::signal(-self.pid, signal);
        }
    }

    /// Whether it and all of its process group have ended.
    pub fn is_over(&mut self) -> bool {
        if self.status.is_some() && !self.group_is_gone {
            self.group_is_gone = !processes::signal(-self.pid, 0);
        }
        self.group_is_gone
    }
}
