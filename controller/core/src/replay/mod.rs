//! The replay: what trainers would have gained from the idle nodes of a log. Pure as the rest of
//! the core; reading logs and trainers' files, and showing results, is done elsewhere.
//!
//! `published` is the authors' event loop and their heuristic, `simulate` the live engine in
//! virtual time, `dedicated` the bound that efficiency is measured against.

mod dedicated;
mod published;
mod queue;
mod simulate;
mod tally;
mod unknown;

use crate::curve::Curve;
use crate::metric::Metric;
use crate::node::NodeId;

pub use dedicated::{Dedicated, dedicated_samples};
pub use published::{Published, PublishedPolicy};
pub use queue::{Queue, TrainerSpec};
pub use simulate::{Latency, Simulation, SimulationConfig};
pub use tally::{Distribution, Finished, Tally};
pub use unknown::{Guess, Learns, Unknown};

/// A change of the pool: all transitions of one time stamp.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolEvent {
    /// Epoch seconds.
    pub time_s: f64,
    /// Nodes that are no longer idle, in the order of their numbers.
    pub left: Vec<NodeId>,
    /// Nodes that became idle, with the epoch seconds of their planned ends where known, in the
    /// order of their numbers. A node that left and came back at once stands in both lists.
    pub joined: Vec<(NodeId, Option<f64>)>,
    /// Nodes that stay idle and whose planned ends changed.
    pub ends: Vec<(NodeId, Option<f64>)>,
    /// Names of nodes that were never seen before; they have the next numbers.
    pub new_names: Vec<String>,
}

/// What is maximised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// The objective column of the trainers' file.
    File,
    /// A metric of the throughput curve.
    Metric(Metric),
}

impl Objective {
    /// The objective curve of a trainer, per second; weights are all one.
    pub fn curve(&self, spec: &TrainerSpec) -> Curve {
        match self {
            Objective::File => spec.objective.clone(),
            Objective::Metric(metric) => metric.objective(&spec.throughput, 1.0),
        }
    }
}

/// How many trainers may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// At most so many.
    AtMost(usize),
    /// While the running trainers' maxima don't cover the pool or fewer than so many run.
    Open(usize),
}

impl Admission {
    /// Whether one more is admitted when `running` trainers that could use `could_use` nodes run.
    pub fn admits(self, running: usize, could_use: u64, pool_nodes: u64) -> bool {
        match self {
            Admission::AtMost(most) => running < most,
            Admission::Open(least) => running < least || could_use < pool_nodes,
        }
    }
}

/// What one event of the log did: the columns of the reference replays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Epoch seconds.
    pub time_s: f64,
    /// Samples gained since the last event, net of costs.
    pub samples: f64,
    /// Rate of all trainers after the decision, samples per second.
    pub rate_per_s: f64,
    /// Samples that the decision's rescaling costs.
    pub rescale_samples: f64,
    /// Number of the event, from 1.
    pub event: u64,
    /// Nodes that left the pool.
    pub left: usize,
    /// Trainers that lost nodes.
    pub hit: usize,
    /// Nodes that joined the pool.
    pub joined: usize,
    /// Admitted trainers.
    pub trainers: usize,
    /// Nodes in the pool.
    pub pool: usize,
    /// Trainers with nodes.
    pub running: usize,
    /// Nodes held by trainers.
    pub used: usize,
    /// Samples that losing nodes cost.
    pub preemption_samples: f64,
}

impl Step {
    /// What the log says of its event `number`.
    fn of(event: &PoolEvent, number: u64) -> Self {
        Step {
            time_s: event.time_s,
            event: number,
            left: event.left.len(),
            joined: event.joined.len(),
            ..Step::default()
        }
    }
}
