//! What agents say of themselves: a hello, ranks that run already, ranks that have started.

use std::collections::{BTreeMap, BTreeSet};

use super::deadlines::STOP_ANSWER_S;
use super::{Action, Engine};
use crate::node::NodeId;
use crate::pool::Phase;
use crate::trainer::{Run, RunState, TrainerId, TrainerState};

impl Engine {
    pub(super) fn worker_ready(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        running: Option<(u64, Vec<NodeId>)>,
        newest_generation: u64,
    ) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        let worker = self.pool.get(node).and_then(|node| node.worker_of(trainer));
        let Some(phase) = worker.map(|worker| worker.phase) else {
            return self.send_home(trainer, node, "it was given up or never wanted");
        };
        if phase == Phase::Leaving {
            return self.send_home(trainer, node, "it was told to leave and is still there");
        }
        known.greeted = true;
        if std::mem::take(&mut known.failed_starts) >= self.config.failures {
            known.resume_at_s = now_s;
            known.blocked_reason = None;
            self.decision_due = true;
        }
        known.generation = known.generation.max(newest_generation);
        let (is_live, newest) = (known.is_live, known.generation);
        match running {
            Some((generation, members)) => {
                known.generation = known.generation.max(generation);
                self.reported_running(now_s, trainer, node, generation, members);
            }
            None => match phase {
                Phase::Found
                    if self
                        .run(trainer)
                        .is_some_and(|run| run.members.contains(&node)) =>
                {
                    self.set_phase(now_s, node, trainer, Phase::Member);
                    self.member_without_ranks(now_s, trainer, node);
                }
                Phase::Found if newest_generation > 0 => {
                    // It may be about to start ranks: it answers when it is told to stop.
                    self.kill_stale(now_s, trainer, node, newest_generation);
                }
                Phase::Stale { .. } if is_live => {
                    // The order to stop may be lost, and it be about to start ranks.
                    self.kill_stale(now_s, trainer, node, newest);
                }
                Phase::Placed | Phase::Found | Phase::Stale { .. } => {
                    self.set_phase(now_s, node, trainer, Phase::Ready);
                }
                Phase::Member => self.member_without_ranks(now_s, trainer, node),
                Phase::Ready | Phase::Leaving => {}
            },
        }
    }

    /// An agent that comes back says that it runs ranks.
    fn reported_running(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        generation: u64,
        members: Vec<NodeId>,
    ) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        // Live ranks need not have heard of the newest one yet.
        let is_live = known.is_live;
        let newest = is_live || generation == known.generation;
        // What an agent says need not make sense.
        let distinct: BTreeSet<&NodeId> = members.iter().collect();
        let is_sound = members.contains(&node) && distinct.len() == members.len();
        if known.run.is_none() && newest && is_sound {
            known.run = Some(Run {
                number: generation,
                members,
                state: RunState::Adopting(BTreeSet::new()),
                since_s: now_s,
                lost_member: false,
                bereaved: BTreeMap::new(),
            });
        } else if is_live && is_sound {
            self.adopt_newer(now_s, trainer, generation, members);
        }
        let run = self.run_mut(trainer).filter(|run| {
            let is_known = run.number == generation || is_live && generation < run.number;
            is_known && run.members.contains(&node)
        });
        let Some(run) = run else {
            return self.kill_stale(now_s, trainer, node, generation);
        };
        let number = run.number;
        match &mut run.state {
            RunState::Adopting(confirmed) => {
                confirmed.insert(node);
                if confirmed.len() == run.members.len() {
                    run.state = RunState::Running;
                }
            }
            RunState::Starting(started) => {
                started.insert(node);
                if started.len() == run.members.len() {
                    run.state = RunState::Running;
                }
            }
            RunState::Running => {}
            RunState::Stopping {
                waiting,
                deadline_s,
                grace_s,
            } => {
                waiting.insert(node);
                let left_s = (*deadline_s - STOP_ANSWER_S - now_s).clamp(0.0, *grace_s);
                self.actions.push(Action::Stop {
                    trainer,
                    generation: number,
                    nodes: vec![node],
                    grace_s: left_s,
                });
            }
        }
        self.set_phase(now_s, node, trainer, Phase::Member);
        if generation < number {
            self.tell_again(trainer);
        }
        self.measure(now_s, trainer);
    }

    /// The worker runs, or is about to run, ranks of a generation that is not the
    /// trainer's current one.
    pub(super) fn kill_stale(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        generation: u64,
    ) {
        let phase = Phase::Stale { may_save: false };
        self.set_phase(now_s, node, trainer, phase);
        self.actions.push(Action::Stop {
            trainer,
            generation,
            nodes: vec![node],
            grace_s: 0.0,
        });
    }

    /// A member came back without ranks: they ended, it never heard of the start,
    /// or it is about to start them; it answers when it is told to stop.
    fn member_without_ranks(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        let is_live = self.is_live(trainer);
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.as_mut())
        else {
            return;
        };
        if let RunState::Stopping { waiting, .. } = &run.state {
            if waiting.contains(&node) {
                self.actions.push(Action::Stop {
                    trainer,
                    generation: run.number,
                    nodes: vec![node],
                    grace_s: 0.0,
                });
            }
        } else if is_live {
            run.lost_member = true;
            let number = run.number;
            self.kill_stale(now_s, trainer, node, number);
            self.bereave(now_s, trainer, node);
        } else {
            run.lost_member = true;
            self.stop_run(now_s, trainer, 0.0, None);
        }
    }

    pub(super) fn worker_started(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        node: NodeId,
        generation: u64,
    ) {
        let Some(run) = self.run_of(trainer, generation) else {
            return;
        };
        if let RunState::Starting(started) = &mut run.state {
            started.insert(node);
            if started.len() == run.members.len() {
                run.state = RunState::Running;
                run.since_s = now_s;
            }
        }
        self.measure(now_s, trainer);
    }
}
