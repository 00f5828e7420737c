//! The engine: events in, actions out. It is deterministic and does no I/O, so
//! that the daemon and the replay decide alike.
//!
//! `intake` takes in what happened, `due` says when to decide, `decide` and what it names
//! which trainer shall have which nodes, `membership` and what it names turn that into
//! placements and generations, `live` does so for programs that handle membership
//! themselves, `planned` is about nodes whose planned ends are known, `faults`
//! judges losses and failures, `quarantine` keeps bad nodes out of use.

mod admit;
mod choose;
mod deadlines;
mod decide;
mod due;
mod event;
mod faults;
mod forced;
mod generations;
mod groups;
mod intake;
mod learn;
mod live;
mod membership;
mod planned;
mod pose;
mod quarantine;
mod roster;
mod workers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocation::{Allocator, GeneralSolver, Solution};
use crate::learning::Learning;
use crate::metric::Metric;
use crate::node::{ClassId, ClassInfo, NodeId, NodeNames};
use crate::pool::Pool;
use crate::trainer::{Run, RunState, Trainer, TrainerId};

pub use event::{Action, Decision, Event, LossReason, Outcome, PlaceFault};
pub use quarantine::{Avoidance, NodeFaults, Quarantine};

/// A node is vacated so much earlier than the measured save takes, seconds.
pub(crate) const SAVE_MARGIN_S: f64 = 3.0;

/// The engine's settings. All times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// Over this time a decision must pay (the paper's T_fwd).
    pub horizon_s: f64,
    /// What is maximised.
    pub metric: Metric,
    /// Whether nodes that a trainer gets when it has to restart anyway, as it has lost
    /// others, cost it nothing more. The paper's cost model charges them all the same.
    pub joint_restarts: bool,
    /// Fewest trainers that are admitted when so many wait.
    pub min_trainers: usize,
    /// Free nodes with a shorter planned stay are left alone.
    pub min_hole_s: f64,
    /// Slurm's backfill takes planned ends as rounded down to a multiple of this
    /// (bf_resolution); 0 takes them as they are.
    pub plan_grid_s: f64,
    /// A placement on a node with a planned end waits up to this long for Slurm's
    /// next backfill cycle (bf_interval).
    pub plan_wait_s: f64,
    /// A node with a planned end is vacated at least this long ahead.
    pub vacate_lead_s: f64,
    /// Limit of a task on a node without a planned end.
    pub lease_s: f64,
    /// From SIGTERM to SIGKILL of ranks when a generation changes.
    pub grace_s: f64,
    /// How long a running generation waits for newcomers.
    pub worker_start_timeout_s: f64,
    /// How long nodes that are ready wait for others while nothing runs.
    pub assemble_s: f64,
    /// How long members have to confirm a generation that was found running.
    pub adopt_timeout_s: f64,
    /// How long a loss may be noticed after the failure that it explains.
    pub collateral_window_s: f64,
    /// First quarantine of a node; doubled each time.
    pub quarantine_s: f64,
    /// Longest quarantine.
    pub quarantine_max_s: f64,
    /// Failures in a row, on as many nodes, without progress, that end a trainer.
    pub failures: usize,
    /// Whether curves and costs are learned from progress, those that trainers bring being
    /// taken as a first guess.
    pub learn: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            horizon_s: 60.0,
            metric: Metric::default(),
            joint_restarts: true,
            min_trainers: 30,
            min_hole_s: 60.0,
            plan_grid_s: 0.0,
            plan_wait_s: 0.0,
            vacate_lead_s: 5.0,
            lease_s: 1800.0,
            grace_s: 30.0,
            worker_start_timeout_s: 300.0,
            assemble_s: 5.0,
            adopt_timeout_s: 20.0,
            collateral_window_s: 8.0,
            quarantine_s: 60.0,
            quarantine_max_s: 3600.0,
            failures: 3,
            learn: false,
        }
    }
}

/// Pool, trainers and what is going on.
#[derive(Debug, Serialize, Deserialize)]
pub struct Engine {
    config: EngineConfig,
    /// The nodes' names.
    pub names: NodeNames,
    classes: BTreeMap<ClassId, ClassInfo>,
    /// The classes of nodes, in the pool or not.
    class_of: BTreeMap<NodeId, ClassId>,
    pool: Pool,
    trainers: BTreeMap<TrainerId, Trainer>,
    faults: NodeFaults,
    learning: Learning,
    /// Whether free nodes may be taken already.
    pool_in_doubt: bool,
    /// Counts calls of [`Engine::handle`] that brought nodes.
    join_events: u64,
    arrivals: u64,
    admissions: u64,
    /// Decisions by how they came about.
    outcomes: BTreeMap<String, u64>,
    /// The number of each owner's last admission, by uid.
    served: BTreeMap<u32, u64>,
    #[serde(skip)]
    solver: Allocator,
    #[serde(skip)]
    last_round: Option<pose::Round>,
    #[serde(skip)]
    actions: Vec<Action>,
    #[serde(skip)]
    decisions: Vec<Decision>,
    /// Nodes lost since the last decision.
    #[serde(skip)]
    forced: Vec<(TrainerId, forced::Forced, NodeId)>,
    /// Whether something has changed on which the last decision depends: pool, planned
    /// ends, quarantines, trainers, their costs, the settings.
    decision_due: bool,
    /// When that changes next by itself, epoch seconds.
    facts_change_s: Option<f64>,
    /// When it asked to be called, epoch seconds.
    wake_at_s: Option<f64>,
}

impl Engine {
    /// An engine without nodes and trainers.
    pub fn new(config: EngineConfig) -> Self {
        Engine {
            config,
            names: NodeNames::default(),
            classes: BTreeMap::new(),
            class_of: BTreeMap::new(),
            pool: Pool::default(),
            trainers: BTreeMap::new(),
            faults: NodeFaults::default(),
            learning: Learning::default(),
            pool_in_doubt: false,
            join_events: 0,
            arrivals: 0,
            admissions: 0,
            outcomes: BTreeMap::new(),
            solver: Allocator::default(),
            last_round: None,
            served: BTreeMap::new(),
            actions: Vec::new(),
            decisions: Vec::new(),
            forced: Vec::new(),
            decision_due: false,
            facts_change_s: None,
            wake_at_s: None,
        }
    }

    /// Has nodes that are not alike, and limits that trainers share, taken care of by `solver`
    /// from now on. Until then, and after the engine was read from a snapshot, greedy and local
    /// search do that; where nodes are alike the exact dynamic program always does.
    pub fn set_solver(&mut self, solver: Box<dyn GeneralSolver>) {
        self.solver = Allocator::new(solver);
    }

    /// How many decisions came about how, as "optimal" or "greedy_after_crash".
    pub fn outcomes(&self) -> &BTreeMap<String, u64> {
        &self.outcomes
    }

    /// How many times the solver was asked.
    pub fn times_decided(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// The answer on which the last decision rests.
    pub fn last_solution(&self) -> Option<&Solution> {
        self.last_round.as_ref().map(|round| &round.solution)
    }

    /// Takes in all that changed at `now_s` (epoch seconds) as one event and
    /// returns what is to be done, in this order.
    pub fn handle(&mut self, now_s: f64, events: Vec<Event>) -> Vec<Action> {
        self.names.sort();
        let mut is_news = events.is_empty();
        for event in events {
            self.decision_due |= due::bears_on_decisions(&event);
            is_news |= self.take_in(now_s, event);
        }
        let is_awaited = self.wake_at_s.is_some_and(|time_s| now_s >= time_s);
        if !is_news && !is_awaited && !self.decision_due {
            let wake_up = self.wake_at_s.map(|time_s| Action::WakeAt { time_s });
            return wake_up.into_iter().collect();
        }
        self.wake_at_s = None;
        self.judge_failures(now_s);
        if is_awaited {
            self.check_deadlines(now_s);
        }
        self.decide_and_drive(now_s);
        self.wake_at_workers_deadlines();
        self.drop_what_is_over();
        if let Some(time_s) = self.wake_at_s {
            self.actions.push(Action::WakeAt { time_s });
        }
        std::mem::take(&mut self.actions)
    }

    /// A worker that was told to stop may have been lost in the same event, and live members
    /// told of a generation that is over.
    fn drop_what_is_over(&mut self) {
        let (pool, trainers) = (&self.pool, &self.trainers);
        self.actions.retain_mut(|action| match action {
            Action::Start {
                trainer,
                generation,
                ..
            } => trainers.get(trainer).is_some_and(|known| {
                let run = known.run.as_ref();
                let is_over = |run: &Run| {
                    run.number != *generation || matches!(run.state, RunState::Stopping { .. })
                };
                !known.is_live || run.is_some_and(|run| !is_over(run))
            }),
            Action::Stop { trainer, nodes, .. } => {
                nodes.retain(|node| pool.get(*node).is_some_and(|node| node.may_run(*trainer)));
                !nodes.is_empty()
            }
            _ => true,
        });
    }

    /// The decisions since the last call, oldest first.
    pub fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// The settings.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Replaces the settings from the next event on.
    pub fn set_config(&mut self, config: EngineConfig) {
        self.config = config;
        self.decision_due = true;
        // Deadlines may have come nearer.
        self.wake_at_s = Some(f64::MIN);
    }

    /// The pool's nodes.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The trainers.
    pub fn trainers(&self) -> &BTreeMap<TrainerId, Trainer> {
        &self.trainers
    }

    /// Has a task taken off a node, whether or not it is known as a worker there.
    fn send_home(&mut self, trainer: TrainerId, node: NodeId, reason: &str) {
        self.actions.push(Action::Leave {
            trainer,
            node,
            reason: reason.to_owned(),
        });
    }

    fn wake_at(&mut self, time_s: f64) {
        self.wake_at_s = Some(self.wake_at_s.map_or(time_s, |other_s| other_s.min(time_s)));
    }
}
