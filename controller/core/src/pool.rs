//! The pool: nodes that are plain idle or run a task of ours, and what each is
//! used for.

use serde::{Deserialize, Serialize};

use crate::trainer::TrainerId;

/// One node of the pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolNode {
    /// Number of the event with which it joined; neighbours that join together
    /// tend to leave together.
    pub join_event: u64,
    /// When it joined, epoch seconds.
    pub joined_s: f64,
    /// When Slurm plans to use it, epoch seconds.
    pub hole_end_s: Option<f64>,
    /// The trainer that shall have it.
    pub assigned: Option<TrainerId>,
    /// The worker that is there, which may still be another trainer's.
    pub worker: Option<Worker>,
}

impl PoolNode {
    /// A free node.
    pub fn new(join_event: u64, joined_s: f64, hole_end_s: Option<f64>) -> Self {
        PoolNode {
            join_event,
            joined_s,
            hole_end_s,
            assigned: None,
            worker: None,
        }
    }

    /// Whether nothing is to be done here: free, or used by whom it is assigned to.
    pub fn is_at_rest(&self) -> bool {
        match (self.assigned, &self.worker) {
            (Some(trainer), Some(worker)) => {
                worker.trainer == trainer && worker.phase == Phase::Member
            }
            (assigned, worker) => assigned.is_none() && worker.is_none(),
        }
    }

    /// Whom it is assigned to and whose worker is here, each once.
    pub fn trainers(&self) -> impl Iterator<Item = TrainerId> {
        let worker = self.worker.as_ref().map(|worker| worker.trainer);
        let other = worker.filter(|trainer| self.assigned != Some(*trainer));
        self.assigned.into_iter().chain(other)
    }

    /// The worker here when it is `trainer`'s.
    pub fn worker_of(&self, trainer: TrainerId) -> Option<&Worker> {
        self.worker
            .as_ref()
            .filter(|worker| worker.trainer == trainer)
    }

    /// Whether a worker of `trainer`'s is here that was not told to leave.
    pub fn keeps_worker_of(&self, trainer: TrainerId) -> bool {
        self.worker_of(trainer)
            .is_some_and(|worker| worker.phase != Phase::Leaving)
    }

    /// Whether ranks of `trainer`'s run here, as far as is known.
    pub fn may_run(&self, trainer: TrainerId) -> bool {
        self.worker_of(trainer).is_some_and(|worker| {
            matches!(worker.phase, Phase::Found | Phase::Member | Phase::Stale)
        })
    }
}

/// A task of a trainer on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Whose it is.
    pub trainer: TrainerId,
    /// How far it is.
    pub phase: Phase,
    /// Since when, epoch seconds.
    pub since_s: f64,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Released in Slurm; its agent has not said hello.
    Placed,
    /// Its task was found running; its agent has not said hello.
    Found,
    /// Its agent is connected and runs no ranks.
    Ready,
    /// It belongs to the trainer's current generation.
    Member,
    /// It runs ranks of a generation that is no longer current; told to stop.
    Stale,
    /// Told to leave; its task goes back to the queue.
    Leaving,
}
