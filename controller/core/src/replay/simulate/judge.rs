//! What decisions were worth: the rate of what the trainers hold, by their real curves, over time,
//! and the best rate that the same trainers could have had on as many nodes, for nothing.

use super::Simulation;
use crate::allocation::{DpSolver, Problem, TrainerDemand};

/// Rates since the last decision, in the objective's unit per second.
#[derive(Debug)]
pub(super) struct Judge {
    solver: DpSolver,
    pub(super) held_per_s: f64,
    pub(super) best_per_s: f64,
}

impl Judge {
    pub(super) fn new() -> Self {
        Judge {
            solver: DpSolver::new(),
            held_per_s: 0.0,
            best_per_s: 0.0,
        }
    }
}

impl Simulation {
    /// Values what is held from now on.
    pub(super) fn judge(&mut self) {
        let Some(judge) = &mut self.judge else {
            return;
        };
        let admitted = self.trainers.values().filter(|t| t.admitted_s.is_some());
        judge.held_per_s = 0.0;
        let mut demands = Vec::new();
        for trainer in admitted {
            let spec = &trainer.spec;
            let objective = self.config.objective.curve(spec);
            if trainer.rate_per_s > 0.0 {
                judge.held_per_s += objective.value(trainer.members as u32);
            }
            demands.push(TrainerDemand::new(
                0,
                spec.min_nodes,
                spec.max_nodes,
                objective,
            ));
        }
        let pool_nodes = self.engine.pool().len() as u32;
        let problem = Problem::new(pool_nodes, 1.0, demands);
        judge.best_per_s = judge.solver.solve(&problem).objective;
    }
}
