//! The live engine in virtual time: an executor that answers its actions as a cluster would, and
//! keeps the books. At one instant it goes on until the engine has nothing more to ask for.
//!
//! Costs are the paper's: whoever lost nodes pays the scale-down cost at its old rate once, whoever
//! is rescaled by a decision pays the scale-up or scale-down cost at the rate just before.

mod books;
mod judge;
mod latency;

use std::collections::{BTreeMap, BTreeSet};

use super::unknown::{Learns, Reports, Unknown};
use super::{Admission, Objective, PoolEvent, Queue, Step, Tally};
use crate::engine::{Action, Engine, EngineConfig, Event, Outcome, SAVE_MARGIN_S};
use crate::metric::Metric;
use crate::node::NodeId;
use crate::trainer::{Terms, TrainerId, TrainerInfo};

use books::Simulated;
use judge::Judge;
use latency::Starting;

pub use latency::Latency;

/// Trainers that are shown to the engine beyond those that run, when it admits them itself.
const LOOKAHEAD: usize = 100;

/// Rounds at one instant after which something is wrong; a handful is usual.
const MAX_ROUNDS: usize = 1000;

/// Settings of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulationConfig {
    /// Seconds over which a decision must pay.
    pub horizon_s: f64,
    /// What is maximised.
    pub objective: Objective,
    /// How many trainers at once.
    pub admission: Admission,
    /// How the cluster differs from the ideal.
    pub latency: Latency,
    /// Curves that the engine is not told; the objective must then be a metric.
    pub unknown: Option<Unknown>,
    /// Whether decisions are compared with the best, which takes its time.
    pub judge: bool,
}

/// A replay of the live engine.
pub struct Simulation {
    config: SimulationConfig,
    engine: Engine,
    queue: Queue,
    trainers: BTreeMap<TrainerId, Simulated>,
    next_id: u32,
    now_s: f64,
    /// Whose ranks run on each node, by the node's number.
    member_of: Vec<Option<TrainerId>>,
    /// Trainers whose ranks were started or stopped at this instant.
    changed: BTreeSet<TrainerId>,
    starting: Starting,
    /// Of trainers whose curves are not known.
    reports: Option<Reports>,
    /// Where decisions are compared with the best.
    judge: Option<Judge>,
    wake_at_s: f64,
    tally: Tally,
    events: u64,
    /// Sums of `tally` at the last step.
    reported: (f64, f64),
}

impl Simulation {
    /// A simulation that begins at `start_s` with the nodes `idle` of those called `names`.
    pub fn new(
        config: SimulationConfig,
        queue: Queue,
        start_s: f64,
        names: &[String],
        idle: &[(NodeId, Option<f64>)],
    ) -> Self {
        let min_trainers = match config.admission {
            Admission::AtMost(trainers) | Admission::Open(trainers) => trainers,
        };
        let latency = config.latency;
        let metric = match (config.unknown, config.objective) {
            (Some(_), Objective::Metric(metric)) => metric,
            // The curves that the engine sees are objectives already.
            _ => Metric::Throughput,
        };
        let learn = config.unknown.is_some_and(|it| it.learns != Learns::Never);
        let mut engine = Engine::new(EngineConfig {
            horizon_s: config.horizon_s,
            metric,
            learn,
            joint_restarts: false,
            min_trainers,
            vacate_lead_s: latency.save_s + SAVE_MARGIN_S,
            worker_start_timeout_s: f64::INFINITY,
            ..EngineConfig::default()
        });
        for name in names {
            engine.names.intern(name);
        }
        let mut simulation = Simulation {
            config,
            engine,
            queue,
            trainers: BTreeMap::new(),
            next_id: 1,
            now_s: start_s,
            member_of: vec![None; names.len()],
            changed: BTreeSet::new(),
            starting: Starting::default(),
            reports: config.unknown.filter(|_| learn).map(Reports::new),
            judge: config.judge.then(Judge::new),
            wake_at_s: f64::INFINITY,
            tally: Tally::default(),
            events: 0,
            reported: (0.0, 0.0),
        };
        let joined = Event::Pool {
            joined: idle.to_vec(),
            left: Vec::new(),
            hole_ends: Vec::new(),
        };
        simulation.settle(vec![joined]);
        simulation
    }

    /// Takes in one event of the log and what happens before it.
    pub fn step(&mut self, event: &PoolEvent) -> Step {
        self.advance(event.time_s);
        self.events += 1;
        let mut step = Step::of(event, self.events);
        for name in &event.new_names {
            self.engine.names.intern(name);
            self.member_of.push(None);
        }
        let preempted = self.tally.preemption_samples;
        step.hit = self.lose(&event.left);
        step.preemption_samples = self.tally.preemption_samples - preempted;
        step.samples = self.tally.samples - self.reported.0;
        self.reported.0 = self.tally.samples;
        let mut events = self.reported(true);
        events.push(Event::Pool {
            joined: event.joined.clone(),
            left: event.left.clone(),
            hole_ends: event.ends.clone(),
        });
        self.settle(events);
        step.rescale_samples = self.tally.rescale_samples - self.reported.1;
        self.reported.1 = self.tally.rescale_samples;
        step.pool = self.engine.pool().len();
        for trainer in self.trainers.values() {
            step.rate_per_s += trainer.rate_per_s;
            step.trainers += usize::from(trainer.admitted_s.is_some());
            step.running += usize::from(trainer.members > 0);
            step.used += trainer.members;
        }
        step
    }

    /// Lets time pass until `time_s`, with everything that happens by itself.
    pub fn advance(&mut self, time_s: f64) {
        loop {
            let next_s = self.next_own_s();
            if next_s > time_s {
                break;
            }
            self.pass(next_s);
            let events = self.own_events();
            self.settle(events);
        }
        self.pass(time_s);
    }

    /// Whether all trainers are done and none is left.
    pub fn is_done(&self) -> bool {
        self.trainers.is_empty() && self.queue.is_empty()
    }

    /// What has been added up so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Number and nodes of each trainer that runs.
    pub fn allocation(&self) -> impl Iterator<Item = (u64, usize)> {
        let running = self.trainers.iter().filter(|(_, t)| t.members > 0);
        running.map(|(id, trainer)| (u64::from(id.0), trainer.members))
    }

    fn next_own_s(&self) -> f64 {
        let done_s = self
            .trainers
            .values()
            .map(|trainer| trainer.done_s(self.now_s))
            .fold(f64::INFINITY, f64::min);
        done_s
            .min(self.starting.next_s())
            .min(self.wake_at_s)
            .min(self.reports.as_ref().map_or(f64::INFINITY, Reports::next_s))
            .min(self.next_submit_s())
            .max(self.now_s)
    }

    /// When a submission matters: when there is room for one more trainer.
    fn next_submit_s(&self) -> f64 {
        let room = match self.config.admission {
            Admission::AtMost(most) => self.trainers.len() < most,
            Admission::Open(_) => true,
        };
        match self.queue.next_submit_s() {
            Some(submit_s) if room && submit_s > self.now_s => submit_s,
            _ => f64::INFINITY,
        }
    }

    /// The progress reports that are due, or of all trainers.
    fn reported(&mut self, all: bool) -> Vec<Event> {
        let now_s = self.now_s;
        let reports = self.reports.as_mut();
        reports.map_or_else(Vec::new, |reports| reports.take(now_s, all))
    }

    /// Trainers that are done now, workers that say hello and reports that come now.
    fn own_events(&mut self) -> Vec<Event> {
        let mut events = self.reported(false);
        let now_s = self.now_s;
        self.wake_at_s = f64::INFINITY;
        while let Some((trainer, node)) = self.starting.pop(now_s) {
            events.push(ready(trainer, node));
        }
        let done: Vec<TrainerId> = self
            .trainers
            .iter()
            .filter(|(_, trainer)| trainer.done_s(now_s) <= now_s)
            .map(|(id, _)| *id)
            .collect();
        for id in done {
            self.complete(id, &mut events);
        }
        if events.is_empty() {
            events.push(Event::Timer);
        }
        events
    }

    /// Gives `events` to the engine and answers until it asks for nothing more at this instant.
    fn settle(&mut self, mut events: Vec<Event>) {
        self.tally.decisions += 1;
        for _ in 0..MAX_ROUNDS {
            self.submit(&mut events);
            if events.is_empty() {
                break;
            }
            let actions = self.engine.handle(self.now_s, std::mem::take(&mut events));
            self.wake_at_s = f64::INFINITY;
            for action in actions {
                self.answer(action, &mut events);
            }
        }
        self.engine.take_decisions();
        self.note_admissions();
        self.charge();
        self.judge();
    }

    /// Submits what there is room for.
    fn submit(&mut self, events: &mut Vec<Event>) {
        loop {
            let room = match self.config.admission {
                Admission::AtMost(most) => self.trainers.len() < most,
                Admission::Open(_) => {
                    let admitted = self.trainers.values().filter(|t| t.admitted_s.is_some());
                    self.trainers.len() < admitted.count() + LOOKAHEAD
                }
            };
            let Some(spec) = room.then(|| self.queue.pop(self.now_s)).flatten() else {
                break;
            };
            let id = TrainerId(self.next_id);
            self.next_id += 1;
            let unknown = self.config.unknown;
            let shares = unknown.is_some_and(|it| it.learns == Learns::Program);
            let told = || self.config.objective.curve(&spec);
            events.push(Event::TrainerArrived(TrainerInfo {
                id,
                // Everybody for himself: first come, first served, all weights one. Only one
                // owner's trainers share what they learn; then all weights are alike as well. Names
                // may be those of single trainers, curves are those of programs.
                owner_uid: if shares { 0 } else { id.0 },
                program: shares.then(|| format!("{:?}", spec.throughput.points())),
                has_own_curve: unknown.is_none(),
                min_nodes: spec.min_nodes,
                max_nodes: spec.max_nodes,
                weight: 1.0,
                curve: unknown.map_or_else(told, |unknown| unknown.guess.curve(&spec)),
                up_s: spec.up_s,
                down_s: spec.down_s,
                max_stay_s: None,
                terms: Terms::default(),
            }));
            self.trainers.insert(id, Simulated::new(spec));
        }
    }

    fn answer(&mut self, action: Action, events: &mut Vec<Event>) {
        match action {
            Action::Place { trainer, node, .. } => {
                let latency = &self.config.latency;
                if latency.start_s > 0.0 || latency.starts_per_s > 0.0 {
                    self.starting.place(self.now_s, latency, trainer, node);
                } else {
                    events.push(ready(trainer, node));
                }
            }
            Action::Leave { trainer, node, .. } => {
                self.starting.forget(node);
                events.push(Event::WorkerGone { trainer, node });
            }
            Action::Start {
                trainer,
                generation,
                members,
            } => {
                self.changed.insert(trainer);
                if let Some(simulated) = self.trainers.get_mut(&trainer) {
                    simulated.members = members.len();
                }
                for node in members {
                    self.member_of[node.0 as usize] = Some(trainer);
                    events.push(Event::WorkerStarted {
                        trainer,
                        node,
                        generation,
                    });
                }
            }
            Action::Stop {
                trainer,
                generation,
                nodes,
                ..
            } => {
                self.changed.insert(trainer);
                if let Some(simulated) = self.trainers.get_mut(&trainer) {
                    simulated.members = 0;
                }
                for node in nodes {
                    self.member_of[node.0 as usize] = None;
                    events.push(Event::WorkerStopped {
                        trainer,
                        node,
                        generation,
                        outcome: Outcome::Stopped,
                    });
                }
            }
            Action::WakeAt { time_s } => self.wake_at_s = time_s.max(self.now_s),
            Action::Close { .. } | Action::Fail { .. } => {}
        }
    }
}

fn ready(trainer: TrainerId, node: NodeId) -> Event {
    Event::WorkerReady {
        trainer,
        node,
        running: None,
        newest_generation: 0,
    }
}
