//! Losses and failures: what a preemption, a silent agent or a program's error
//! means for the trainer and for the node.

use std::collections::BTreeSet;

use super::forced::Forced;
use super::intake::ENDED;
use super::{Action, Engine, LossReason, Outcome, PlaceFault};
use crate::node::NodeId;
use crate::pool::{Phase, Worker};
use crate::trainer::{Failure, PREEMPTED_EXIT_CODE, RunState, TrainerId, TrainerState};

/// A trainer whose placements pend for its own reasons waits this long, seconds.
const TRAINER_BACK_OFF_S: f64 = 60.0;

/// First pause before ranks that ended by themselves are started again; doubled with each
/// failure, seconds.
const RESTART_BACK_OFF_S: f64 = 1.0;

/// Ranks that nobody stopped and that end as preempted, or find a newer generation
/// in their control folder, so many times as often as failures end a trainer, are at
/// fault wherever they run.
const ODD_ENDS_PER_FAILURE: usize = 3;

/// So many failures in a row are remembered; one more on the same nodes says nothing new.
const KEPT_FAILURES: usize = 32;

impl Engine {
    /// The node is no longer ours to use; a worker there is lost with it.
    pub(super) fn lose_node(&mut self, now_s: f64, node: NodeId, why: Forced) {
        if let Some(worker) = self.pool.get(node).and_then(|node| node.worker.clone()) {
            self.lose_worker(now_s, worker.trainer, node);
        }
        if let Some(pool_node) = self.pool.remove(node)
            && let Some(trainer) = pool_node.assigned
        {
            self.note_forced_loss(trainer, node, why);
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
            .get(node)
            .is_none_or(|pool_node| pool_node.worker_of(trainer).is_none())
        {
            return;
        }
        match reason {
            LossReason::Preempted => self.lose_node(now_s, node, Forced::Taken),
            LossReason::Silent => {
                self.lose_worker(now_s, trainer, node);
                self.quarantine(now_s, node, "the worker there fell silent".to_owned());
                self.send_lost_home(now_s, trainer, node, "its agent fell silent");
            }
            LossReason::Ended => self.lose_worker(now_s, trainer, node),
        }
    }

    /// A lost worker's task is on the node until Slurm has taken it away.
    fn send_lost_home(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, reason: &str) {
        let worker = Worker {
            trainer,
            phase: Phase::Leaving,
            since_s: now_s,
        };
        self.pool.update(node, |it| it.worker = Some(worker));
        self.send_home(trainer, node, reason);
    }

    fn lose_worker(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        let worker = self.pool.update(node, |it| it.worker.take()).flatten();
        let Some(phase) = worker.map(|worker| worker.phase) else {
            return;
        };
        self.decision_due = true;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
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
            self.bereave(now_s, trainer, node);
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
        self.pardon_nodes_of(trainer, &excused);
    }

    /// A worker that was told to leave has left; the node stays in the pool.
    pub(super) fn worker_gone(&mut self, trainer: TrainerId, node: NodeId) {
        self.pool.update(node, |it| it.take_worker_of(trainer));
    }

    pub(super) fn place_failed(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        fault: PlaceFault,
        reason: String,
    ) {
        let worker = self.pool.get(node).and_then(|node| node.worker_of(trainer));
        if worker.is_some_and(|worker| worker.phase != Phase::Placed) {
            // Another task of the same trainer was there, or it was there and is gone again.
            self.lose_worker(now_s, trainer, node);
            self.send_lost_home(now_s, trainer, node, "its placement failed");
        } else {
            self.worker_gone(trainer, node);
        }
        self.pool.update(node, |it| it.unassign_from(trainer));
        match fault {
            PlaceFault::Node => self.quarantine(now_s, node, reason),
            PlaceFault::NodeOrTrainer => {
                self.avoid(now_s, trainer, node, &reason);
                self.start_failed(now_s, trainer, &reason);
            }
            PlaceFault::Trainer => {
                if let Some(known) = self.trainers.get_mut(&trainer) {
                    known.pause_until(now_s + TRAINER_BACK_OFF_S, reason);
                }
            }
            PlaceFault::Nobody => {}
        }
    }

    /// A task failed before its agent had joined. When that goes on, a trainer none of whose
    /// agents is here is paused, longer each time: it does not work its way through all nodes.
    fn start_failed(&mut self, now_s: f64, trainer: TrainerId, reason: &str) {
        let is_here = |node: &NodeId| {
            let worker = self.pool[*node].worker_of(trainer);
            worker.is_some_and(|worker| !matches!(worker.phase, Phase::Placed | Phase::Leaving))
        };
        let has_agents = self.pool.assigned_to(trainer).iter().any(is_here);
        let known = self.trainers.get_mut(&trainer);
        let known = known.filter(|known| !has_agents && now_s >= known.resume_at_s);
        let Some(known) = known else {
            return;
        };
        known.failed_starts += 1;
        let Some(earlier) = known.failed_starts.checked_sub(self.config.failures) else {
            return;
        };
        let pause_s = self.config.quarantine_length_s(earlier as u32);
        let sentence = format!(
            "{reason} ({} times in a row; tried again after {pause_s} s)",
            known.failed_starts
        );
        known.pause_until(now_s + pause_s, sentence);
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
        if let Some(save_s) = run.answered_stop(node, now_s) {
            self.measure_save(trainer, save_s);
        }
        match outcome {
            Outcome::Exited if is_master => self.finish(now_s, trainer, 0, ENDED),
            Outcome::Exited => {}
            Outcome::Stopped if ordered => {}
            Outcome::Fenced { .. } if ordered => {}
            Outcome::Fenced { newest_generation } => {
                // Files that always know better must not make it start all the time.
                if let Some(known) = self.trainers.get_mut(&trainer) {
                    known.restart_at_s = known.restart_at_s.max(now_s + RESTART_BACK_OFF_S);
                }
                let reason = format!("its control folder knows generation {newest_generation}");
                self.program_ended(now_s, trainer, node, PREEMPTED_EXIT_CODE, &reason);
                self.go_on_without(now_s, trainer, node, 0.0);
            }
            Outcome::Stopped => {
                let grace_s = self.config.grace_s;
                self.program_ended(
                    now_s,
                    trainer,
                    node,
                    PREEMPTED_EXIT_CODE,
                    "it ended by itself as preempted",
                );
                self.go_on_without(now_s, trainer, node, grace_s);
            }
            Outcome::Failed { .. } if ordered => {}
            Outcome::Failed { exit_code, reason } => {
                self.program_ended(now_s, trainer, node, exit_code, &reason);
                self.go_on_without(now_s, trainer, node, 0.0);
            }
        }
    }

    /// The ranks on `node` have ended by themselves: the others stop, too, unless they can
    /// do without them.
    fn go_on_without(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, grace_s: f64) {
        if self.is_live(trainer) {
            self.part_with(now_s, trainer, node);
        } else {
            self.stop_run(now_s, trainer, grace_s, Some(node));
        }
    }

    /// Whether it was a worker's ranks of a generation that is not current.
    fn stale_worker_stopped(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) -> bool {
        let worker = self.pool.get(node).and_then(|node| node.worker_of(trainer));
        let Some((Phase::Stale { may_save }, ordered_s)) = worker.map(|it| (it.phase, it.since_s))
        else {
            return false;
        };
        if may_save {
            self.measure_save(trainer, now_s - ordered_s);
        }
        self.set_phase(now_s, node, trainer, Phase::Ready);
        true
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
        let is_bereaved = run.bereaved.get(&node).is_some_and(|end_s| now_s < *end_s);
        let lost = is_bereaved
            || run.lost_member
            || run.members.iter().any(|member| {
                self.pool
                    .get(*member)
                    .is_none_or(|node| !node.may_run(trainer))
            });
        if lost {
            return;
        }
        if now_s >= run.since_s + self.config.quarantine_max_s {
            // Not all programs report progress: so long a run is some.
            known.failures.clear();
        }
        if known.failures.is_empty() {
            known.failures_at_samples = known.samples;
        }
        // Slurm may have signalled the ranks before the agent.
        let brought_avoidance = exit_code != PREEMPTED_EXIT_CODE;
        if known.failures.len() == KEPT_FAILURES {
            known.failures.remove(0);
        }
        known.failures.push(Failure {
            node,
            generation: run.number,
            time_s: now_s,
            exit_code,
            reason: reason.to_owned(),
            brought_avoidance,
        });
        let pause_s = RESTART_BACK_OFF_S
            * f64::from(2u32.saturating_pow(known.failures.len() as u32 - 1).min(64));
        known.restart_at_s = now_s + pause_s;
        known.blocked_reason = Some(format!(
            "{} on {}, started again after {pause_s} s",
            reason,
            self.names.name(node)
        ));
        if brought_avoidance {
            self.avoid(now_s, trainer, node, reason);
        }
    }

    /// Judges failures whose window for explanations has passed.
    pub(super) fn judge_failures(&mut self, now_s: f64) {
        let window_s = self.config.collateral_window_s;
        let mut failed = Vec::new();
        let mut wake_at = Vec::new();
        for (id, trainer) in &self.trainers {
            let Some(last) = trainer.failures.last() else {
                continue;
            };
            if trainer.state != TrainerState::Admitted {
                continue;
            }
            let Some(verdict) = self.verdict(&trainer.failures) else {
                continue;
            };
            if now_s < last.time_s + window_s {
                wake_at.push(last.time_s + window_s);
            } else {
                let reason = format!("{verdict}, last: {}", last.reason);
                failed.push((*id, last.exit_code, reason));
            }
        }
        for time_s in wake_at {
            self.wake_at(time_s);
        }
        for (trainer, exit_code, reason) in failed {
            self.fail(now_s, trainer, exit_code, reason);
        }
    }

    /// Why these failures in a row are the trainer's own fault, if they are.
    fn verdict(&self, failures: &[Failure]) -> Option<String> {
        let (odd, failures): (Vec<&Failure>, Vec<&Failure>) = failures
            .iter()
            .partition(|failure| failure.exit_code == PREEMPTED_EXIT_CODE);
        let nodes: BTreeSet<NodeId> = failures.iter().map(|failure| failure.node).collect();
        if nodes.len() >= self.config.failures {
            return Some(format!(
                "failed {} times in a row on different nodes without progress",
                nodes.len()
            ));
        }
        // No node makes a program end like that.
        let times = odd.len();
        (times >= self.config.failures * ODD_ENDS_PER_FAILURE).then(|| {
            format!("ended {times} times in a row though nobody stopped it, without progress")
        })
    }

    /// The trainer has failed, and not for its nodes.
    fn fail(&mut self, now_s: f64, trainer: TrainerId, exit_code: i32, reason: String) {
        let known = self.trainers.get_mut(&trainer);
        let failures = known.map(|known| std::mem::take(&mut known.failures));
        self.pardon_nodes_of(trainer, &failures.unwrap_or_default());
        self.finish(now_s, trainer, exit_code, &format!("it {reason}"));
        if let Some(Action::Close { .. }) = self.actions.last() {
            self.actions.pop();
        }
        self.actions.push(Action::Fail {
            trainer,
            exit_code,
            reason,
        });
    }
}
