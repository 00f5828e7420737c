//! Curves that the engine is not told: what it is told instead, and the progress reports from
//! which it may learn them, as the trainers would send them.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use super::TrainerSpec;
use crate::curve::Curve;
use crate::engine::Event;
use crate::learning::{COUNT_S, WARM_UP_S};
use crate::trainer::TrainerId;

/// Reports come this often while a generation is young, then every minute, and at each change of
/// the pool; seconds.
const REPORT_S: f64 = 15.0;
const LATER_REPORT_S: f64 = 60.0;

/// What the engine is not told, and how it comes to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unknown {
    /// Who learns from whom.
    pub learns: Learns,
    /// What every curve is taken to be at first.
    pub guess: Guess,
    /// Each generation's throughput is seen off by a normal factor of this standard deviation.
    pub noise: f64,
}

/// Who learns from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learns {
    /// Trainers with the same curve share what they learn.
    Program,
    /// Each learns for itself.
    Trainer,
    /// Nobody learns: the guess stays.
    Never,
}

/// A curve of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Guess {
    /// Amdahl's law with this parallel part.
    Amdahl(f64),
    /// Twice the nodes, twice the throughput.
    Linear,
}

impl Guess {
    /// The curve of a trainer up to its maximum, 1.0 at one node.
    pub fn curve(self, spec: &TrainerSpec) -> Curve {
        match self {
            Guess::Amdahl(parallel) => Curve::amdahl(parallel, spec.max_nodes),
            Guess::Linear => Curve::amdahl(1.0, spec.max_nodes),
        }
    }
}

/// Who reports what, and when.
#[derive(Debug)]
pub(super) struct Reports {
    noise: f64,
    dice: fastrand::Rng,
    reporters: BTreeMap<TrainerId, Reporter>,
}

/// One trainer's reports.
#[derive(Clone, Copy, Debug)]
struct Reporter {
    generation: u64,
    /// Reports of this generation so far.
    sent: u32,
    /// When the next one comes, epoch seconds.
    due_s: f64,
    /// Cumulative samples as it counts them.
    samples: f64,
    /// What this generation's throughput is multiplied by.
    factor: f64,
    /// Seconds that a loss keeps the next generation from its first samples.
    delay_s: f64,
}

impl Reports {
    pub(super) fn new(unknown: Unknown) -> Self {
        Reports {
            noise: unknown.noise,
            dice: fastrand::Rng::with_seed(1),
            reporters: BTreeMap::new(),
        }
    }

    /// The trainer has lost nodes, which keeps it for some time.
    pub(super) fn lost(&mut self, trainer: TrainerId, seconds: f64) {
        if let Some(reporter) = self.reporters.get_mut(&trainer) {
            reporter.delay_s = seconds;
        }
    }

    /// The trainer's ranks were started as that generation, with the first samples after so many
    /// seconds, or they were stopped.
    pub(super) fn changed(
        &mut self,
        now_s: f64,
        trainer: TrainerId,
        generation: Option<u64>,
        seconds: f64,
    ) {
        let factor = (1.0 + self.noise * self.normal()).max(0.1);
        let reporter = self.reporters.entry(trainer).or_insert(Reporter {
            generation: 0,
            sent: 0,
            due_s: f64::INFINITY,
            samples: 0.0,
            factor,
            delay_s: 0.0,
        });
        reporter.generation = generation.unwrap_or(0);
        reporter.factor = factor;
        reporter.sent = 0;
        let wait_s = std::mem::take(&mut reporter.delay_s).max(seconds);
        reporter.due_s = generation.map_or(f64::INFINITY, |_| now_s + wait_s);
    }

    pub(super) fn gone(&mut self, trainer: TrainerId) {
        self.reporters.remove(&trainer);
    }

    /// The trainer has processed so many samples more.
    pub(super) fn gained(&mut self, trainer: TrainerId, samples: f64) {
        if let Some(reporter) = self.reporters.get_mut(&trainer) {
            reporter.samples += samples * reporter.factor;
        }
    }

    /// When the next report comes, epoch seconds.
    pub(super) fn next_s(&self) -> f64 {
        let due = self.reporters.values().map(|reporter| reporter.due_s);
        due.fold(f64::INFINITY, f64::min)
    }

    /// The reports that are due, or of all that train.
    pub(super) fn take(&mut self, now_s: f64, all: bool) -> Vec<Event> {
        let mut events = Vec::new();
        for (trainer, reporter) in &mut self.reporters {
            if reporter.due_s <= now_s || all && reporter.sent > 0 {
                reporter.sent += 1;
                reporter.due_s = next_report_s(now_s, reporter.sent);
                events.push(Event::Progress {
                    trainer: *trainer,
                    generation: reporter.generation,
                    samples: reporter.samples.max(0.0) as u64,
                });
            }
        }
        events
    }

    /// A number from the standard normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.dice.f64()).ln()).sqrt();
        radius * (TAU * self.dice.f64()).cos()
    }
}

/// After so many reports of a generation; all of them at the same times, when they can be.
fn next_report_s(now_s: f64, sent: u32) -> f64 {
    let every_s = if f64::from(sent) * REPORT_S > 2.0 * COUNT_S {
        LATER_REPORT_S
    } else {
        REPORT_S
    };
    match sent {
        1 => now_s + WARM_UP_S,
        _ => ((now_s / every_s).floor() + 1.0) * every_s,
    }
}
