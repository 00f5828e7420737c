//! One generation's ranks on this node, from their start until no process of
//! theirs is left: what their ends mean, when to send which signal. Reaping is
//! the caller's, who hands each status in.

use std::process::ExitStatus;
use std::time::Duration;

use bftrainer::wire::{Outcome, Start};
use bftrainer_core::trainer::PREEMPTED_EXIT_CODE;
use tokio::time::Instant;

use super::processes;
use super::ranks::Rank;

/// When rank 0 has exited 0, the node's other ranks may take so long to end.
const FINISH_WAIT: Duration = Duration::from_secs(5);

/// An end that nobody asked for is reported so much later: Slurm signals all
/// processes of a step one by one, and its SIGTERM to the agent may still come.
const SETTLE: Duration = Duration::from_millis(150);

/// How often a group that outlives its rank is looked at, and killed ones are
/// killed again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The ranks of one generation on this node.
#[derive(Debug)]
pub struct Generation {
    /// What the controller said.
    pub start: Start,
    ranks: Vec<Rank>,
    phase: Phase,
    outcome: Option<Outcome>,
    report_from: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Running,
    /// Rank 0 has exited 0; the others are killed at this time.
    Finishing(Instant),
    /// Ranks were sent SIGTERM; they are killed at this time.
    Stopping(Instant),
    /// All were killed; until none is left.
    Sweeping,
    /// No process is left.
    Gone,
}

/// What the ends of a node's ranks mean so far.
#[derive(Debug, PartialEq)]
enum Meaning {
    /// Wait for more.
    Open,
    /// Rank 0 is done: give the others a moment.
    Finished,
    /// It is over.
    Over(Outcome),
}

impl Generation {
    /// Watches `ranks`, just started.
    pub fn new(start: Start, ranks: Vec<Rank>) -> Self {
        Generation {
            start,
            ranks,
            phase: Phase::Running,
            outcome: None,
            report_from: Instant::now(),
        }
    }

    /// Whether its ranks run and nobody has told them to end.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Takes a child's status; ignored when it is no rank.
    pub fn on_exit(&mut self, pid: libc::pid_t, status: ExitStatus, now: Instant) {
        let Some(rank) = self.ranks.iter_mut().find(|rank| rank.pid == pid) else {
            return;
        };
        rank.status = Some(status);
        if !matches!(self.phase, Phase::Running | Phase::Finishing(_)) {
            return;
        }
        let ends: Vec<_> = self.ranks.iter().map(|rank| rank.status).collect();
        match meaning(self.start.node_rank, &ends) {
            Meaning::Open => {}
            Meaning::Finished => {
                if self.phase == Phase::Running {
                    self.phase = Phase::Finishing(now + FINISH_WAIT);
                    self.report_from = now + SETTLE;
                }
            }
            Meaning::Over(outcome) => {
                self.report_from = self.report_from.max(now + SETTLE);
                self.kill(outcome);
            }
        }
    }

    /// Sends SIGTERM, and SIGKILL after `grace`. One that is ending goes on ending,
    /// at most `grace` long.
    pub fn stop(&mut self, grace: Duration, now: Instant) {
        let kill_at = now + grace;
        match &mut self.phase {
            Phase::Sweeping | Phase::Gone => {}
            Phase::Finishing(at) | Phase::Stopping(at) => *at = kill_at.min(*at),
            Phase::Running if grace.is_zero() => self.kill(Outcome::Stopped),
            Phase::Running => {
                self.outcome = Some(Outcome::Stopped);
                self.phase = Phase::Stopping(kill_at);
                self.signal(libc::SIGTERM);
                self.signal(libc::SIGCONT);
            }
        }
    }

    /// Kills all of it at once; `outcome` stands unless there is one.
    pub fn kill(&mut self, outcome: Outcome) {
        if self.phase == Phase::Gone {
            return;
        }
        self.outcome.get_or_insert(outcome);
        self.phase = Phase::Sweeping;
        self.signal(libc::SIGKILL);
        processes::kill_descendants();
    }

    /// Sends `signal` to every rank's process group.
    pub fn signal(&self, signal: i32) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
    }

    /// Does what is due at `now`.
    pub fn advance(&mut self, now: Instant) {
        match self.phase {
            Phase::Running | Phase::Gone => {}
            Phase::Finishing(kill_at) => {
                if now >= kill_at {
                    self.kill(Outcome::Exited);
                }
            }
            Phase::Stopping(kill_at) => {
                // Each rank is looked at: that also marks the groups that are gone.
                let over = self
                    .ranks
                    .iter_mut()
                    .filter_map(|rank| rank.is_over().then_some(()));
                if over.count() == self.ranks.len() || now >= kill_at {
                    self.kill(Outcome::Stopped);
                }
            }
            Phase::Sweeping => {
                processes::kill_descendants();
            }
        }
    }

    /// No child of the agent is left.
    pub fn on_no_children(&mut self) {
        if self.phase == Phase::Sweeping {
            self.phase = Phase::Gone;
        }
    }

    /// How it ended, once no process is left and that may be told.
    pub fn end(&self, now: Instant) -> Option<Outcome> {
        let told = self.phase == Phase::Gone && now >= self.report_from;
        self.outcome.clone().filter(|_| told)
    }

    /// When [`advance`](Self::advance) or [`end`](Self::end) is to be asked
    /// again if no child ends before.
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        match self.phase {
            Phase::Running => None,
            Phase::Finishing(at) => Some(at),
            Phase::Stopping(at) => {
                let lingers = self.ranks.iter().any(|rank| rank.status.is_some());
                Some(if lingers {
                    at.min(now + LOOK_AGAIN)
                } else {
                    at
                })
            }
            Phase::Sweeping => Some(now + LOOK_AGAIN),
            Phase::Gone => Some(self.report_from),
        }
    }
}

/// Reads the `ends` of a node's ranks, in order of local rank.
fn meaning(node_rank: u32, ends: &[Option<ExitStatus>]) -> Meaning {
    let codes: Vec<Option<i32>> = ends
        .iter()
        .map(|end| end.map(processes::exit_code))
        .collect();
    if node_rank == 0 && codes.first() == Some(&Some(0)) {
        return match codes.iter().all(Option::is_some) {
            true => Meaning::Over(Outcome::Exited),
            false => Meaning::Finished,
        };
    }
    let failed = codes.iter().enumerate().find_map(|(local, code)| {
        let code = code.filter(|code| *code != 0 && *code != PREEMPTED_EXIT_CODE)?;
        Some((local, code))
    });
    if let Some((local, exit_code)) = failed {
        let reason = match exit_code {
            129.. => format!("local rank {local} died by signal {}", exit_code - 128),
            _ => format!("local rank {local} exited {exit_code}"),
        };
        return Meaning::Over(Outcome::Failed { exit_code, reason });
    }
    if codes.contains(&Some(PREEMPTED_EXIT_CODE)) {
        return Meaning::Over(Outcome::Stopped);
    }
    match codes.iter().all(|code| *code == Some(0)) {
        true => Meaning::Over(Outcome::Exited),
        false => Meaning::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const LIVES: Option<ExitStatus> = None;

    fn exited(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    fn killed(signal: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(signal))
    }

    fn failed(exit_code: i32, reason: &str) -> Meaning {
        let reason = reason.to_owned();
        Meaning::Over(Outcome::Failed { exit_code, reason })
    }

    #[test]
    fn rank_0_decides_whether_the_trainer_is_finished() {
        assert_eq!(meaning(0, &[exited(0), LIVES]), Meaning::Finished);
        let over = Meaning::Over(Outcome::Exited);
        assert_eq!(meaning(0, &[exited(0), exited(1)]), over);
        assert_eq!(meaning(0, &[LIVES, exited(0)]), Meaning::Open);
        assert_eq!(meaning(3, &[exited(0), LIVES]), Meaning::Open);
        assert_eq!(meaning(3, &[exited(0), exited(0)]), over);
    }

    #[test]
    fn exit_143_and_death_by_sigterm_are_no_failures() {
        for end in [exited(143), killed(libc::SIGTERM)] {
            assert_eq!(meaning(0, &[LIVES, end]), Meaning::Over(Outcome::Stopped));
            assert_eq!(meaning(0, &[end]), Meaning::Over(Outcome::Stopped));
            assert_eq!(
                meaning(1, &[exited(0), end]),
                Meaning::Over(Outcome::Stopped)
            );
        }
    }

    #[test]
    fn any_other_end_is_a_failure_with_its_rank_and_code() {
        let (one, nine) = (exited(1), killed(libc::SIGKILL));
        assert_eq!(
            meaning(0, &[LIVES, one]),
            failed(1, "local rank 1 exited 1")
        );
        assert_eq!(
            meaning(2, &[nine]),
            failed(137, "local rank 0 died by signal 9")
        );
        assert_eq!(
            meaning(0, &[exited(143), one]),
            failed(1, "local rank 1 exited 1")
        );
    }
}
