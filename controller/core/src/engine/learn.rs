//! Between engine and learning: what is measured when, and what decisions take from it.

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

    pub(super) fn watch(&mut self, info: &TrainerInfo) {
        if self.config.learn {
            self.learning.arrived(info);
        }
    }

    pub(super) fn refresh_curves(&mut self, trainers: &[TrainerId]) {
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
    pub(super) fn measure(&mut self, trainer: TrainerId) {
        if let Some(run) = self.trainers.get(&trainer).and_then(|it| it.run.as_ref())
            && run.state == RunState::Running
        {
            let nodes = run.members.len() as u32;
            self.learning.started(trainer, run.number, nodes);
        }
    }

    /// Takes a report in; whether it calls for a decision.
    pub(super) fn learn(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        generation: u64,
        samples: u64,
    ) -> bool {
        let news = self.learning.progress(now_s, trainer, generation, samples);
        news.plan_changed
    }
}
