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
        for trainer in trainers.iter().filter(|_| self.config.learn) {
            if let Some(known) = self.trainers.get(trainer) {
                if self.learning.profile(*trainer).is_none() {
                    // It came before learning was switched on.
                    self.learning.arrived(&known.info);
                }
                self.learning.refresh(*trainer, &known.info.curve);
            }
        }
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
