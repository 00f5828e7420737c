//! The authors' own event loop, faults included, with their optimiser or their equal share: the
//! yardstick. Rules and tie-breaks are those of their replayer (github.com/BFTrainer/Replayer),
//! so that its logs are reproduced row by row.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Finished, Objective, PoolEvent, Queue, Step, Tally, TrainerSpec};
use crate::allocation::{DpSolver, Problem, TrainerDemand};
use crate::curve::{Curve, MAX_POINTS};
use crate::metric::Metric;
use crate::node::NodeId;

/// How nodes are shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PublishedPolicy {
    /// Their optimisation, with the bound of half the pool on every change.
    Optimal {
        /// Seconds over which a decision must pay.
        horizon_s: f64,
        /// What is maximised.
        objective: Objective,
    },
    /// Their heuristic: the same for everybody.
    EqualShare,
}

/// A replay of the authors' policy.
#[derive(Debug)]
pub struct Published {
    policy: PublishedPolicy,
    max_trainers: usize,
    queue: Queue,
    running: Vec<Running>,
    /// The pool in the order of joining.
    pool: Vec<NodeId>,
    /// Position in `pool`'s order, and whether it is held.
    nodes: HashMap<NodeId, PoolPlace>,
    joins: u64,
    time_s: f64,
    events: u64,
    rate_per_s: f64,
    solver: DpSolver,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct PoolPlace {
    join: u64,
    held: bool,
}

#[derive(Debug)]
struct Running {
    number: u64,
    spec: Arc<TrainerSpec>,
    objective: Curve,
    admitted_s: f64,
    done_samples: f64,
    /// Samples that the last decision costs, taken off the next interval.
    pending_samples: f64,
    /// In the order of joining.
    nodes: Vec<NodeId>,
}

impl Running {
    fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    fn rate_per_s(&self) -> f64 {
        self.spec.throughput.value(self.count())
    }
}

impl Published {
    /// A replay that begins at `start_s` with the nodes `idle`. Only trainers that were submitted
    /// by then are admitted, and the first of them gets the last nodes.
    pub fn new(
        policy: PublishedPolicy,
        max_trainers: usize,
        queue: Queue,
        start_s: f64,
        idle: &[NodeId],
    ) -> Self {
        let mut replay = Published {
            policy,
            max_trainers,
            queue,
            running: Vec::new(),
            pool: Vec::new(),
            nodes: HashMap::new(),
            joins: 0,
            time_s: start_s,
            events: 0,
            rate_per_s: 0.0,
            solver: DpSolver::new(),
            tally: Tally::default(),
        };
        replay.join(idle.iter().copied());
        replay.admit();
        if let Some(first) = replay.running.first_mut() {
            let count = (first.spec.max_nodes as usize).min(replay.pool.len());
            first.nodes = replay.pool[replay.pool.len() - count..].to_vec();
            for node in &first.nodes {
                if let Some(place) = replay.nodes.get_mut(node) {
                    place.held = true;
                }
            }
            first.pending_samples = first.spec.up_s * first.rate_per_s();
            replay.tally.rescale_samples += first.pending_samples;
        }
        replay
    }

    /// Takes in one event.
    pub fn step(&mut self, event: &PoolEvent) -> Step {
        self.events += 1;
        let mut step = Step::of(event, self.events);
        let seconds = event.time_s - self.time_s;
        self.pass(seconds);
        self.time_s = event.time_s;
        for node in &event.left {
            self.nodes.remove(node);
        }
        self.progress(seconds, &mut step);
        self.remove_finished();
        self.pool.retain(|node| self.nodes.contains_key(node));
        self.join(event.joined.iter().map(|(node, _)| *node));
        self.admit();
        if self.running.is_empty() {
            // Their log keeps the rate of the last decision when nobody is left to decide for.
            step.rate_per_s = self.rate_per_s;
        } else {
            if !self.pool.is_empty() {
                step.rescale_samples = self.decide();
            }
            let rates = self.running.iter().map(Running::rate_per_s);
            self.rate_per_s = rates.fold(0.0, |sum, rate| sum + rate);
            step.rate_per_s = self.rate_per_s;
        }
        step.trainers = self.running.len();
        step.pool = self.pool.len();
        step.running = self.running.iter().filter(|t| !t.nodes.is_empty()).count();
        step.used = self.running.iter().map(|t| t.nodes.len()).sum();
        step
    }

    /// Whether all trainers are done and none is left.
    pub fn is_done(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty()
    }

    /// What has been added up so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Number and nodes of each trainer that runs.
    pub fn allocation(&self) -> impl Iterator<Item = (u64, usize)> {
        let running = self.running.iter().filter(|t| !t.nodes.is_empty());
        running.map(|trainer| (trainer.number, trainer.nodes.len()))
    }

    fn pass(&mut self, seconds: f64) {
        let could_use = self.running.iter().map(|t| u64::from(t.spec.max_nodes));
        let used = self.running.iter().map(|t| t.nodes.len() as u64).sum();
        self.tally
            .pass(seconds, self.pool.len() as u64, could_use.sum(), used);
    }

    /// Rule: progress = time * rate - pending cost; who lost a node pays the scale-down cost once.
    fn progress(&mut self, seconds: f64, step: &mut Step) {
        for trainer in &mut self.running {
            let rate = trainer.rate_per_s();
            let mut gain = seconds * rate - trainer.pending_samples;
            trainer.pending_samples = 0.0;
            self.tally.gross_samples += seconds * rate;
            let before = trainer.nodes.len();
            trainer.nodes.retain(|node| self.nodes.contains_key(node));
            if trainer.nodes.len() < before {
                let cost = trainer.spec.down_s * rate;
                step.hit += 1;
                step.preemption_samples += cost;
                gain -= cost;
            }
            let surplus = (trainer.done_samples + gain - trainer.spec.samples).max(0.0);
            self.tally.overshoot_samples += surplus;
            step.samples += if surplus > 0.0 {
                trainer.spec.samples - trainer.done_samples
            } else {
                gain
            };
            trainer.done_samples += gain;
        }
        self.tally.preemptions += step.hit as u64;
        self.tally.preemption_samples += step.preemption_samples;
        self.tally.samples += step.samples;
    }

    fn remove_finished(&mut self) {
        let (time_s, nodes, tally) = (self.time_s, &mut self.nodes, &mut self.tally);
        self.running.retain(|trainer| {
            let done = trainer.done_samples >= trainer.spec.samples;
            if done {
                for node in &trainer.nodes {
                    if let Some(place) = nodes.get_mut(node) {
                        place.held = false;
                    }
                }
                tally
                    .finished
                    .push(Finished::new(&trainer.spec, trainer.admitted_s, time_s));
            }
            !done
        });
    }

    fn join(&mut self, joined: impl Iterator<Item = NodeId>) {
        for node in joined {
            let place = PoolPlace {
                join: self.joins,
                held: false,
            };
            if self.nodes.insert(node, place).is_none() {
                self.pool.push(node);
            }
            self.joins += 1;
        }
    }

    fn admit(&mut self) {
        while self.running.len() < self.max_trainers
            && let Some(spec) = self.queue.pop(self.time_s)
        {
            let objective = match self.policy {
                PublishedPolicy::Optimal { objective, .. } => objective_of(&objective, &spec),
                PublishedPolicy::EqualShare => spec.throughput.clone(),
            };
            self.tally.admitted += 1;
            self.running.push(Running {
                number: self.tally.admitted,
                spec,
                objective,
                admitted_s: self.time_s,
                done_samples: 0.0,
                pending_samples: 0.0,
                nodes: Vec::new(),
            });
        }
    }

    /// Decides and hands out; returns the samples that it costs.
    fn decide(&mut self) -> f64 {
        self.tally.decisions += 1;
        let counts = match self.policy {
            PublishedPolicy::Optimal { horizon_s, .. } => {
                let demands = self.running.iter().map(|trainer| {
                    let spec = &trainer.spec;
                    let curve = trainer.objective.clone();
                    TrainerDemand::new(trainer.count(), spec.min_nodes, spec.max_nodes, curve)
                        .with_costs(spec.up_s, spec.down_s)
                });
                let pool_nodes = self.pool.len() as u32;
                let problem = Problem::new(pool_nodes, horizon_s, demands.collect());
                match self.solver.solve_as_published(&problem) {
                    Some(solution) => solution.nodes().collect(),
                    None => self.running.iter().map(Running::count).collect(),
                }
            }
            PublishedPolicy::EqualShare => equal_share(&self.running, self.pool.len() as u32),
        };
        let mut cost = 0.0;
        for (trainer, &count) in self.running.iter_mut().zip(&counts) {
            let (held, count) = (trainer.nodes.len(), count as usize);
            if count == held {
                continue;
            }
            let seconds = if count > held {
                trainer.spec.up_s
            } else {
                trainer.spec.down_s
            };
            trainer.pending_samples = seconds * trainer.rate_per_s();
            cost += trainer.pending_samples;
            self.tally.rescales += 1;
            for node in trainer.nodes.drain(..held.saturating_sub(count)) {
                if let Some(place) = self.nodes.get_mut(&node) {
                    place.held = false;
                }
            }
        }
        self.tally.rescale_samples += cost;
        self.hand_out(&counts);
        cost
    }

    /// Growing trainers, in the order of admission, take the free nodes that joined first.
    fn hand_out(&mut self, counts: &[u32]) {
        let mut pool = self.pool.iter();
        for (trainer, &count) in self.running.iter_mut().zip(counts) {
            let held = trainer.nodes.len();
            while trainer.nodes.len() < count as usize
                && let Some(node) = pool.next()
            {
                if let Some(place) = self.nodes.get_mut(node).filter(|place| !place.held) {
                    place.held = true;
                    trainer.nodes.push(*node);
                }
            }
            if trainer.nodes.len() > held {
                trainer.nodes.sort_by_key(|node| self.nodes[node].join);
            }
        }
    }
}

impl Finished {
    pub(super) fn new(spec: &TrainerSpec, admitted_s: f64, done_s: f64) -> Self {
        let one_node_s = spec.samples / spec.throughput.value(1);
        Finished {
            name: spec.name.clone(),
            submit_s: spec.submit_s,
            admitted_s,
            done_s,
            samples: spec.samples,
            speedup: one_node_s / (done_s - admitted_s).max(f64::MIN_POSITIVE),
        }
    }
}

/// Their speed-up is the quotient at every count, which between the curve's points differs from
/// the straight line by rounding; exact ties depend on it.
fn objective_of(objective: &Objective, spec: &TrainerSpec) -> Curve {
    if let Objective::Metric(Metric::Speedup { exponent: 1.0 }) = objective
        && spec.max_nodes as usize <= MAX_POINTS
    {
        let one = spec.throughput.value(1);
        let points: Vec<(u32, f64)> = (1..=spec.max_nodes)
            .map(|nodes| (nodes, spec.throughput.value(nodes) / one))
            .collect();
        if let Ok(curve) = Curve::objective(&points) {
            return curve;
        }
    }
    objective.curve(spec)
}

/// Everybody the same, then the rest to the first ones; who would get no more than his min gets
/// nothing (their rule).
fn equal_share(running: &[Running], pool: u32) -> Vec<u32> {
    let share = pool / running.len() as u32;
    let mut counts: Vec<u32> = running
        .iter()
        .map(|trainer| match share > trainer.spec.min_nodes {
            true => share.min(trainer.spec.max_nodes),
            false => 0,
        })
        .collect();
    let mut left = pool - counts.iter().sum::<u32>();
    for (count, trainer) in counts.iter_mut().zip(running) {
        let more = (trainer.spec.max_nodes - *count).min(left);
        if more > 0 && *count + more >= trainer.spec.min_nodes {
            *count += more;
            left -= more;
        }
    }
    counts
}
