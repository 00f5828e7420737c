//! The allocation problem: how many of the pool's nodes each trainer gets.
//! One problem type and one solution type for every solver; what solves it is in the submodules.
//! It knows counts only: which nodes, and when to ask, is decided elsewhere.

pub mod dp;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::curve::Curve;
pub use dp::{DpSolver, Rules, Ties};

/// One decision to take (arXiv 2106.12091, equations 1-16, reduced exactly to counts):
///
/// ```text
/// max  sum_j  horizon_s * O_j(n_j) - [n_j > c_j] * up_j * r_j - [n_j < c_j] * down_j * r_j
/// s.t. sum_j n_j <= pool_nodes,   n_j in {0} u [min_j, max_j]
/// ```
///
/// with c_j the nodes held now, O_j the objective curve and r_j = O_j(c_j) the current rate, 0
/// when c_j < min_j. That no trainer both gains and loses nodes needs no constraint: who shrinks
/// releases only its own nodes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Nodes to share out, those that trainers hold included.
    pub pool_nodes: u32,
    /// Seconds over which the decision must pay (the paper's T_fwd).
    pub horizon_s: f64,
    /// The trainers; `nodes[j]` of a solution belongs to `trainers[j]`. Among equals the earlier
    /// one is served first.
    pub trainers: Vec<TrainerDemand>,
}

/// What one trainer has, may have, and what it is worth.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainerDemand {
    /// Nodes held now, after losses; may lie below `min`, above `max` or above the pool.
    pub current: u32,
    /// Fewest nodes it runs on; it may always be given 0.
    pub min: u32,
    /// Most nodes it can use; below `min` it can only be given 0.
    pub max: u32,
    /// Objective per second over the node count, its weight included.
    pub objective: Curve,
    /// Seconds without progress when it grows.
    pub up_s: f64,
    /// Seconds without progress when it shrinks.
    pub down_s: f64,
}

/// An answer to a [`Problem`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Solution {
    /// Nodes per trainer, in the problem's order.
    pub nodes: Vec<u32>,
    /// Value of `nodes`, in the objective's unit times seconds.
    pub objective: f64,
    /// Whether no allocation is better (up to rounding).
    pub optimal: bool,
    /// By how much, relative to `objective`, a better one could be; 0 when optimal.
    pub gap: f64,
    /// Who found it.
    pub solver: Solver,
}

/// Who found a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Solver {
    /// Exact dynamic programming, [`DpSolver`].
    Dp,
    /// The mixed-integer program, proven or at its time limit.
    Milp,
    /// A feasible answer when nothing better was to be had in time.
    Greedy,
}

/// Why a problem can't be posed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A negative or not finite horizon.
    #[error("the horizon of {0} s is not a number of seconds from 0 on")]
    BadHorizon(f64),
    /// A negative or not finite scale-up or scale-down cost.
    #[error("trainer {trainer}: a scale cost of {cost_s} s is not a number of seconds from 0 on")]
    BadCost {
        /// Index of the trainer.
        trainer: usize,
        /// The cost given.
        cost_s: f64,
    },
    /// More trainers times nodes than fits in memory.
    #[error("{trainers} trainers on {nodes} usable nodes are too many for one decision")]
    TooLarge {
        /// Number of trainers.
        trainers: usize,
        /// Pool, or sum of the maxima if that is less.
        nodes: u64,
    },
}

/// Why an allocation is not allowed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Infeasible {
    /// Not one count per trainer.
    #[error("an allocation of {counts} counts is given for {trainers} trainers")]
    WrongLength {
        /// Counts given.
        counts: usize,
        /// Trainers in the problem.
        trainers: usize,
    },
    /// A count that is neither 0 nor within the trainer's bounds.
    #[error("trainer {trainer} is given {nodes} nodes; allowed are 0 and {min} to {max}")]
    BadCount {
        /// Index of the trainer.
        trainer: usize,
        /// Nodes given.
        nodes: u32,
        /// Its fewest nodes.
        min: u32,
        /// Its most nodes.
        max: u32,
    },
    /// More nodes than the pool has.
    #[error("{given} nodes are given away; the pool has {pool_nodes}")]
    PoolExceeded {
        /// Nodes given in all.
        given: u64,
        /// Nodes there are.
        pool_nodes: u32,
    },
}

impl Problem {
    /// A problem over interchangeable nodes; see the fields.
    pub fn new(pool_nodes: u32, horizon_s: f64, trainers: Vec<TrainerDemand>) -> Self {
        Self {
            pool_nodes,
            horizon_s,
            trainers,
        }
    }

    /// Checks what solvers rely on; for problems that come from outside.
    ///
    /// # Errors
    /// [`ProblemError`]: times that are negative or not finite, or tables beyond
    /// [`dp::MAX_TABLE_CELLS`].
    pub fn validate(&self) -> Result<(), ProblemError> {
        let is_time = |seconds: f64| seconds >= 0.0 && seconds.is_finite();
        if !is_time(self.horizon_s) {
            return Err(ProblemError::BadHorizon(self.horizon_s));
        }
        for (trainer, demand) in self.trainers.iter().enumerate() {
            for cost_s in [demand.up_s, demand.down_s] {
                if !is_time(cost_s) {
                    return Err(ProblemError::BadCost { trainer, cost_s });
                }
            }
        }
        if dp::table_cells(self) > dp::MAX_TABLE_CELLS {
            let trainers = self.trainers.len();
            return Err(ProblemError::TooLarge {
                trainers,
                nodes: self.usable_nodes(),
            });
        }
        Ok(())
    }

    /// Nodes that can be used at most: the pool, or the sum of the maxima if that is less.
    pub fn usable_nodes(&self) -> u64 {
        let wanted = self
            .trainers
            .iter()
            .map(|demand| u64::from(demand.max))
            .sum();
        u64::from(self.pool_nodes).min(wanted)
    }

    /// What giving trainer `j` `nodes` nodes is worth over the horizon, rescale cost deducted, in
    /// the objective's unit times seconds; `None` when it may not have that many. Panics when
    /// there is no trainer `j`.
    pub fn value(&self, j: usize, nodes: u32) -> Option<f64> {
        let demand = &self.trainers[j];
        demand
            .allows(nodes)
            .then(|| demand.value_over(self.horizon_s, nodes))
    }

    /// Value of a whole allocation, in the objective's unit times seconds.
    ///
    /// # Errors
    /// [`Infeasible`] as from [`Problem::check`].
    pub fn objective(&self, nodes: &[u32]) -> Result<f64, Infeasible> {
        self.check(nodes)?;
        Ok(self.value_of(nodes))
    }

    /// Whether `nodes` (one count per trainer) may be given.
    ///
    /// # Errors
    /// [`Infeasible`] says what is wrong first.
    pub fn check(&self, nodes: &[u32]) -> Result<(), Infeasible> {
        let (counts, trainers) = (nodes.len(), self.trainers.len());
        if counts != trainers {
            return Err(Infeasible::WrongLength { counts, trainers });
        }
        for (trainer, (demand, &nodes)) in self.trainers.iter().zip(nodes).enumerate() {
            if !demand.allows(nodes) {
                let (min, max) = (demand.min, demand.max);
                return Err(Infeasible::BadCount {
                    trainer,
                    nodes,
                    min,
                    max,
                });
            }
        }
        let given = nodes.iter().copied().map(u64::from).sum();
        if given > u64::from(self.pool_nodes) {
            return Err(Infeasible::PoolExceeded {
                given,
                pool_nodes: self.pool_nodes,
            });
        }
        Ok(())
    }

    /// As [`Problem::objective`], for counts that are known to be allowed. Begins at 0.0, as an
    /// empty sum is -0.0.
    fn value_of(&self, nodes: &[u32]) -> f64 {
        let demands = self.trainers.iter().zip(nodes);
        demands.fold(0.0, |sum, (demand, &n)| {
            sum + demand.value_over(self.horizon_s, n)
        })
    }
}

impl TrainerDemand {
    /// A trainer that rescales for nothing; see the fields.
    pub fn new(current: u32, min: u32, max: u32, objective: Curve) -> Self {
        Self {
            current,
            min,
            max,
            objective,
            up_s: 0.0,
            down_s: 0.0,
        }
    }

    /// The same with the seconds that growing and shrinking cost.
    pub fn with_costs(self, up_s: f64, down_s: f64) -> Self {
        Self {
            up_s,
            down_s,
            ..self
        }
    }

    /// Whether it may be given `nodes` nodes, the pool aside.
    pub fn allows(&self, nodes: u32) -> bool {
        nodes == 0 || (self.min..=self.max).contains(&nodes)
    }

    /// Objective per second now: 0 when it holds fewer than `min` nodes, as it can't run then.
    pub fn rate(&self) -> f64 {
        if self.current >= self.min {
            self.objective.value(self.current)
        } else {
            0.0
        }
    }

    /// What going from `current` to `nodes` nodes costs, in the objective's unit times seconds.
    pub fn rescale_cost(&self, nodes: u32) -> f64 {
        self.rescale_s(nodes) * self.rate()
    }

    fn rescale_s(&self, nodes: u32) -> f64 {
        match nodes.cmp(&self.current) {
            Ordering::Greater => self.up_s,
            Ordering::Equal => 0.0,
            Ordering::Less => self.down_s,
        }
    }

    fn value_over(&self, horizon_s: f64, nodes: u32) -> f64 {
        horizon_s * self.objective.value(nodes) - self.rescale_cost(nodes)
    }
}

impl Solution {
    /// A solver's answer, checked and valued here whoever gave it.
    ///
    /// # Errors
    /// [`Infeasible`] when the allocation is not allowed.
    pub fn new(
        problem: &Problem,
        nodes: Vec<u32>,
        solver: Solver,
        optimal: bool,
        gap: f64,
    ) -> Result<Self, Infeasible> {
        let objective = problem.objective(&nodes)?;
        Ok(Self {
            nodes,
            objective,
            optimal,
            gap,
            solver,
        })
    }
}
