//! Losses, failures and bad nodes: what a preemption, a silent agent or a
//! program's error means for the trainer and for the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Action, Decision, Engine, LossReason, Outcome, PlaceFault};
use crate::node::{NodeId, NodeNames};
use crate::pool::Phase;
use crate::trainer::{Failure, RunState, TrainerId, TrainerState};

/// A trainer whose placements pend for its own reasons waits this long, seconds.
const TRAINER_BACK_OFF_S: f64 = 60.0;

/// First pause before a failed program is started again; doubled each time, seconds.
const RESTART_BACK_OFF_S: f64 = 1.0;

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
        self.decided_until_s = None;
        let times = self
            .quarantines
            .get(&node)
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

    /// The node is no longer ours to use; a worker there is lost with it.
    pub(super) fn lose_node(&mut self, now_s: f64, node: NodeId) {
        if let Some(worker) = self.pool.get(&node).and_then(|node| node.worker.clone()) {
            self.lose_worker(now_s, worker.trainer, node, LossReason::Preempted);
        }
        if let Some(pool_node) = self.pool.remove(&node)
            && let Some(trainer) = pool_node.assigned
        {
            self.note_forced_change(trainer, node, Forced::Left);
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
                self.actions.push(Action::Leave {
                    trainer,
                    node,
                    reason: "its agent fell silent".to_owned(),
                });
            }
            LossReason::Ended => self.lose_worker(now_s, trainer, node, reason),
        }
    }

    fn lose_worker(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, reason: LossReason) {
        let Some(pool_node) = self.pool.get_mut(&node) else {
            return;
        };
        let trained = pool_node
            .worker
            .as_ref()
            .is_some_and(|worker| worker.phase == Phase::Member);
        pool_node.worker = None;
        self.decided_until_s = None;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        if reason == LossReason::Preempted && trained {
            known.preemptions += 1;
        }
        // A failure just before its peer's loss was noticed was collateral.
        let window_s = self.config.collateral_window_s;
        if let Some(run) = &mut known.run
            && run.members.contains(&node)
        {
            run.lost_member = true;
        }
        known
            .failures
            .retain(|failure| now_s - failure.time_s > window_s);
        if known.failures.is_empty() {
            known.resume_at_s = known.resume_at_s.min(now_s);
        }
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
        self.worker_gone(trainer, node);
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
        let Some(run) = self.run_of(trainer, generation) else {
            self.stale_worker_stopped(now_s, trainer, node);
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
            Outcome::Fenced { newest_generation } => {
                if let Some(known) = self.trainers.get_mut(&trainer) {
                    known.generation = known.generation.max(newest_generation);
                }
                if !ordered {
                    self.stop_run(now_s, trainer, 0.0, Some(node));
                }
            }
            Outcome::Stopped => {
                let grace_s = self.config.grace_s;
                self.program_ended(now_s, trainer, node, 143, "it ended by itself as preempted");
                self.stop_run(now_s, trainer, grace_s, Some(node));
            }
            Outcome::Failed { .. } if ordered => {}
            Outcome::Failed { exit_code, reason } => {
                self.program_ended(now_s, trainer, node, exit_code, &reason);
                self.stop_run(now_s, trainer, 0.0, Some(node));
            }
        }
    }

    fn stale_worker_stopped(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        if let Some(pool_node) = self.pool.get_mut(&node)
            && let Some(worker) = &mut pool_node.worker
            && worker.trainer == trainer
            && worker.phase == Phase::Stale
        {
            worker.phase = Phase::Ready;
            worker.since_s = now_s;
        }
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
                    .is_none_or(|node| node.worker_of(trainer).is_none())
            });
        if lost {
            return;
        }
        if known.failures.is_empty() {
            known.failures_at_samples = known.samples;
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
        known.resume_at_s = now_s + pause_s;
        self.decided_until_s = None;
        known.blocked_reason = Some(format!(
            "{} on {}, started again after {pause_s} s",
            reason,
            self.names.name(node)
        ));
        // 143 says "preempted": Slurm may have signalled the ranks before the agent.
        if exit_code != 143 {
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
                failed.push((*id, last.exit_code, last.reason.clone(), nodes));
            }
        }
        for time_s in wake_at {
            self.wake_at(time_s);
        }
        for (trainer, exit_code, reason, nodes) in failed {
            self.fail(trainer, exit_code, &reason, &nodes);
        }
    }

    /// The trainer has failed on several nodes: it was not theirs.
    fn fail(&mut self, trainer: TrainerId, exit_code: i32, reason: &str, nodes: &[NodeId]) {
        for node in nodes {
            self.quarantines.remove(node);
        }
        self.finish(trainer, exit_code);
        if let Some(Action::Close { .. }) = self.actions.last() {
            self.actions.pop();
        }
        let reason = format!(
            "failed {} times in a row on different nodes without progress, last: {reason}",
            nodes.len()
        );
        self.actions.push(Action::Fail {
            trainer,
            exit_code,
            reason,
        });
    }

    pub(super) fn note_forced_change(&mut self, trainer: TrainerId, node: NodeId, why: Forced) {
        self.forced.push((trainer, why, node));
    }

    /// Makes one decision of all nodes that a trainer lost for the same reason.
    pub(super) fn tell_forced_changes(&mut self, now_s: f64) {
        if self.forced.is_empty() {
            return;
        }
        let mut forced: BTreeMap<(TrainerId, Forced), Vec<NodeId>> = BTreeMap::new();
        for (trainer, why, node) in self.forced.drain(..) {
            forced.entry((trainer, why)).or_default().push(node);
        }
        let mut held: BTreeMap<TrainerId, u32> = BTreeMap::new();
        for trainer in self.pool.values().filter_map(|node| node.assigned) {
            *held.entry(trainer).or_default() += 1;
        }
        // What one reason leaves is what the next one begins with.
        for ((trainer, why), nodes) in forced.iter().rev() {
            let now_nodes = held.entry(*trainer).or_default();
            let (to_nodes, from_nodes) = (*now_nodes, *now_nodes + nodes.len() as u32);
            *now_nodes = from_nodes;
            self.decisions.push(Decision {
                time_s: now_s,
                trainer: *trainer,
                from_nodes,
                to_nodes,
                reason: format!(
                    "T{trainer}: {from_nodes} -> {to_nodes} nodes: {}",
                    why.sentence(nodes, &self.names)
                ),
            });
        }
    }
}

/// Why a trainer loses a node whatever it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Forced {
    Left,
    ExpectedBack,
    Quarantined,
}

/// Nodes that a sentence names before it only counts them.
const NAMED_NODES: usize = 4;

impl Forced {
    fn sentence(self, nodes: &[NodeId], names: &NodeNames) -> String {
        let named: Vec<&str> = nodes
            .iter()
            .take(NAMED_NODES)
            .map(|node| names.name(*node))
            .collect();
        let mut subject = named.join(", ");
        if nodes.len() > named.len() {
            subject += &format!(" and {} more", nodes.len() - named.len());
        }
        let is = if nodes.len() == 1 { "is" } else { "are" };
        match self {
            Forced::Left => format!("{subject} left the pool"),
            Forced::ExpectedBack => format!("{subject} {is} expected back"),
            Forced::Quarantined => format!("{subject} {is} in quarantine"),
        }
    }
}
