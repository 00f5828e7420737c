//! Losses, failures and bad nodes: what a preemption, a silent agent or a
//! program's error means for the trainer and for the node.

use serde::{Deserialize, Serialize};

use super::forced::Forced;
use super::{Action, Engine, LossReason, Outcome, PlaceFault};
use crate::node::NodeId;
use crate::pool::{Phase, Worker};
use crate::trainer::{Failure, RunState, TrainerId, TrainerState};

/// A trainer whose placements pend for its own reasons waits this long, seconds.
const TRAINER_BACK_OFF_S: f64 = 60.0;

/// First pause before ranks that ended by themselves are started again; doubled with each
/// failure, seconds.
const RESTART_BACK_OFF_S: f64 = 1.0;

/// Exit code of ranks that SIGTERM ended: they were preempted.
const PREEMPTED: i32 = 143;

/// So many failures in a row are remembered; one more on the same nodes says nothing new.
const KEPT_FAILURES: usize = 32;

/// A node that is not used for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Until when, epoch seconds.
    pub until_s: f64,
    /// How often in a row.
    pub times: u32,
    /// In words.
    pub reason: String,
}

impl Engine {
    pub(super) fn is_quarantined(&self, node: NodeId, now_s: f64) -> bool {
        self.quarantines
            .get(&node)
            .is_some_and(|quarantine| now_s < quarantine.until_s)
    }

    fn quarantine(&mut self, now_s: f64, node: NodeId, reason: String) {
        self.decision_due = true;
        // Not all programs report progress: a node that was good for long is forgiven, too.
        let times = self
            .quarantines
            .get(&node)
            .filter(|quarantine| now_s < quarantine.until_s + self.config.quarantine_max_s)
            .map_or(0, |quarantine| quarantine.times);
        let length_s = (self.config.quarantine_s * f64::from(2u32.saturating_pow(times)))
            .min(self.config.quarantine_max_s);
        self.quarantines.insert(
            node,
            Quarantine {
                until_s: now_s + length_s,
                times: times + 1,
                reason,
            },
        );
    }

    /// Takes back the quarantines that failures brought on their nodes.
    pub(super) fn pardon_nodes_of(&mut self, failures: &[Failure]) {
        for failure in failures {
            if failure.exit_code != PREEMPTED
                && let Some(quarantine) = self.quarantines.get_mut(&failure.node)
            {
                self.decision_due = true;
                quarantine.times -= 1;
                quarantine.until_s = 0.0;
                if quarantine.times == 0 {
                    self.quarantines.remove(&failure.node);
                }
            }
        }
    }

    /// The node is no longer ours to use; a worker there is lost with it.
    pub(super) fn lose_node(&mut self, now_s: f64, node: NodeId) {
        if let Some(worker) = self.pool.get(&node).and_then(|node| node.worker.clone()) {
            self.lose_worker(now_s, worker.trainer, node, LossReason::Preempted);
        }
        if let Some(pool_node) = self.pool.remove(&node)
            && let Some(trainer) = pool_node.assigned
        {
            self.note_forced_loss(trainer, node, Forced::Left);
        }
    }

    pub(super) fn worker_lost(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        reason: LossReason,
    ) {
        if self
            .pool
            .get(&node)
            .is_none_or(|pool_node| pool_node.worker_of(trainer).is_none())
        {
            return;
        }
        match reason {
            LossReason::Preempted => self.lose_node(now_s, node),
            LossReason::Silent => {
                self.lose_worker(now_s, trainer, node, reason);
                self.quarantine(now_s, node, "the worker there fell silent".to_owned());
                self.send_lost_home(now_s, trainer, node, "its agent fell silent");
            }
            LossReason::Ended => self.lose_worker(now_s, trainer, node, reason),
        }
    }

    /// A lost worker's task is on the node until Slurm has taken it away.
    fn send_lost_home(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, reason: &str) {
        if let Some(pool_node) = self.pool.get_mut(&node) {
            pool_node.worker = Some(Worker {
                trainer,
                phase: Phase::Leaving,
                since_s: now_s,
            });
        }
        self.send_home(trainer, node, reason);
    }

    fn lose_worker(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, reason: LossReason) {
        let Some(pool_node) = self.pool.get_mut(&node) else {
            return;
        };
        let Some(phase) = pool_node.worker.take().map(|worker| worker.phase) else {
            return;
        };
        self.decision_due = true;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        if reason == LossReason::Preempted && phase == Phase::Member {
            known.preemptions += 1;
        }
        let mut generation = None;
        if let Some(run) = &mut known.run
            && run.members.contains(&node)
        {
            generation = Some(run.number);
            run.lost_member = true;
            if let RunState::Stopping { waiting, .. } = &mut run.state {
                waiting.remove(&node);
            }
        }
        if !matches!(phase, Phase::Placed | Phase::Leaving) {
            self.excuse_failures(now_s, trainer, generation);
        }
    }

    /// Failures just before a peer's loss was noticed were collateral, as were those
    /// of the generation of which it was a member, however late its loss is noticed:
    /// they count neither against the trainer nor against the nodes.
    fn excuse_failures(&mut self, now_s: f64, trainer: TrainerId, generation: Option<u64>) {
        let window_s = self.config.collateral_window_s;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        let (excused, failures): (Vec<Failure>, Vec<Failure>) =
            known.failures.drain(..).partition(|failure| {
                now_s <= failure.time_s + window_s || Some(failure.generation) == generation
            });
        known.failures = failures;
        if known.failures.is_empty() {
            known.restart_at_s = known.restart_at_s.min(now_s);
        }
        self.pardon_nodes_of(&excused);
    }

    /// A worker that was told to leave has left; the node stays in the pool.
    pub(super) fn worker_gone(&mut self, trainer: TrainerId, node: NodeId) {
        if let Some(pool_node) = self.pool.get_mut(&node)
            && pool_node.worker_of(trainer).is_some()
        {
            pool_node.worker = None;
        }
    }

    pub(super) fn place_failed(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        fault: PlaceFault,
        reason: String,
    ) {
        let worker = self
            .pool
            .get(&node)
            .and_then(|node| node.worker_of(trainer));
        if worker.is_some_and(|worker| worker.phase != Phase::Placed) {
            // Another task of the same trainer was there, or it was there and is gone again.
            self.lose_worker(now_s, trainer, node, LossReason::Ended);
            self.send_lost_home(now_s, trainer, node, "its placement failed");
        } else {
            self.worker_gone(trainer, node);
        }
        if let Some(pool_node) = self.pool.get_mut(&node)
            && pool_node.assigned == Some(trainer)
        {
            pool_node.assigned = None;
        }
        match fault {
            PlaceFault::Node => self.quarantine(now_s, node, reason),
            PlaceFault::Trainer => {
                if let Some(known) = self.trainers.get_mut(&trainer) {
                    known.resume_at_s = now_s + TRAINER_BACK_OFF_S;
                    known.blocked_reason = Some(reason);
                }
            }
            PlaceFault::Nobody => {}
        }
    }

    pub(super) fn worker_stopped(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        generation: u64,
        outcome: Outcome,
    ) {
        if let Outcome::Fenced { newest_generation } = outcome
            && let Some(known) = self.trainers.get_mut(&trainer)
        {
            known.generation = known.generation.max(newest_generation);
        }
        if self.stale_worker_stopped(now_s, trainer, node) {
            return;
        }
        let run = self.run_of(trainer, generation);
        let Some(run) = run.filter(|run| run.members.contains(&node)) else {
            return;
        };
        let is_master = run.members.first() == Some(&node);
        let ordered = matches!(run.state, RunState::Stopping { .. });
        if let RunState::Stopping { waiting, .. } = &mut run.state {
            waiting.remove(&node);
        }
        match outcome {
            Outcome::Exited if is_master => self.finish(trainer, 0),
            Outcome::Exited => {}
            Outcome::Stopped if ordered => {}
            Outcome::Fenced { .. } if ordered => {}
            Outcome::Fenced { .. } => {
                // Files that always know better must not make it start all the time.
                if let Some(known) = self.trainers.get_mut(&trainer) {
                    known.restart_at_s = known.restart_at_s.max(now_s + RESTART_BACK_OFF_S);
                }
                self.stop_run(now_s, trainer, 0.0, Some(node));
            }
            Outcome::Stopped => {
                let grace_s = self.config.grace_s;
                self.program_ended(
                    now_s,
                    trainer,
                    node,
                    PREEMPTED,
                    "it ended by itself as preempted",
                );
                self.stop_run(now_s, trainer, grace_s, Some(node));
            }
            Outcome::Failed { .. } if ordered => {}
            Outcome::Failed { exit_code, reason } => {
                self.program_ended(now_s, trainer, node, exit_code, &reason);
                self.stop_run(now_s, trainer, 0.0, Some(node));
            }
        }
    }

    /// Whether it was a worker's ranks of a generation that is not current.
    fn stale_worker_stopped(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) -> bool {
        let worker = self
            .pool
            .get_mut(&node)
            .and_then(|node| node.worker.as_mut())
            .filter(|worker| worker.trainer == trainer && worker.phase == Phase::Stale);
        let is_stale = worker.is_some();
        if let Some(worker) = worker {
            worker.phase = Phase::Ready;
            worker.since_s = now_s;
        }
        is_stale
    }

    /// Ranks ended that nobody told to: a failure, unless a loss explains it.
    fn program_ended(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        exit_code: i32,
        reason: &str,
    ) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        let Some(run) = &known.run else {
            return;
        };
        let lost = run.lost_member
            || run.members.iter().any(|member| {
                self.pool
                    .get(member)
                    .is_none_or(|node| !node.may_run(trainer))
            });
        if lost {
            return;
        }
        if known.failures.is_empty() {
            known.failures_at_samples = known.samples;
        }
        if known.failures.len() == KEPT_FAILURES {
            known.failures.remove(0);
        }
        known.failures.push(Failure {
            node,
            generation: run.number,
            time_s: now_s,
            exit_code,
            reason: reason.to_owned(),
        });
        let pause_s = RESTART_BACK_OFF_S
            * f64::from(2u32.saturating_pow(known.failures.len() as u32 - 1).min(64));
        known.restart_at_s = now_s + pause_s;
        known.blocked_reason = Some(format!(
            "{} on {}, started again after {pause_s} s",
            reason,
            self.names.name(node)
        ));
        // Slurm may have signalled the ranks before the agent.
        if exit_code != PREEMPTED {
            self.quarantine(now_s, node, format!("T{trainer}: {reason}"));
        }
    }

    /// Judges failures whose window for explanations has passed.
    pub(super) fn judge_failures(&mut self, now_s: f64) {
        let window_s = self.config.collateral_window_s;
        let mut failed = Vec::new();
        let mut wake_at = Vec::new();
        for (id, trainer) in &self.trainers {
            let mut nodes: Vec<NodeId> = trainer
                .failures
                .iter()
                .map(|failure| failure.node)
                .collect();
            nodes.sort_unstable();
            nodes.dedup();
            let Some(last) = trainer.failures.last() else {
                continue;
            };
            if trainer.state != TrainerState::Admitted || nodes.len() < self.config.failures {
                continue;
            }
            if now_s < last.time_s + window_s {
                wake_at.push(last.time_s + window_s);
            } else {
                failed.push((*id, last.exit_code, last.reason.clone(), nodes.len()));
            }
        }
        for time_s in wake_at {
            self.wake_at(time_s);
        }
        for (trainer, exit_code, reason, nodes) in failed {
            self.fail(trainer, exit_code, &reason, nodes);
        }
    }

    /// The trainer has failed on several nodes: it was not theirs.
    fn fail(&mut self, trainer: TrainerId, exit_code: i32, reason: &str, nodes: usize) {
        let known = self.trainers.get_mut(&trainer);
        let failures = known.map(|known| std::mem::take(&mut known.failures));
        self.pardon_nodes_of(&failures.unwrap_or_default());
        self.finish(trainer, exit_code);
        if let Some(Action::Close { .. }) = self.actions.last() {
            self.actions.pop();
        }
        let reason = format!(
            "failed {nodes} times in a row on different nodes without progress, last: {reason}"
        );
        self.actions.push(Action::Fail {
            trainer,
            exit_code,
            reason,
        });
    }
}
