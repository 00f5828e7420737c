//! The allocation problem, its rules, and the value of an answer. Every solver maximises what is
//! defined here, and no answer is believed before `check` has seen it.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::dp;
use super::error::{Infeasible, MAX_SECONDS, MAX_SPEED, ProblemError};
use crate::curve::Curve;

/// Most values that a problem with classes or caps may have over (trainers, classes, nodes).
pub const MAX_VALUES: u64 = 1 << 24;

/// One decision to take (arXiv 2106.12091, equations 1-16, reduced to counts per node class):
///
/// ```text
/// max  sum_j  horizon_s * s_jk * O_j(n_j) - cost_s_j * r_j        trainer j on n_j nodes of class k
/// s.t. n_j in {0} u [min_j, max_j],  of one class k that j may use
///      sum of n_j in class k <= nodes of class k,   sum of n_j in a cap <= its max_nodes
/// ```
///
/// with O_j the objective curve and s_jk the speed of class k for j. A change costs `up_s` when
/// the trainer grows, `down_s` when it shrinks, both when it changes its class; r_j is the rate
/// now, s_jk * O_j of the nodes it holds, and 0 when they are fewer than min_j. That no trainer
/// both gains and loses nodes of one class needs no constraint: who shrinks releases only its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// The nodes to share out, those that trainers hold included; nodes of one class are alike.
    pub classes: Vec<NodeClass>,
    /// Seconds over which the decision must pay (the paper's T_fwd).
    pub horizon_s: f64,
    /// The trainers; `shares[j]` of a solution belongs to `trainers[j]`. Among equals the earlier
    /// one is served first.
    pub trainers: Vec<TrainerDemand>,
    /// Limits on what several trainers have together.
    pub caps: Vec<Cap>,
}

/// Nodes that are alike for every trainer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClass {
    /// For people; empty when there is only one class.
    pub name: String,
    /// How many there are.
    pub nodes: u32,
}

/// At most so many nodes for these trainers together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// Indices of the trainers.
    pub trainers: Vec<usize>,
    /// Most nodes they may have, of all classes together.
    pub max_nodes: u32,
}

/// Nodes of one class in one trainer's hands. A count converts into nodes of the first class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Share {
    /// Index of the class; 0 when there are no nodes.
    pub class: usize,
    /// How many nodes.
    pub nodes: u32,
}

/// What one trainer has, may have, and what it is worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrainerDemand {
    /// Nodes held now, after losses; may lie below `min`, above `max` or above what there is.
    pub current: Share,
    /// Fewest nodes it runs on; it may always be given 0.
    pub min: u32,
    /// Most nodes it can use; below `min` it can only be given 0.
    pub max: u32,
    /// Objective per second over the node count at speed 1, its weight included.
    #[serde(with = "objective_points")]
    pub objective: Curve,
    /// Seconds without progress when it grows.
    pub up_s: f64,
    /// Seconds without progress when it shrinks.
    pub down_s: f64,
    /// By what the objective is multiplied on nodes of each class; 0, or beyond the end: it may
    /// not use that class. Empty: it may use all, at speed 1.
    pub speeds: Vec<f64>,
}

impl Problem {
    /// A problem over interchangeable nodes.
    pub fn new(pool_nodes: u32, horizon_s: f64, trainers: Vec<TrainerDemand>) -> Self {
        let class = NodeClass {
            name: String::new(),
            nodes: pool_nodes,
        };
        Self::with_classes(vec![class], horizon_s, trainers)
    }

    /// A problem over nodes of several classes.
    pub fn with_classes(
        classes: Vec<NodeClass>,
        horizon_s: f64,
        trainers: Vec<TrainerDemand>,
    ) -> Self {
        Self {
            classes,
            horizon_s,
            trainers,
            caps: Vec::new(),
        }
    }

    /// The same with limits on sets of trainers.
    pub fn with_caps(self, caps: Vec<Cap>) -> Self {
        Self { caps, ..self }
    }

    /// Whether all nodes are alike and nothing but their number limits the trainers, so that
    /// [`super::DpSolver`] solves it.
    pub fn is_uniform(&self) -> bool {
        self.classes.len() <= 1 && self.caps.is_empty()
    }

    /// Nodes of all classes.
    pub fn pool_nodes(&self) -> u32 {
        let nodes = self.classes.iter().map(|class| u64::from(class.nodes));
        u32::try_from(nodes.sum::<u64>()).unwrap_or(u32::MAX)
    }

    /// Checks what solvers rely on; for problems that come from outside.
    ///
    /// # Errors
    /// [`ProblemError`]: numbers that make no sense, indices that point nowhere, or more than
    /// [`dp::MAX_TABLE_CELLS`] or [`MAX_VALUES`].
    pub fn validate(&self) -> Result<(), ProblemError> {
        let is_time = |seconds: f64| (0.0..=MAX_SECONDS).contains(&seconds);
        if !is_time(self.horizon_s) {
            return Err(ProblemError::BadHorizon(self.horizon_s));
        }
        for (trainer, demand) in self.trainers.iter().enumerate() {
            for cost_s in [demand.up_s, demand.down_s] {
                if !is_time(cost_s) {
                    return Err(ProblemError::BadCost { trainer, cost_s });
                }
            }
            let allowed = 0.0..=MAX_SPEED;
            if let Some(&speed) = demand.speeds.iter().find(|speed| !allowed.contains(*speed)) {
                return Err(ProblemError::BadSpeed { trainer, speed });
            }
            let last = demand.speeds.len().max(demand.current.class + 1) - 1;
            let classes = self.classes.len();
            if last >= classes.max(1) {
                return Err(ProblemError::UnknownClass {
                    trainer,
                    class: last,
                    classes,
                });
            }
        }
        let trainers = self.trainers.len();
        for (cap, limit) in self.caps.iter().enumerate() {
            if let Some(&trainer) = limit.trainers.iter().find(|&&j| j >= trainers) {
                return Err(ProblemError::UnknownTrainer {
                    cap,
                    trainer,
                    trainers,
                });
            }
        }
        let is_too_large = match self.is_uniform() {
            true => dp::table_cells(self) > dp::MAX_TABLE_CELLS,
            false => self.values() > MAX_VALUES,
        };
        if is_too_large {
            let nodes = self.usable_nodes();
            return Err(ProblemError::TooLarge { trainers, nodes });
        }
        Ok(())
    }

    /// Nodes that can be used at most: the pool, or the sum of the maxima if that is less.
    pub fn usable_nodes(&self) -> u64 {
        let wanted = self.trainers.iter().map(|demand| u64::from(demand.max));
        u64::from(self.pool_nodes()).min(wanted.sum())
    }

    /// What giving trainer `j` this share is worth over the horizon, rescale cost deducted, in
    /// the objective's unit times seconds; `None` when it may not have it. Panics when there is
    /// no trainer `j`.
    pub fn value(&self, j: usize, share: impl Into<Share>) -> Option<f64> {
        let (demand, share) = (&self.trainers[j], share.into());
        demand
            .allows(share)
            .then(|| demand.value_over(self.horizon_s, share))
    }

    /// Value of a whole allocation, one share per trainer, in the objective's unit times seconds.
    ///
    /// # Errors
    /// [`Infeasible`] as from [`Problem::check`].
    pub fn objective<S: Into<Share> + Copy>(&self, shares: &[S]) -> Result<f64, Infeasible> {
        self.check(shares)?;
        Ok(self.value_of(shares))
    }

    /// Whether these shares (one per trainer) may be given.
    ///
    /// # Errors
    /// [`Infeasible`] says what is wrong first.
    pub fn check<S: Into<Share> + Copy>(&self, shares: &[S]) -> Result<(), Infeasible> {
        let trainers = self.trainers.len();
        if shares.len() != trainers {
            let shares = shares.len();
            return Err(Infeasible::WrongLength { shares, trainers });
        }
        let mut given = vec![0; self.classes.len()];
        for (trainer, (demand, &share)) in self.trainers.iter().zip(shares).enumerate() {
            let Share { class, nodes } = share.into();
            if !demand.allows_count(nodes) {
                let (min, max) = (demand.min, demand.max);
                return Err(Infeasible::BadCount {
                    trainer,
                    nodes,
                    min,
                    max,
                });
            }
            if nodes > 0 {
                match given.get_mut(class) {
                    Some(given) if demand.speed(class).is_some() => *given += u64::from(nodes),
                    _ => return Err(Infeasible::BadClass { trainer, class }),
                }
            }
        }
        for (class, (&given, NodeClass { nodes, .. })) in
            given.iter().zip(&self.classes).enumerate()
        {
            let nodes = *nodes;
            if given > u64::from(nodes) {
                return Err(Infeasible::ClassExceeded {
                    class,
                    given,
                    nodes,
                });
            }
        }
        for (cap, limit) in self.caps.iter().enumerate() {
            let members = limit.members(trainers);
            let given = members.map(|j| u64::from(shares[j].into().nodes)).sum();
            let max_nodes = limit.max_nodes;
            if given > u64::from(max_nodes) {
                return Err(Infeasible::CapExceeded {
                    cap,
                    given,
                    max_nodes,
                });
            }
        }
        Ok(())
    }

    /// As [`Problem::objective`], for shares that are known to be allowed. Begins at 0.0, as an
    /// empty sum is -0.0.
    pub(super) fn value_of<S: Into<Share> + Copy>(&self, shares: &[S]) -> f64 {
        let demands = self.trainers.iter().zip(shares);
        demands.fold(0.0, |sum, (demand, &share)| {
            sum + demand.value_over(self.horizon_s, share.into())
        })
    }

    /// Values over (trainers, classes, nodes).
    fn values(&self) -> u64 {
        let of_class = |demand: &TrainerDemand, class: &NodeClass| {
            u64::from(demand.max.min(class.nodes)).saturating_add(1)
        };
        let demands = self.trainers.iter();
        demands
            .flat_map(|demand| {
                self.classes
                    .iter()
                    .map(move |class| of_class(demand, class))
            })
            .fold(0, u64::saturating_add)
    }
}

impl Cap {
    /// The trainers that exist and each once, however often they are named.
    pub(super) fn members(&self, trainers: usize) -> impl Iterator<Item = usize> {
        let mut members = self.trainers.clone();
        members.sort_unstable();
        members.dedup();
        members.into_iter().take_while(move |&j| j < trainers)
    }
}

impl Share {
    /// No nodes.
    pub const NONE: Self = Self { class: 0, nodes: 0 };

    /// Nodes of a class; no nodes are of no class.
    pub fn new(class: usize, nodes: u32) -> Self {
        match nodes {
            0 => Self::NONE,
            _ => Self { class, nodes },
        }
    }
}

impl From<u32> for Share {
    fn from(nodes: u32) -> Self {
        Self { class: 0, nodes }
    }
}

impl TrainerDemand {
    /// A trainer that rescales for nothing and runs on all nodes at speed 1; see the fields.
    pub fn new(current: impl Into<Share>, min: u32, max: u32, objective: Curve) -> Self {
        Self {
            current: current.into(),
            min,
            max,
            objective,
            up_s: 0.0,
            down_s: 0.0,
            speeds: Vec::new(),
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

    /// The same with a speed factor for each class, 0 where it may not run.
    pub fn with_speeds(self, speeds: Vec<f64>) -> Self {
        Self { speeds, ..self }
    }

    /// The speed factor on nodes of `class`; `None` when it may not use them.
    pub fn speed(&self, class: usize) -> Option<f64> {
        if self.speeds.is_empty() {
            return Some(1.0);
        }
        self.speeds.get(class).copied().filter(|&speed| speed > 0.0)
    }

    /// Whether it may be given this share, the nodes there are aside.
    pub fn allows(&self, share: impl Into<Share>) -> bool {
        let share = share.into();
        self.allows_count(share.nodes) && (share.nodes == 0 || self.speed(share.class).is_some())
    }

    /// Objective per second on this share.
    pub fn rate_on(&self, share: impl Into<Share>) -> f64 {
        let share = share.into();
        self.speed(share.class).unwrap_or(0.0) * self.objective.value(share.nodes)
    }

    /// Objective per second now: 0 when it holds fewer than `min` nodes, as it can't run then.
    pub fn rate(&self) -> f64 {
        if self.current.nodes >= self.min {
            self.rate_on(self.current)
        } else {
            0.0
        }
    }

    /// What going from `current` to this share costs, in the objective's unit times seconds.
    pub fn rescale_cost(&self, share: impl Into<Share>) -> f64 {
        self.rescale_s(share.into()) * self.rate()
    }

    /// Seconds without progress when going from `current` to this share.
    pub fn rescale_s(&self, share: Share) -> f64 {
        let holds_both = share.nodes > 0 && self.current.nodes > 0;
        if holds_both && share.class != self.current.class {
            return self.up_s + self.down_s;
        }
        match share.nodes.cmp(&self.current.nodes) {
            Ordering::Greater => self.up_s,
            Ordering::Equal => 0.0,
            Ordering::Less => self.down_s,
        }
    }

    pub(super) fn value_over(&self, horizon_s: f64, share: Share) -> f64 {
        horizon_s * self.rate_on(share) - self.rescale_cost(share)
    }

    fn allows_count(&self, nodes: u32) -> bool {
        nodes == 0 || (self.min..=self.max).contains(&nodes)
    }
}

/// An objective curve as its points; unlike a throughput it may be worth 0.
mod objective_points {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use crate::curve::Curve;

    pub fn serialize<S: Serializer>(curve: &Curve, serializer: S) -> Result<S::Ok, S::Error> {
        Vec::from(curve.clone()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Curve, D::Error> {
        let points = Vec::<(u32, f64)>::deserialize(deserializer)?;
        Curve::objective(&points).map_err(D::Error::custom)
    }
}
