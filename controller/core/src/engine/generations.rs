//! One generation after the other: the old one trains on until the newcomers are ready.

use std::collections::{BTreeMap, BTreeSet};

use super::deadlines::STOP_ANSWER_S;
use super::roster::Roster;
use super::{Action, Engine};
use crate::node::NodeId;
use crate::pool::Phase;
use crate::trainer::{Run, RunState, Trainer, TrainerId};

impl Run {
    /// A member's ranks have ended. When all have that were told to save and stop, how long
    /// that took, seconds.
    pub(super) fn answered_stop(&mut self, node: NodeId, now_s: f64) -> Option<f64> {
        let RunState::Stopping {
            waiting,
            deadline_s,
            grace_s,
        } = &mut self.state
        else {
            return None;
        };
        let is_last = waiting.remove(&node) && waiting.is_empty();
        let could_save = *grace_s > 0.0 && !self.lost_member;
        (is_last && could_save).then_some(now_s - (*deadline_s - *grace_s - STOP_ANSWER_S))
    }
}

impl Engine {
    pub(super) fn drive_generation(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let run = self.run(trainer);
        match run.map(|run| &run.state) {
            None => self.start_generation(now_s, trainer, roster),
            Some(RunState::Stopping { .. }) => self.await_stop(now_s, trainer, roster),
            Some(RunState::Adopting(_))
                if run
                    .is_some_and(|run| run.members.iter().all(|node| roster.may_run_on(*node))) => {
            }
            Some(_) if self.is_live(trainer) => self.adjust_live(now_s, trainer, roster),
            Some(_) => self.adjust_running(now_s, trainer, roster),
        }
        let run = self.run(trainer);
        if let Some(deadline_s) = run.and_then(|run| self.run_deadline_s(run)) {
            self.wake_at(deadline_s);
        }
    }

    pub(super) fn run(&self, trainer: TrainerId) -> Option<&Run> {
        self.trainers.get(&trainer)?.run.as_ref()
    }

    pub(super) fn run_mut(&mut self, trainer: TrainerId) -> Option<&mut Run> {
        self.trainers.get_mut(&trainer)?.run.as_mut()
    }

    /// Stops a running generation when its membership has to change.
    pub(super) fn adjust_running(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let Some((run, is_running)) = self.trainers.get(&trainer).and_then(|known| {
            let run = known.run.as_ref()?;
            Some((run, matches!(run.state, RunState::Running)))
        }) else {
            return;
        };
        let lost = run.members.iter().any(|node| !roster.may_run_on(*node));
        let leaving = run.members.iter().any(|node| !roster.is_assigned(*node));
        if lost {
            self.stop_run(now_s, trainer, 0.0, None);
        } else if leaving {
            self.stop_run(now_s, trainer, self.config.grace_s, None);
        } else if let Some(since_s) = roster.ready_since_s
            && is_running
        {
            let deadline_s = since_s + self.config.worker_start_timeout_s;
            if roster.pending == 0 || now_s >= deadline_s {
                self.stop_run(now_s, trainer, self.config.grace_s, None);
            } else {
                self.wake_at(deadline_s);
            }
        }
        self.await_stop(now_s, trainer, roster);
    }

    /// Goes on waiting for members that were told to stop; when nobody is left to
    /// wait for, the next generation follows at once.
    fn await_stop(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.as_mut())
        else {
            return;
        };
        let RunState::Stopping {
            waiting,
            deadline_s,
            grace_s,
        } = &mut run.state
        else {
            return;
        };
        waiting.retain(|node| roster.may_run_on(*node));
        if waiting.is_empty() {
            self.end_generation(now_s, trainer);
            let roster = self.roster(now_s, trainer, roster.nodes.clone());
            self.start_generation(now_s, trainer, &roster);
            return;
        }
        if run.lost_member && *grace_s > 0.0 {
            // Whoever waits for the lost peer in a collective does not see SIGTERM.
            *grace_s = 0.0;
            self.actions.push(Action::Stop {
                trainer,
                generation: run.number,
                nodes: waiting.iter().copied().collect(),
                grace_s: 0.0,
            });
        }
        let deadline_s = *deadline_s;
        self.wake_at(deadline_s);
    }

    /// Learns how long ranks take to save and end; before the next decision, as nodes are
    /// vacated that much ahead of their planned ends.
    pub(super) fn measure_save(&mut self, trainer: TrainerId, save_s: f64) {
        let lead_s = self.vacate_lead_s(trainer);
        if let Some(known) = self.trainers.get_mut(&trainer) {
            let usual_s = known.save_s.map_or(save_s, |old_s| (old_s + save_s) / 2.0);
            known.save_s = Some(usual_s.max(save_s));
        }
        self.decision_due |= self.vacate_lead_s(trainer) != lead_s;
    }

    /// Tells the generation's remaining members to stop. `answered` is a member
    /// whose ranks have ended already.
    pub(super) fn stop_run(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        grace_s: f64,
        answered: Option<NodeId>,
    ) {
        self.learning.stopping(now_s, trainer, grace_s > 0.0);
        let pool = &self.pool;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        let Some(run) = &mut known.run else {
            return;
        };
        let waiting: BTreeSet<NodeId> = run
            .members
            .iter()
            .copied()
            .filter(|node| {
                Some(*node) != answered && pool.get(*node).is_some_and(|node| node.may_run(trainer))
            })
            .collect();
        if !waiting.is_empty() {
            self.actions.push(Action::Stop {
                trainer,
                generation: run.number,
                nodes: waiting.iter().copied().collect(),
                grace_s,
            });
        }
        known.restart_began = Some((now_s, known.samples));
        run.state = RunState::Stopping {
            waiting,
            deadline_s: now_s + grace_s + STOP_ANSWER_S,
            grace_s,
        };
    }

    fn end_generation(&mut self, now_s: f64, trainer: TrainerId) {
        let Some(run) = self
            .trainers
            .get_mut(&trainer)
            .and_then(|known| known.run.take())
        else {
            return;
        };
        for node in run.members {
            self.pool.update(node, |it| {
                if let Some(worker) = it.worker_of_mut(trainer)
                    && worker.phase == Phase::Member
                {
                    worker.phase = Phase::Ready;
                    worker.since_s = now_s;
                }
            });
        }
    }

    fn start_generation(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        if let Some(until_s) = roster.adopts_until_s {
            self.wake_at(until_s);
            return;
        }
        if roster.has_stale {
            return;
        }
        let assemble_s = self.config.assemble_s;
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        // Time in which nodes are awaited is no part of what a restart costs.
        let restart_began = known.restart_began.take();
        if roster.ready.is_empty() {
            known.assembling_since_s = None;
            return;
        }
        if now_s < known.restart_at_s {
            let time_s = known.restart_at_s;
            self.wake_at(time_s);
            return;
        }
        let since_s = *known.assembling_since_s.get_or_insert(now_s);
        if roster.pending > 0 && now_s < since_s + assemble_s {
            self.wake_at(since_s + assemble_s);
            return;
        }
        if (roster.ready.len() as u32) < known.info.min_nodes {
            return;
        }
        known.generation = known.generation.saturating_add(1);
        known.assembling_since_s = None;
        known.blocked_reason = None;
        known.starts += 1;
        known.restart_began = restart_began.or(Some((now_s, known.samples)));
        let run = Run {
            number: known.generation,
            members: roster.ready.clone(),
            state: RunState::Starting(BTreeSet::new()),
            since_s: now_s,
            lost_member: false,
            bereaved: BTreeMap::new(),
        };
        self.actions.push(Action::Start {
            trainer,
            generation: run.number,
            members: run.members.clone(),
        });
        known.run = Some(run);
        for node in &roster.ready {
            self.set_phase(now_s, *node, trainer, Phase::Member);
        }
    }

    /// The generation of `trainer` when it has the number `generation`.
    pub(super) fn run_of(&mut self, trainer: TrainerId, generation: u64) -> Option<&mut Run> {
        let run = self.run_mut(trainer)?;
        (run.number == generation).then_some(run)
    }

    /// Whether `trainer` has a generation with ranks that run or are starting.
    pub(super) fn has_running_generation(trainer: &Trainer) -> bool {
        trainer
            .run
            .as_ref()
            .is_some_and(|run| !matches!(run.state, RunState::Stopping { .. }))
    }
}
