//! The keeper: the process that Slurm started. It passes signals on to its
//! child, the agent, and when the agent has ended for whatever reason kills and
//! reaps every descendant, then ends with the agent's code. It stays trivial,
//! so that it is there whatever happens to the agent.

use std::time::{Duration, Instant};

use bftrainer_core::trainer::PREEMPTED_EXIT_CODE;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{ForkResult, fork};

use super::log::say;
use super::processes::{self, Reaped};

/// The exit code of a task that Slurm took its node from.
pub const PREEMPTED: u8 = PREEMPTED_EXIT_CODE as u8;

/// Passed on to the agent. The first four end it.
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// The agent ends within some 0.3 s of SIGTERM; then it is killed.
const AGENT_MAY_TAKE: Duration = Duration::from_secs(2);

/// A process that survives SIGKILL so long hangs in the kernel; Slurm knows
/// better than we what to do then.
const SWEEP_AT_MOST: Duration = Duration::from_secs(20);

/// What the agent knows of its keeper.
#[derive(Debug)]
pub struct Kept {
    keeper: libc::pid_t,
    old_mask: SigSet,
}

impl Kept {
    /// Whether the keeper is gone.
    pub fn is_orphan(&self) -> bool {
        processes::parent_pid() != self.keeper
    }

    /// Lets signals in; they wait from before the fork until the agent has its
    /// handlers.
    pub fn unblock_signals(&self) {
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.old_mask), None);
    }
}

/// Forks: `agent` runs in the child and gives the exit code; `after_death` runs
/// here when the agent was killed by a signal that we did not ask for, with no
/// descendant left, and may give another exit code. Call it with a single thread.
pub fn keep(agent: impl FnOnce(Kept) -> u8, after_death: impl FnOnce() -> Option<u8>) -> u8 {
    if let Err(error) = processes::become_subreaper() {
        say!("this system can't keep track of a job's processes: {error}");
        return 1;
    }
    let mut signals = SigSet::empty();
    for signal in FORWARDED {
        signals.add(signal);
    }
    signals.add(Signal::SIGCHLD);
    let mut old_mask = SigSet::empty();
    if let Err(error) = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut old_mask)) {
        say!("signals can't be blocked: {error}");
        return 1;
    }
    let keeper = processes::own_pid();
    // SAFETY: the caller has a single thread, so the child may do anything.
    match unsafe { fork() } {
        Err(error) => {
            say!("the agent could not be started: {error}");
            1
        }
        Ok(ForkResult::Child) => {
            // The agent must outlive its keeper by the time it takes to clean up.
            let code = match processes::die_with_parent(Signal::SIGTERM, keeper) {
                Ok(()) => agent(Kept { keeper, old_mask }),
                Err(_) => PREEMPTED,
            };
            std::process::exit(i32::from(code));
        }
        Ok(ForkResult::Parent { child }) => {
            let (code, unexpected) = watch(child.as_raw(), &signals);
            sweep();
            let code = match unexpected {
                true => after_death().unwrap_or(code),
                false => code,
            };
            sweep();
            code
        }
    }
}

/// Passes signals on until the agent has ended. Its exit code, and whether it
/// died without our asking.
fn watch(agent: libc::pid_t, signals: &SigSet) -> (u8, bool) {
    let mut kill_at: Option<Instant> = None;
    loop {
        loop {
            match processes::reap() {
                Reaped::Child(pid, status) if pid == agent => {
                    let died = status.code().is_none() && kill_at.is_none();
                    let code = u8::try_from(processes::exit_code(status)).unwrap_or(1);
                    let asked = kill_at.is_some() && status.code().is_none();
                    return (if asked { PREEMPTED } else { code }, died);
                }
                Reaped::Child(..) => {}
                Reaped::NoneEnded => break,
                // The agent's status was taken by nobody else: can't happen.
                Reaped::NoChildren => return (1, false),
            }
        }
        let now = Instant::now();
        if kill_at.is_some_and(|at| at <= now) {
            processes::signal(agent, libc::SIGKILL);
        }
        let wait = kill_at.map_or(Duration::from_secs(60), |at| {
            at.saturating_duration_since(now)
        });
        let signal = next_signal(signals, wait.max(Duration::from_millis(10)));
        if signal > 0 && signal != libc::SIGCHLD {
            processes::signal(agent, signal);
            let ends = !matches!(signal, libc::SIGUSR1 | libc::SIGUSR2);
            if ends && kill_at.is_none() {
                kill_at = Some(Instant::now() + AGENT_MAY_TAKE);
            }
        }
    }
}

/// Kills and reaps until no descendant is left.
fn sweep() {
    let give_up = Instant::now() + SWEEP_AT_MOST;
    loop {
        let left = processes::kill_descendants();
        loop {
            match processes::reap() {
                Reaped::NoChildren => return,
                Reaped::NoneEnded => break,
                Reaped::Child(..) => {}
            }
        }
        if Instant::now() > give_up {
            say!("{left} processes survive SIGKILL: Slurm will look after them");
            return;
        }
        let mut child = SigSet::empty();
        child.add(Signal::SIGCHLD);
        next_signal(&child, Duration::from_millis(10));
    }
}

/// The next of the blocked `signals`, 0 or less when none came within `wait`.
fn next_signal(signals: &SigSet, wait: Duration) -> i32 {
    let wait = libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(60),
        tv_nsec: wait.subsec_nanos().into(),
    };
    // SAFETY: set and time are valid for reading; null: no details wanted.
    unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &wait) }
}
