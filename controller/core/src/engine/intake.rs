//! What happened is taken in: events change pool and trainers, before anything is decided.

use std::collections::btree_map::Entry;

use super::forced::Forced;
use super::{Action, Decision, Engine, Event};
use crate::node::NodeId;
use crate::pool::{Phase, PoolNode, Worker};
use crate::trainer::{RunState, Trainer, TrainerId, TrainerInfo, TrainerState};

/// Why a trainer gives back its nodes when rank 0 has ended.
pub(super) const ENDED: &str = "its training has ended";

impl Engine {
    /// Takes in one event; whether trainers may have to be driven on now.
    pub(super) fn take_in(&mut self, now_s: f64, event: Event) -> bool {
        match event {
            Event::Pool {
                joined,
                left,
                hole_ends,
            } => self.change_pool(now_s, joined, left, hole_ends),
            Event::NodeClass { class, info, nodes } => {
                self.classes.insert(class, info);
                self.class_of
                    .extend(nodes.into_iter().map(|node| (node, class)));
            }
            Event::PoolDoubted => self.pool_in_doubt = true,
            Event::PoolSeen => return std::mem::take(&mut self.pool_in_doubt),
            Event::TrainerArrived(info) => self.greet_trainer(info),
            Event::TrainerChanged(info) => self.change_trainer(info),
            Event::TrainerGone { trainer } => self.forget_trainer(now_s, trainer),
            Event::TrainerMode { trainer, is_live } => {
                if let Some(known) = self.trainers.get_mut(&trainer) {
                    known.is_live = is_live;
                }
            }
            Event::WorkerFound { trainer, node } => self.adopt_worker(now_s, trainer, node),
            Event::WorkerReady {
                trainer,
                node,
                running,
                newest_generation,
            } => {
                self.worker_ready(now_s, trainer, node, running, newest_generation);
            }
            Event::WorkerStarted {
                trainer,
                node,
                generation,
            } => {
                self.worker_started(now_s, trainer, node, generation);
            }
            Event::WorkerStopped {
                trainer,
                node,
                generation,
                outcome,
            } => {
                self.worker_stopped(now_s, trainer, node, generation, outcome);
            }
            Event::WorkerLost {
                trainer,
                node,
                reason,
            } => {
                self.worker_lost(now_s, trainer, node, reason);
            }
            Event::WorkerGone { trainer, node } => self.worker_gone(trainer, node),
            Event::PlaceFailed {
                trainer,
                node,
                fault,
                reason,
            } => {
                self.place_failed(now_s, trainer, node, fault, reason);
            }
            Event::Progress {
                trainer,
                generation,
                samples,
            } => {
                self.progress(now_s, trainer, generation, samples);
                return false;
            }
            Event::Finished { trainer, exit_code } => {
                self.finish(now_s, trainer, exit_code, ENDED);
            }
            Event::Timer => {}
        }
        true
    }

    fn change_pool(
        &mut self,
        now_s: f64,
        joined: Vec<(NodeId, Option<f64>)>,
        left: Vec<NodeId>,
        hole_ends: Vec<(NodeId, Option<f64>)>,
    ) {
        for node in left {
            self.call_off(node);
            self.lose_node(now_s, node, Forced::Left);
        }
        self.join(now_s, joined);
        for (node, hole_end_s) in hole_ends {
            self.pool.update(node, |it| it.hole_end_s = hole_end_s);
        }
    }

    fn join(&mut self, now_s: f64, joined: Vec<(NodeId, Option<f64>)>) {
        if joined.is_empty() {
            return;
        }
        self.join_events += 1;
        for (node, hole_end_s) in joined {
            let pool_node = PoolNode::new(self.join_events, now_s, hole_end_s);
            self.pool.join(node, pool_node);
        }
    }

    fn greet_trainer(&mut self, info: TrainerInfo) {
        self.watch(&info);
        if let Entry::Vacant(entry) = self.trainers.entry(info.id) {
            entry.insert(Trainer::new(info, self.arrivals));
            self.arrivals += 1;
        }
    }

    fn change_trainer(&mut self, info: TrainerInfo) {
        if self.trainers.contains_key(&info.id) {
            self.watch(&info);
        }
        if let Some(trainer) = self.trainers.get_mut(&info.id) {
            trainer.info = info;
        }
    }

    fn forget_trainer(&mut self, now_s: f64, trainer: TrainerId) {
        self.note_end(now_s, trainer, "its array has ended or was cancelled");
        self.learning.gone(trainer);
        if let Some(known) = self.trainers.remove(&trainer) {
            // It is gone unjudged: its failures say nothing of the nodes.
            self.pardon_nodes_of(trainer, &known.failures);
        }
        for node in self.pool.nodes_of(trainer) {
            self.pool.update(node, |it| {
                it.unassign_from(trainer);
                it.take_worker_of(trainer);
            });
        }
    }

    /// A task of `trainer` runs on `node` though this engine never placed it:
    /// the trainer keeps the node until a decision says otherwise.
    fn adopt_worker(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        match self.pool.get(node) {
            Some(pool_node) if pool_node.worker.is_none() => {}
            Some(pool_node) if pool_node.worker_of(trainer).is_some() => return,
            _ => return self.send_home(trainer, node, "its node is not free for it"),
        }
        let held = self.pool.assigned_to(trainer).len() as u32;
        let has_room = held < known.info.max_nodes;
        self.pool.update(node, |it| {
            it.worker = Some(Worker {
                trainer,
                phase: Phase::Found,
                since_s: now_s,
            });
            if has_room && it.assigned.is_none() {
                it.assigned = Some(trainer);
            }
        });
        if known.state == TrainerState::Waiting {
            known.state = TrainerState::Admitted;
            known.admission = self.admissions;
            self.admissions += 1;
        }
    }

    /// A placement on a node that is no longer idle must not start there later.
    fn call_off(&mut self, node: NodeId) {
        if let Some(worker) = self.pool.get(node).and_then(|node| node.worker.as_ref())
            && worker.phase == Phase::Placed
        {
            self.send_home(worker.trainer, node, "the node went to others");
        }
    }

    fn progress(&mut self, now_s: f64, trainer: TrainerId, generation: u64, samples: u64) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if let Some((began_s, samples_then)) = known.restart_began
            && generation == known.generation
            && Self::has_running_generation(known)
            && samples > samples_then
        {
            let gap_s = (now_s - began_s).clamp(0.1, 600.0);
            known.restart_s = Some(known.restart_s.map_or(gap_s, |old_s| (old_s + gap_s) / 2.0));
            known.restart_began = None;
            self.decision_due = true;
            self.learning.restarted(now_s, trainer, gap_s);
        }
        let has_grown = samples > known.samples;
        known.samples = samples;
        if samples > known.failures_at_samples && !known.failures.is_empty() {
            known.failures.clear();
        }
        if has_grown
            && let Some(run) = self.trainers.get(&trainer).and_then(|it| it.run.as_ref())
            && run.number == generation
            && run.state == RunState::Running
        {
            let members = run.members.clone();
            self.trust(trainer, &members);
        }
        self.decision_due |= self.learning.progress(now_s, trainer, generation, samples);
    }

    /// The trainer's verdict is known: its nodes are free, its tasks are closed.
    pub(super) fn finish(&mut self, now_s: f64, trainer: TrainerId, exit_code: i32, why: &str) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        known.state = TrainerState::Closing;
        known.run = None;
        self.decision_due = true;
        self.note_end(now_s, trainer, why);
        for node in self.pool.nodes_of(trainer) {
            self.pool.update(node, |it| {
                it.unassign_from(trainer);
                if let Some(worker) = it.worker_of_mut(trainer) {
                    worker.phase = Phase::Leaving;
                }
            });
        }
        self.actions.push(Action::Close { trainer, exit_code });
    }

    /// Makes a decision of giving back all nodes that the trainer has.
    fn note_end(&mut self, now_s: f64, trainer: TrainerId, why: &str) {
        self.tell_forced_losses(now_s);
        let from_nodes = self.pool.assigned_to(trainer).len() as u32;
        if from_nodes > 0 {
            self.decisions.push(Decision {
                time_s: now_s,
                trainer,
                from_nodes,
                to_nodes: 0,
                reason: format!("T{trainer}: {from_nodes} -> 0 nodes: {why}"),
            });
        }
    }
}
