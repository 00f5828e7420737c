//! A simulation's books: samples gained and lost, node-time, who is done.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Simulation;
use crate::engine::{Event, Outcome};
use crate::node::NodeId;
use crate::replay::{Finished, TrainerSpec};
use crate::trainer::{TrainerId, TrainerState};

/// A trainer that was submitted and is not done.
pub(super) struct Simulated {
    pub(super) spec: Arc<TrainerSpec>,
    pub(super) admitted_s: Option<f64>,
    /// Samples, net of costs; may be below zero at first.
    pub(super) done: f64,
    pub(super) rate_per_s: f64,
    /// Nodes of the running generation.
    pub(super) members: usize,
    /// Since when it runs, epoch seconds.
    pub(super) running_since_s: f64,
    /// Members at the beginning of this instant, less those that were lost.
    pub(super) kept: usize,
}

impl Simulation {
    /// Lets time pass during which nothing happens.
    pub(super) fn pass(&mut self, time_s: f64) {
        let seconds = time_s - self.now_s;
        if seconds <= 0.0 {
            return;
        }
        let (mut could_use, mut used) = (0, 0);
        for (id, trainer) in &mut self.trainers {
            if trainer.admitted_s.is_some() {
                could_use += u64::from(trainer.spec.max_nodes);
            }
            used += trainer.members as u64;
            let gain = trainer.rate_per_s * seconds;
            trainer.done += gain;
            if let Some(reports) = &mut self.reports {
                reports.gained(*id, gain);
            }
            self.tally.samples += gain;
            self.tally.gross_samples += gain;
        }
        let pool = self.engine.pool().len() as u64;
        self.tally.pass(seconds, pool, could_use, used);
        if let Some(judge) = &self.judge {
            self.tally.value += judge.held_per_s * seconds;
            self.tally.best_value += judge.best_per_s * seconds;
        }
        self.now_s = time_s;
    }

    pub(super) fn complete(&mut self, id: TrainerId, events: &mut Vec<Event>) {
        let Some(trainer) = self.trainers.remove(&id) else {
            return;
        };
        if let Some(reports) = &mut self.reports {
            reports.gone(id);
        }
        let rounding = trainer.spec.samples - trainer.done;
        self.tally.samples += rounding;
        self.tally.finished.push(Finished::new(
            &trainer.spec,
            trainer.admitted_s.unwrap_or(self.now_s),
            self.now_s,
        ));
        let known = self.engine.trainers().get(&id);
        if let Some(run) = known.and_then(|known| known.run.as_ref())
            && let Some(first) = run.members.first()
        {
            events.push(Event::WorkerStopped {
                trainer: id,
                node: *first,
                generation: run.number,
                outcome: Outcome::Exited,
            });
            for member in &run.members {
                self.member_of[member.0 as usize] = None;
            }
        }
        events.push(Event::TrainerGone { trainer: id });
    }

    /// Charges those that lose nodes; returns how many.
    pub(super) fn lose(&mut self, left: &[NodeId]) -> usize {
        let mut lost: BTreeMap<TrainerId, usize> = BTreeMap::new();
        for node in left {
            self.starting.forget(*node);
            if let Some(trainer) = self.member_of[node.0 as usize].take() {
                *lost.entry(trainer).or_default() += 1;
            }
        }
        for (id, nodes) in &lost {
            let Some(trainer) = self.trainers.get_mut(id) else {
                continue;
            };
            let running_s = self.now_s - trainer.running_since_s;
            let lost_s = self.config.latency.lost_s(running_s);
            let cost = (trainer.spec.down_s + lost_s) * trainer.rate_per_s;
            trainer.done -= cost;
            if let Some(reports) = &mut self.reports {
                reports.lost(*id, trainer.spec.down_s + lost_s);
            }
            trainer.kept -= nodes;
            trainer.members -= nodes;
            self.changed.insert(*id);
            self.tally.samples -= cost;
            self.tally.preemption_samples += cost;
            self.tally.preemptions += 1;
        }
        lost.len()
    }

    pub(super) fn note_admissions(&mut self) {
        for (id, trainer) in &mut self.trainers {
            if trainer.admitted_s.is_none()
                && let Some(known) = self.engine.trainers().get(id)
                && known.state == TrainerState::Admitted
            {
                trainer.admitted_s = Some(self.now_s);
                self.tally.admitted += 1;
            }
        }
    }

    /// Charges those that were rescaled and sets the new rates.
    pub(super) fn charge(&mut self) {
        let share = self.config.latency.training_share();
        for id in std::mem::take(&mut self.changed) {
            let Some(trainer) = self.trainers.get_mut(&id) else {
                continue;
            };
            let spec = &trainer.spec;
            let rate = |nodes: usize| {
                if nodes < spec.min_nodes as usize {
                    return 0.0;
                }
                share * spec.throughput.value(nodes as u32)
            };
            let seconds = match trainer.members.cmp(&trainer.kept) {
                Ordering::Greater => spec.up_s + self.config.latency.save_s,
                Ordering::Less => spec.down_s + self.config.latency.save_s,
                Ordering::Equal => 0.0,
            };
            let cost = seconds * rate(trainer.kept);
            trainer.rate_per_s = rate(trainer.members);
            trainer.done -= cost;
            self.tally.samples -= cost;
            self.tally.rescale_samples += cost;
            self.tally.rescales += u64::from(cost > 0.0);
            trainer.kept = trainer.members;
            trainer.running_since_s = self.now_s;
            if let Some(reports) = &mut self.reports {
                let known = self.engine.trainers().get(&id);
                let run = known.and_then(|known| known.run.as_ref());
                let generation = run.filter(|_| trainer.members > 0).map(|run| run.number);
                reports.changed(self.now_s, id, generation, seconds);
            }
        }
    }
}

impl Simulated {
    pub(super) fn new(spec: Arc<TrainerSpec>) -> Self {
        Simulated {
            spec,
            admitted_s: None,
            done: 0.0,
            rate_per_s: 0.0,
            members: 0,
            running_since_s: 0.0,
            kept: 0,
        }
    }

    /// When it will be done if nothing changes, epoch seconds.
    pub(super) fn done_s(&self, now_s: f64) -> f64 {
        if self.rate_per_s > 0.0 {
            let left = self.spec.samples - self.done;
            // What is less than rounding is nothing.
            if left <= 1e-9 * self.spec.samples {
                return now_s;
            }
            now_s + left / self.rate_per_s
        } else {
            f64::INFINITY
        }
    }
}
