//! The bound that efficiency is measured against: the same trainers on as many dedicated nodes as
//! were idle on average, shared out exactly, without any cost (arXiv 2106.12091, section 4.2).

use std::sync::Arc;

use super::{Admission, Objective, Queue, TrainerSpec};
use crate::allocation::{DpSolver, Problem, TrainerDemand};
use crate::curve::Curve;

/// Without costs the horizon only sets the unit.
const HORIZON_S: f64 = 100.0;

/// Submissions are looked at on a grid: every minute in the first ten hours, then every 20.
const FIRST_HOURS_S: f64 = 36_000.0;
const FINE_GRID_S: f64 = 60.0;
const COARSE_GRID_S: f64 = 1200.0;

/// What is to run on dedicated nodes.
#[derive(Clone, Debug)]
pub struct Dedicated {
    /// The trainers.
    pub queue: Queue,
    /// How many at once.
    pub admission: Admission,
    /// What is maximised.
    pub objective: Objective,
    /// From when, epoch seconds.
    pub start_s: f64,
    /// For how long, seconds.
    pub span_s: f64,
}

struct Running {
    spec: Arc<TrainerSpec>,
    objective: Curve,
    left_samples: f64,
    nodes: u32,
}

/// Samples that `dedicated` gains on `nodes` nodes, a number that need not be whole: between the
/// whole numbers around it a straight line.
pub fn dedicated_samples(dedicated: &Dedicated, nodes: f64) -> f64 {
    let (floor, part) = (nodes.floor(), nodes.fract());
    let below = on_whole_nodes(dedicated, floor as u32);
    if part == 0.0 {
        return below;
    }
    below + part * (on_whole_nodes(dedicated, floor as u32 + 1) - below)
}

fn on_whole_nodes(dedicated: &Dedicated, nodes: u32) -> f64 {
    let mut queue = dedicated.queue.clone();
    let mut running: Vec<Running> = Vec::new();
    let mut solver = DpSolver::new();
    let end_s = dedicated.start_s + dedicated.span_s;
    let (mut now_s, mut samples) = (dedicated.start_s, 0.0);
    while now_s < end_s {
        admit(dedicated, nodes, now_s, &mut queue, &mut running);
        let demands = running.iter().map(|trainer| {
            let spec = &trainer.spec;
            let curve = trainer.objective.clone();
            TrainerDemand::new(trainer.nodes, spec.min_nodes, spec.max_nodes, curve)
        });
        let problem = Problem::new(nodes, HORIZON_S, demands.collect());
        let solution = solver.solve(&problem);
        let mut next_s = end_s;
        for (trainer, count) in running.iter_mut().zip(solution.nodes()) {
            trainer.nodes = count;
            let rate = trainer.spec.throughput.value(count);
            if rate > 0.0 {
                next_s = next_s.min(now_s + trainer.left_samples / rate);
            }
        }
        let could_use = running.iter().map(|t| u64::from(t.spec.max_nodes)).sum();
        if dedicated
            .admission
            .admits(running.len(), could_use, u64::from(nodes))
            && let Some(submit_s) = queue.next_submit_s()
        {
            next_s = next_s.min(on_grid(submit_s.max(now_s), dedicated.start_s, now_s));
        }
        for trainer in &mut running {
            let rate = trainer.spec.throughput.value(trainer.nodes);
            let gain = (rate * (next_s - now_s)).min(trainer.left_samples);
            trainer.left_samples -= gain;
            samples += gain;
        }
        // Rounding may leave a trifle.
        running.retain(|trainer| trainer.left_samples > 1e-9 * trainer.spec.samples);
        now_s = next_s;
    }
    samples
}

fn admit(
    dedicated: &Dedicated,
    nodes: u32,
    now_s: f64,
    queue: &mut Queue,
    running: &mut Vec<Running>,
) {
    let mut could_use: u64 = running.iter().map(|t| u64::from(t.spec.max_nodes)).sum();
    while dedicated
        .admission
        .admits(running.len(), could_use, u64::from(nodes))
        && let Some(spec) = queue.pop(now_s)
    {
        could_use += u64::from(spec.max_nodes);
        running.push(Running {
            objective: dedicated.objective.curve(&spec),
            left_samples: spec.samples,
            nodes: 0,
            spec,
        });
    }
}

/// The first point of the grid at or after `submit_s` that lies after `now_s`.
fn on_grid(submit_s: f64, start_s: f64, now_s: f64) -> f64 {
    let after_s = submit_s - start_s;
    let step_s = if after_s <= FIRST_HOURS_S {
        FINE_GRID_S
    } else {
        COARSE_GRID_S
    };
    let point_s = start_s + (after_s / step_s).ceil() * step_s;
    if point_s > now_s {
        point_s
    } else {
        point_s + step_s
    }
}
