//! Learning what trainers do not say: how their throughput grows with nodes, what a rescale
//! and the loss of a node cost them.
//!
//! Everything comes from progress reports. What is known belongs to a program, not to a
//! trainer: trainers of one owner with the same script share it. A program of which nothing
//! is known is profiled once, by one of its trainers, at a few counts.
//!
//! Which methods pay was measured: a concave prior, the mean throughput of each count,
//! interpolation between them and sharing; parametric fits alone and bonuses for exploring
//! do worse.

mod estimate;
mod meter;
mod plan;
mod profile;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::curve::Curve;
use crate::trainer::{TrainerId, TrainerInfo};

pub use estimate::estimate;
pub use meter::{Meter, WARM_UP_S, WINDOW_S, Window};
pub use plan::{COUNT_S, LONGEST_S, Plan};
pub use profile::{Mean, Profile, Rate};

/// Measured at so many counts, a program need not be profiled.
const KNOWN_COUNTS: usize = 3;

/// Throughput that differs by more than this part from what the last decision took it to be
/// calls for another one.
const SURPRISE: f64 = 0.15;

/// Programs that are remembered.
pub const KEPT_PROGRAMS: usize = 2000;

/// What is known of programs, and the trainers that are being watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learning {
    profiles: BTreeMap<String, Profile>,
    students: BTreeMap<TrainerId, Student>,
}

/// A trainer that is being watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Student {
    /// Its program's key in `profiles`.
    program: String,
    /// Whether its owner has said how it scales.
    is_told: bool,
    min_nodes: u32,
    max_nodes: u32,
    meter: Meter,
    /// The generation that is measured and its node count.
    running: Option<(u64, u32)>,
    /// Seconds for which that was measured.
    measured_s: f64,
    /// Throughput on its nodes over that on nodes of speed 1, which is what a profile holds.
    speed: f64,
    /// Cumulative samples of the newest report.
    samples: u64,
    /// The node count of the generation that stopped last, if it stopped in order.
    left: Option<u32>,
    plan: Option<Plan>,
    /// The estimate for the profile's version.
    estimate: Option<(u64, Curve)>,
}

/// The key under which a trainer's program is known: the owner and what tells their programs
/// apart; without that, the trainer alone.
pub fn program_key(info: &TrainerInfo) -> String {
    match &info.program {
        Some(program) => format!("{}:{program}", info.owner_uid),
        None => lone_key(info.id),
    }
}

/// The key of a trainer whose program is not known.
pub fn lone_key(trainer: TrainerId) -> String {
    format!("T{trainer}")
}

impl Learning {
    /// A trainer came, or what it asks for changed.
    pub fn arrived(&mut self, info: &TrainerInfo) {
        let program = program_key(info);
        self.profiles.entry(program.clone()).or_default();
        let student = self.students.entry(info.id).or_insert_with(|| Student {
            program: program.clone(),
            is_told: info.has_own_curve,
            min_nodes: 0,
            max_nodes: 0,
            meter: Meter::default(),
            running: None,
            measured_s: 0.0,
            speed: 1.0,
            samples: 0,
            left: None,
            plan: None,
            estimate: None,
        });
        student.estimate = None;
        (student.min_nodes, student.max_nodes) = (info.min_nodes, info.max_nodes);
        self.hand_out_plan(&program);
    }

    /// A trainer is no more; what was learnt of a program stays.
    pub fn gone(&mut self, trainer: TrainerId) {
        let Some(student) = self.students.remove(&trainer) else {
            return;
        };
        if student.program == lone_key(trainer) {
            self.profiles.remove(&student.program);
        } else {
            self.hand_out_plan(&student.program);
            self.forget_oldest();
        }
    }

    /// The ranks of a generation run on `nodes` nodes of that speed; may be said again. Whether the trainer
    /// need not be profiled any more, as others of its program were faster.
    pub fn started(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        generation: u64,
        nodes: u32,
        speed: f64,
    ) -> bool {
        let Some(student) = self.students.get_mut(&trainer) else {
            return false;
        };
        student.speed = speed;
        if student.running == Some((generation, nodes)) {
            return false;
        }
        student.meter = Meter::default();
        student.running = Some((generation, nodes));
        student.measured_s = 0.0;
        let profile = self.profiles.get(&student.program);
        let is_known = profile.is_some_and(|it| it.rates().len() >= KNOWN_COUNTS);
        match &mut student.plan {
            Some(plan) if is_known && plan.until_s().is_none() => {
                student.plan = None;
                return true;
            }
            Some(plan) => plan.runs(now_s),
            None => {}
        }
        false
    }

    /// A generation is told to stop, in order or as a member is lost: it is no longer measured.
    pub fn stopping(&mut self, now_s: f64, trainer: TrainerId, in_order: bool) {
        if let Some(student) = self.students.get_mut(&trainer)
            && let Some((_, nodes)) = student.running.take()
        {
            student.left = in_order.then_some(nodes);
            if let Some(window) = student.meter.close() {
                self.take_window(now_s, trainer, nodes, window);
            }
        }
    }

    /// A progress report of `samples` cumulative samples; whether what is known by now calls
    /// for a decision.
    pub fn progress(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        generation: u64,
        samples: u64,
    ) -> bool {
        let Some(student) = self.students.get_mut(&trainer) else {
            return false;
        };
        let Some((_, nodes)) = student.running.filter(|(number, _)| *number == generation) else {
            return false;
        };
        let redone = student.samples.saturating_sub(samples);
        student.samples = samples;
        let window = student.meter.report(now_s, samples);
        if redone > 0
            && let Some(profile) = self.profiles.get_mut(&student.program)
        {
            profile.add_redone(now_s, redone);
        }
        window.is_some_and(|window| self.take_window(now_s, trainer, nodes, window))
    }

    /// A restart took so many seconds from the order to stop to new samples. Only those that
    /// were ordered to change the number of nodes tell what that costs.
    pub fn restarted(&mut self, now_s: f64, trainer: TrainerId, seconds: f64) {
        let Some(student) = self.students.get_mut(&trainer) else {
            return;
        };
        if let (Some(left), Some((_, nodes))) = (student.left.take(), student.running)
            && left != nodes
            && let Some(profile) = self.profiles.get_mut(&student.program)
        {
            profile.add_restart(now_s, nodes > left, seconds);
        }
    }

    /// Estimates the trainer's curve anew if its profile has changed or is empty: measured, and
    /// between and beyond that as `prior`.
    pub fn refresh(&mut self, trainer: TrainerId, prior: &Curve) {
        if let Some(student) = self.students.get_mut(&trainer)
            && let Some(profile) = self.profiles.get(&student.program)
            && student
                .estimate
                .as_ref()
                .is_none_or(|(version, _)| *version != profile.version || !profile.is_measured())
        {
            let curve = estimate(profile, prior, student.max_nodes);
            student.estimate = Some((profile.version, curve));
        }
    }

    /// The trainer's curve as estimated last, samples per second.
    pub fn curve(&self, trainer: TrainerId) -> Option<&Curve> {
        let estimate = self.students.get(&trainer)?.estimate.as_ref();
        estimate.map(|(_, curve)| curve)
    }

    /// What is known of the trainer's program.
    pub fn profile(&self, trainer: TrainerId) -> Option<&Profile> {
        let student = self.students.get(&trainer)?;
        self.profiles.get(&student.program)
    }

    /// The plan by which the trainer is being profiled.
    pub fn plan(&self, trainer: TrainerId) -> Option<&Plan> {
        self.students.get(&trainer)?.plan.as_ref()
    }

    /// Ends the plans that are through or whose time is up.
    pub fn end_plans(&mut self, now_s: f64) {
        for student in self.students.values_mut() {
            if student
                .plan
                .as_ref()
                .is_some_and(|plan| plan.is_done(now_s))
            {
                student.plan = None;
                if let Some(profile) = self.profiles.get_mut(&student.program) {
                    profile.is_profiled = true;
                }
            }
        }
    }

    /// When the next plan's time is up, epoch seconds.
    pub fn next_plan_end_s(&self) -> Option<f64> {
        let plans = self.students.values().filter_map(|it| it.plan.as_ref());
        plans.filter_map(Plan::until_s).reduce(f64::min)
    }

    /// All that is known, by program.
    pub fn profiles(&self) -> &BTreeMap<String, Profile> {
        &self.profiles
    }

    /// Takes in what an earlier daemon knew of a program; what is known here goes first.
    pub fn remember(&mut self, program: String, profile: Profile) {
        self.profiles.entry(program).or_insert(profile);
    }

    /// Whether the generation has now been measured for long enough and with a result that calls
    /// for a decision; a little more precision does not.
    fn take_window(&mut self, now_s: f64, trainer: TrainerId, nodes: u32, window: Window) -> bool {
        let Some(student) = self.students.get_mut(&trainer) else {
            return false;
        };
        let Some(profile) = self.profiles.get_mut(&student.program) else {
            return false;
        };
        let samples_per_s = window.samples_per_s / student.speed;
        profile.add_window(
            now_s,
            nodes,
            Window {
                samples_per_s,
                ..window
            },
        );
        let before_s = student.measured_s;
        student.measured_s += window.length_s;
        if before_s >= COUNT_S || student.measured_s < COUNT_S {
            return false;
        }
        if let Some(plan) = &mut student.plan {
            plan.visited(nodes);
            self.end_plans(now_s);
            return true;
        }
        let measured = profile.rates().get(&nodes).map(|rate| rate.samples_per_s);
        let expected = student
            .estimate
            .as_ref()
            .map(|(_, curve)| curve.value(nodes));
        match (measured, expected) {
            (Some(measured), Some(expected)) => (measured / expected - 1.0).abs() > SURPRISE,
            _ => true,
        }
    }

    /// Of too many programs, the one that nobody runs now and that was measured longest ago.
    fn forget_oldest(&mut self) {
        if self.profiles.len() <= KEPT_PROGRAMS {
            return;
        }
        let used = |program: &String| self.students.values().any(|it| it.program == *program);
        let oldest = self
            .profiles
            .iter()
            .filter(|(program, _)| !used(program))
            .min_by(|(_, a), (_, b)| a.updated_s.total_cmp(&b.updated_s))
            .map(|(program, _)| program.clone());
        if let Some(program) = oldest {
            self.profiles.remove(&program);
        }
    }

    /// Has one of the program's trainers profile it, if nothing is known and nobody does.
    fn hand_out_plan(&mut self, program: &str) {
        let is_known = self
            .profiles
            .get(program)
            .is_some_and(|profile| profile.is_profiled || profile.is_measured());
        let students = self.students.values_mut();
        let mut students: Vec<&mut Student> = students
            .filter(|student| student.program == program)
            .collect();
        if is_known || students.iter().any(|student| student.plan.is_some()) {
            return;
        }
        if let Some(student) = students.iter_mut().find(|student| !student.is_told) {
            student.plan = Plan::new(student.min_nodes, student.max_nodes);
        }
    }
}

#[cfg(test)]
mod tests;
