//! Between engine and learning: what is measured when, and what decisions take from it.

use std::collections::BTreeMap;

use super::Engine;
use crate::curve::Curve;
use crate::learning::{Learning, Plan, Profile};
use crate::trainer::{RunState, TrainerId, TrainerInfo};

impl Engine {
    /// What was learned of the trainers' programs.
    pub fn learning(&self) -> &Learning {
        &self.learning
    }

    /// Takes in what an earlier daemon has learned of a program.
    pub fn remember_program(&mut self, program: String, profile: Profile) {
        self.learning.remember(program, profile);
    }

    /// The trainer's curve by which decisions are made, samples per second.
    pub fn curve(&self, trainer: TrainerId) -> Option<&Curve> {
        let told = self.trainers.get(&trainer).map(|known| &known.info.curve);
        match self.config.learn {
            true => self.learning.curve(trainer).or(told),
            false => told,
        }
    }

    /// Seconds without progress when the trainer gets more nodes, and when it gets fewer.
    pub fn rescale_costs_s(&self, trainer: TrainerId) -> (f64, f64) {
        let Some(known) = self.trainers.get(&trainer) else {
            return (0.0, 0.0);
        };
        let profile = self.learning.profile(trainer).filter(|_| self.config.learn);
        let measured = profile.map_or((None, None), |it| (it.up_s(), it.down_s()));
        (
            measured.0.unwrap_or_else(|| known.up_s()),
            measured.1.unwrap_or_else(|| known.down_s()),
        )
    }

    /// The plan by which the trainer is being profiled.
    pub fn plan(&self, trainer: TrainerId) -> Option<&Plan> {
        self.learning.plan(trainer).filter(|_| self.config.learn)
    }

    /// Which of `trainers` are held to how few nodes, so that they can be measured there: one
    /// after the other, as long as the rest can use what that leaves. Where all get what they
    /// can use nothing is gained by knowing how they scale.
    pub(super) fn profiled(
        &self,
        trainers: &[TrainerId],
        pool_nodes: u32,
    ) -> BTreeMap<TrainerId, u32> {
        let max = |id: &TrainerId| self.trainers[id].info.max_nodes;
        let mut usable: u64 = trainers.iter().map(|id| u64::from(max(id))).sum();
        let mut held = BTreeMap::new();
        for id in trainers {
            let Some(most) = self.plan(*id).and_then(Plan::most_nodes) else {
                continue;
            };
            let left = usable - u64::from(max(id).saturating_sub(most));
            if left >= u64::from(pool_nodes) {
                usable = left;
                held.insert(*id, most);
            }
        }
        held
    }

    pub(super) fn watch(&mut self, info: &TrainerInfo) {
        if self.config.learn {
            self.learning.arrived(info);
        }
    }

    pub(super) fn refresh_curves(&mut self, now_s: f64, trainers: &[TrainerId]) {
        self.learning.end_plans(now_s);
        if !self.config.learn {
            return;
        }
        let largest = self.largest_samples_per_s(trainers);
        for trainer in trainers {
            if let Some(known) = self.trainers.get(trainer) {
                if self.learning.profile(*trainer).is_none() {
                    // It came before learning was switched on.
                    self.learning.arrived(&known.info);
                }
                let info = &known.info;
                let one = info.curve.value(1);
                match largest {
                    Some(largest) if !info.has_own_curve && one > 0.0 => {
                        let curve = info.curve.scaled(largest / one);
                        self.learning.refresh(*trainer, &curve);
                    }
                    _ => self.learning.refresh(*trainer, &info.curve),
                }
            }
        }
    }

    /// The largest throughput of one node of these trainers, as measured or told. It is what a
    /// trainer of which neither is known is taken to have: with less it would not be tried where
    /// throughputs are compared.
    fn largest_samples_per_s(&self, trainers: &[TrainerId]) -> Option<f64> {
        let known = trainers.iter().filter_map(|id| {
            let info = &self.trainers.get(id)?.info;
            let profile = self.learning.profile(*id);
            let measured = profile.and_then(Profile::samples_per_node_s);
            measured.or_else(|| info.has_own_curve.then(|| info.curve.value(1)))
        });
        known.reduce(f64::max)
    }

    /// All ranks of the trainer's generation run: from now on it is measured.
    pub(super) fn measure(&mut self, now_s: f64, trainer: TrainerId) {
        if let Some(run) = self.trainers.get(&trainer).and_then(|it| it.run.as_ref())
            && run.state == RunState::Running
        {
            let nodes = run.members.len() as u32;
            let first = run.members.first().copied();
            let speed = first.map_or(1.0, |node| self.speed(self.class_of(node)));
            let number = run.number;
            self.decision_due |= self.learning.started(now_s, trainer, number, nodes, speed);
        }
    }
}
