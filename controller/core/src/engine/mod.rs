//! The engine: events in, actions out. It is deterministic and does no I/O, so
//! that the daemon and the replay decide alike.
//!
//! `due` says when to decide, `decide` and what it names which trainer shall have which
//! nodes, `membership` turns that into placements and generations, `faults` judges losses
//! and failures, `quarantine` keeps bad nodes out of use.

mod admit;
mod choose;
mod decide;
mod due;
mod event;
mod faults;
mod forced;
mod groups;
mod learn;
mod membership;
mod pose;
mod quarantine;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocation::{Allocator, GeneralSolver, Solution};
use crate::learning::Learning;
use crate::metric::Metric;
use crate::node::{ClassId, ClassInfo, NodeId, NodeNames};
use crate::pool::{Phase, Pool, PoolNode, Worker};
use crate::trainer::{Run, RunState, Trainer, TrainerId, TrainerState};

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
        self.stop_nobody_who_is_gone();
        if let Some(time_s) = self.wake_at_s {
            self.actions.push(Action::WakeAt { time_s });
        }
        std::mem::take(&mut self.actions)
    }

    /// A worker that was told to stop may have been lost in the same event.
    fn stop_nobody_who_is_gone(&mut self) {
        let pool = &self.pool;
        self.actions.retain_mut(|action| match action {
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

    /// Whether `node` may be used at `now_s`: to keep its worker or to get one.
    pub fn is_usable(&self, node: NodeId, now_s: f64) -> bool {
        let pool_node = self.pool.get(node);
        pool_node.is_some_and(|pool_node| self.can_be_used(node, pool_node, now_s))
    }

    fn can_be_used(&self, id: NodeId, node: &PoolNode, now_s: f64) -> bool {
        self.outlasts(node, now_s) && !self.is_quarantined(id, now_s)
    }

    /// Whether the node's planned end, if any, leaves time to use it.
    fn outlasts(&self, node: &PoolNode, now_s: f64) -> bool {
        self.unusable_at_s(node).is_none_or(|time_s| now_s < time_s)
    }

    /// From when on the node's planned end forbids its use, epoch seconds: a
    /// worker that is there leaves just in time, a new one needs longer.
    fn unusable_at_s(&self, node: &PoolNode) -> Option<f64> {
        let end_s = node.hole_end_s?;
        let stays = node
            .assigned
            .filter(|trainer| node.keeps_worker_of(*trainer));
        match stays {
            Some(trainer) => Some(end_s - self.vacate_lead_s(trainer)),
            None => self
                .last_start_s(node)
                .map(|time_s| time_s - self.start_lead_s()),
        }
    }

    /// By when a worker must start on `node` so that Slurm finds room for it: the
    /// planned end on backfill's grid, less the wait for its next cycle; epoch seconds.
    fn last_start_s(&self, node: &PoolNode) -> Option<f64> {
        let grid_s = self.config.plan_grid_s;
        let end_s = node.hole_end_s?;
        let grid_end_s = if grid_s > 0.0 {
            (end_s / grid_s).floor() * grid_s
        } else {
            end_s
        };
        Some(grid_end_s - self.config.plan_wait_s)
    }

    /// How long a worker that is placed on `node` at `now_s` could stay there.
    fn room_s(&self, node: &PoolNode, now_s: f64) -> f64 {
        self.last_start_s(node)
            .map_or(f64::INFINITY, |time_s| time_s - now_s)
    }

    /// How long before its planned end a node gets no worker any more.
    fn start_lead_s(&self) -> f64 {
        self.config.min_hole_s.max(self.config.vacate_lead_s)
    }

    /// How long before its planned end `trainer` vacates a node: long enough to save.
    fn vacate_lead_s(&self, trainer: TrainerId) -> f64 {
        let save_s = self.trainers.get(&trainer).and_then(|known| known.save_s);
        let least_s = save_s.map_or(0.0, |save_s| save_s + SAVE_MARGIN_S);
        least_s
            .max(self.config.vacate_lead_s)
            .min(self.start_lead_s())
    }

    /// Takes in one event; whether trainers may have to be driven on now.
    fn take_in(&mut self, now_s: f64, event: Event) -> bool {
        match event {
            Event::Pool {
                joined,
                left,
                hole_ends,
            } => {
                for node in left {
                    self.call_off(node);
                    self.lose_node(now_s, node);
                }
                self.join(now_s, joined);
                for (node, hole_end_s) in hole_ends {
                    self.pool.update(node, |it| it.hole_end_s = hole_end_s);
                }
            }
            Event::NodeClass { class, info, nodes } => {
                self.classes.insert(class, info);
                self.class_of
                    .extend(nodes.into_iter().map(|node| (node, class)));
            }
            Event::PoolDoubted => self.pool_in_doubt = true,
            Event::PoolSeen => return std::mem::take(&mut self.pool_in_doubt),
            Event::TrainerArrived(info) => {
                self.watch(&info);
                let arrival = self.arrivals;
                if let std::collections::btree_map::Entry::Vacant(entry) =
                    self.trainers.entry(info.id)
                {
                    entry.insert(Trainer::new(info, arrival));
                    self.arrivals += 1;
                }
            }
            Event::TrainerChanged(info) => {
                if self.trainers.contains_key(&info.id) {
                    self.watch(&info);
                }
                if let Some(trainer) = self.trainers.get_mut(&info.id) {
                    trainer.info = info;
                }
            }
            Event::TrainerGone { trainer } => self.forget_trainer(trainer),
            Event::WorkerFound { trainer, node } => self.adopt_worker(now_s, trainer, node),
            Event::WorkerReady {
                trainer,
                node,
                running,
                newest_generation,
            } => {
                self.worker_ready(now_s, trainer, node, running, newest_generation);
            }
            Event::WorkerStarted {
                trainer,
                node,
                generation,
            } => {
                self.worker_started(now_s, trainer, node, generation);
            }
            Event::WorkerStopped {
                trainer,
                node,
                generation,
                outcome,
            } => {
                self.worker_stopped(now_s, trainer, node, generation, outcome);
            }
            Event::WorkerLost {
                trainer,
                node,
                reason,
            } => {
                self.worker_lost(now_s, trainer, node, reason);
            }
            Event::WorkerGone { trainer, node } => self.worker_gone(trainer, node),
            Event::PlaceFailed {
                trainer,
                node,
                fault,
                reason,
            } => {
                self.place_failed(now_s, trainer, node, fault, reason);
            }
            Event::Progress {
                trainer,
                generation,
                samples,
            } => {
                self.progress(now_s, trainer, generation, samples);
                return false;
            }
            Event::Finished { trainer, exit_code } => self.finish(trainer, exit_code),
            Event::Timer => {}
        }
        true
    }

    fn join(&mut self, now_s: f64, joined: Vec<(NodeId, Option<f64>)>) {
        if joined.is_empty() {
            return;
        }
        self.join_events += 1;
        for (node, hole_end_s) in joined {
            let pool_node = PoolNode::new(self.join_events, now_s, hole_end_s);
            self.pool.join(node, pool_node);
        }
    }

    fn forget_trainer(&mut self, trainer: TrainerId) {
        self.learning.gone(trainer);
        if let Some(known) = self.trainers.remove(&trainer) {
            // It is gone unjudged: its failures say nothing of the nodes.
            self.pardon_nodes_of(trainer, &known.failures);
        }
        for node in self.pool.nodes_of(trainer) {
            self.pool.update(node, |it| {
                it.unassign_from(trainer);
                it.take_worker_of(trainer);
            });
        }
    }

    /// A task of `trainer` runs on `node` though this engine never placed it:
    /// the trainer keeps the node until a decision says otherwise.
    fn adopt_worker(&mut self, now_s: f64, trainer: TrainerId, node: NodeId) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        match self.pool.get(node) {
            Some(pool_node) if pool_node.worker.is_none() => {}
            Some(pool_node) if pool_node.worker_of(trainer).is_some() => return,
            _ => return self.send_home(trainer, node, "its node is not free for it"),
        }
        let held = self.pool.assigned_to(trainer).len() as u32;
        let has_room = held < known.info.max_nodes;
        self.pool.update(node, |it| {
            it.worker = Some(Worker {
                trainer,
                phase: Phase::Found,
                since_s: now_s,
            });
            if has_room && it.assigned.is_none() {
                it.assigned = Some(trainer);
            }
        });
        if known.state == TrainerState::Waiting {
            known.state = TrainerState::Admitted;
            known.admission = self.admissions;
            self.admissions += 1;
        }
    }

    /// A placement on a node that is no longer idle must not start there later.
    fn call_off(&mut self, node: NodeId) {
        if let Some(worker) = self.pool.get(node).and_then(|node| node.worker.as_ref())
            && worker.phase == Phase::Placed
        {
            self.send_home(worker.trainer, node, "the node went to others");
        }
    }

    /// Has a task taken off a node, whether or not it is known as a worker there.
    fn send_home(&mut self, trainer: TrainerId, node: NodeId, reason: &str) {
        self.actions.push(Action::Leave {
            trainer,
            node,
            reason: reason.to_owned(),
        });
    }

    fn progress(&mut self, now_s: f64, trainer: TrainerId, generation: u64, samples: u64) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if let Some((began_s, samples_then)) = known.restart_began
            && generation == known.generation
            && Self::has_running_generation(known)
            && samples > samples_then
        {
            let gap_s = (now_s - began_s).clamp(0.1, 600.0);
            known.restart_s = Some(known.restart_s.map_or(gap_s, |old_s| (old_s + gap_s) / 2.0));
            known.restart_began = None;
            self.decision_due = true;
            self.learning.restarted(now_s, trainer, gap_s);
        }
        let has_grown = samples > known.samples;
        known.samples = samples;
        if samples > known.failures_at_samples && !known.failures.is_empty() {
            known.failures.clear();
        }
        if has_grown
            && let Some(run) = self.trainers.get(&trainer).and_then(|it| it.run.as_ref())
            && run.number == generation
            && run.state == RunState::Running
        {
            let members = run.members.clone();
            self.trust(trainer, &members);
        }
        self.decision_due |= self.learning.progress(now_s, trainer, generation, samples);
    }

    /// The trainer's verdict is known: its nodes are free, its tasks are closed.
    fn finish(&mut self, trainer: TrainerId, exit_code: i32) {
        let Some(known) = self.trainers.get_mut(&trainer) else {
            return;
        };
        if known.state == TrainerState::Closing {
            return;
        }
        known.state = TrainerState::Closing;
        known.run = None;
        self.decision_due = true;
        for node in self.pool.nodes_of(trainer) {
            self.pool.update(node, |it| {
                it.unassign_from(trainer);
                if let Some(worker) = it.worker_of_mut(trainer) {
                    worker.phase = Phase::Leaving;
                }
            });
        }
        self.actions.push(Action::Close { trainer, exit_code });
    }

    fn wake_at(&mut self, time_s: f64) {
        self.wake_at_s = Some(self.wake_at_s.map_or(time_s, |other_s| other_s.min(time_s)));
    }

    /// The generation of `trainer` when it has the number `generation`.
    fn run_of(&mut self, trainer: TrainerId, generation: u64) -> Option<&mut Run> {
        let run = self.trainers.get_mut(&trainer)?.run.as_mut()?;
        (run.number == generation).then_some(run)
    }

    /// Whether `trainer` has a generation with ranks that run or are starting.
    fn has_running_generation(trainer: &Trainer) -> bool {
        trainer
            .run
            .as_ref()
            .is_some_and(|run| !matches!(run.state, RunState::Stopping { .. }))
    }
}
