//! The daemon's state and its loop: inputs become engine events, the engine's
//! actions become changes in Slurm and messages to agents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Sender;
use std::time::Instant;

use bftrainer::wire::Query;
use bftrainer_core::engine::{Decision, Engine, EngineConfig, Event, NodeFaults};
use bftrainer_core::trainer::TrainerId;

use super::accounting::Accounting;
use super::agents::Agents;
use super::array::Array;
use super::node_classes::NodeClasses;
use super::orders::Orders;
use super::respecify::Respecification;
use super::slurm_thread::{Change, ChangeKind, Order, Purpose, Report};
use super::{Input, node_faults};
use crate::config::Config;
use crate::logging::Seldom;
use crate::metrics::Departure;
use crate::slurm::{NodeRecord, ReservationRecord, SlurmSettings, TaskName};
use crate::solver::{self, MilpSolver};
use crate::store::{Memory, Record, Store};
use crate::timeline::Timeline;

/// Decisions that are kept to be shown.
pub(super) const KEPT_DECISIONS: usize = 1000;

/// Shortest time between two looks, whatever hints say, seconds.
const SHORTEST_LOOK_S: f64 = 1.0;

/// The change that a hint is about is over after this time: an epilog's hint
/// comes before its node is idle. Only a look that begins later has seen it, seconds.
const SETTLED_AFTER_S: f64 = 0.5;

/// Reservations and the partition are looked at this often, seconds.
const EVERYTHING_S: f64 = 10.0;

/// One slow answer puts off the next look by no more than this, seconds.
const LONGEST_PAUSE_S: f64 = 30.0;

/// The brain is woken at least this often, seconds.
const LONGEST_WAIT_S: f64 = 1.0;

/// Queries may take this share of the time: the daemon as a whole shall stay below a tenth of
/// a core.
const QUERY_SHARE: f64 = 0.03;

/// A placement that waits for a free task or its turn.
#[derive(Clone, Debug)]
pub(super) struct WantedPlacement {
    pub trainer: TrainerId,
    pub node: String,
}

/// A task that was requeued off its node.
#[derive(Clone, Debug)]
pub(super) struct SuspectedPreemption {
    pub array_job_id: u32,
    pub node: String,
    pub departure: Departure,
    /// Epoch seconds.
    pub time_s: f64,
    /// A regular job must have started before this, a worker of ours being there again;
    /// epoch seconds.
    pub until_s: Option<f64>,
}

/// What the daemon knows.
pub(super) struct Brain {
    pub config: Config,
    pub settings: SlurmSettings,
    pub engine: Engine,
    pub arrays: BTreeMap<u32, Array>,
    pub agents: Agents,
    pub accounting: Accounting,
    pub decisions: VecDeque<Decision>,
    /// Pool and allocation of the last day.
    pub timeline: Timeline,
    /// Slurm's nodes by name, as last seen.
    pub nodes: BTreeMap<String, NodeRecord>,
    pub partition_nodes: BTreeSet<String>,
    pub classes: NodeClasses,
    pub reservations: Vec<ReservationRecord>,
    /// Nodes with the epoch second of their next use by a planned regular job.
    pub planned_by_jobs: BTreeMap<String, i64>,
    /// The same, reservations included.
    pub planned: BTreeMap<String, i64>,
    /// When a worker of ours left a node on our order, epoch seconds.
    pub departures: BTreeMap<String, f64>,
    /// When Slurm took a node from a worker of ours, or forgot its run, epoch seconds.
    pub taken: BTreeMap<String, f64>,
    /// When a regular job last started on each node, epoch seconds.
    pub regular_starts: BTreeMap<String, i64>,
    /// Tasks that were requeued off their nodes, by Slurm or by somebody.
    pub suspected_preemptions: Vec<SuspectedPreemption>,
    pub wanted: VecDeque<WantedPlacement>,
    /// When one of these may be sent though no look shows any news, epoch seconds.
    pub placements_due_at_s: Option<f64>,
    /// Whether Slurm has lost our partition.
    pub lacks_partition: bool,
    /// Jobs with our comment in other partitions, mentioned once.
    pub mentioned: BTreeSet<u32>,
    /// When Slurm was last known to hand out nodes that no look has shown.
    pub doubted_at_s: f64,
    /// Ended trainers as they were shown last, by array job id.
    pub history: BTreeMap<u32, serde_json::Value>,
    /// Results of actions that needed nobody else.
    pub immediate_events: Vec<Event>,
    /// New specifications that Slurm has not confirmed yet, by array job id.
    pub respecifications: BTreeMap<u32, Respecification>,
    /// Plain jobs in our partition.
    pub plain_jobs: usize,
    /// Whether Slurm's state was ever seen.
    pub has_seen: bool,
    /// Slurmctld's clock when it was seen to be another one than ours, epoch seconds: what was
    /// noted with our time is void.
    pub other_time_s: Option<f64>,
    /// Placements that may still be sent in the current second.
    pub start_tokens: f64,
    pub tokens_at_s: f64,
    pub admin_orders: Orders,
    /// Looks that failed since the last one that did not.
    pub failures_in_a_row: u32,
    pub looks_failed: u64,
    pub looks: u64,
    pub store: Store,
    /// What the store has of what speaks against nodes.
    pub kept_faults: NodeFaults,
    /// Warnings of refused agents.
    pub refusals: Seldom,
    orders: Sender<Order>,
    look_under_way: bool,
    taken_at_s: f64,
    last_look_s: f64,
    last_everything_s: f64,
    last_query_s: f64,
    hinted_at_s: f64,
    engine_wakes_at_s: Option<f64>,
    /// When what was learned was handed to the store last, epoch seconds.
    pub learned_kept_at_s: f64,
}

/// The solver as the settings want it.
pub(super) fn milp_solver(config: &Config) -> Box<MilpSolver> {
    let settings = solver::Settings {
        memory_mb: config.solver_memory_mb,
        ..solver::Settings::default()
    };
    Box::new(MilpSolver::new(settings, config.solver_limit))
}

impl Brain {
    /// A brain that has seen nothing of Slurm yet.
    pub fn new(
        config: Config,
        settings: SlurmSettings,
        orders: Sender<Order>,
        store: Store,
        memory: Memory,
    ) -> Self {
        let engine = EngineConfig {
            plan_grid_s: f64::from(settings.backfill_resolution_s),
            plan_wait_s: f64::from(settings.backfill_interval_s),
            ..config.engine.clone()
        };
        let mut engine = Engine::new(engine);
        engine.set_solver(milp_solver(&config));
        node_faults::restore(&mut engine, memory.node_faults);
        for (program, profile) in memory.profiles {
            engine.remember_program(program, profile);
        }
        Brain {
            kept_faults: engine.faults().clone(),
            refusals: Seldom::default(),
            engine,
            settings,
            arrays: BTreeMap::new(),
            agents: Agents::new(config.heartbeat_s),
            accounting: Accounting::default(),
            decisions: memory.decisions.into(),
            timeline: Timeline::new(memory.timeline),
            nodes: BTreeMap::new(),
            partition_nodes: BTreeSet::new(),
            classes: NodeClasses::default(),
            reservations: Vec::new(),
            planned_by_jobs: BTreeMap::new(),
            planned: BTreeMap::new(),
            departures: BTreeMap::new(),
            taken: BTreeMap::new(),
            regular_starts: BTreeMap::new(),
            suspected_preemptions: Vec::new(),
            wanted: VecDeque::new(),
            placements_due_at_s: None,
            lacks_partition: false,
            mentioned: BTreeSet::new(),
            doubted_at_s: 0.0,
            history: memory.ended.into_iter().collect(),
            store,
            immediate_events: Vec::new(),
            respecifications: BTreeMap::new(),
            plain_jobs: 0,
            has_seen: false,
            other_time_s: None,
            start_tokens: 0.0,
            tokens_at_s: 0.0,
            admin_orders: Orders::load(&config.state_dir),
            failures_in_a_row: 0,
            looks_failed: 0,
            looks: 0,
            orders,
            look_under_way: false,
            taken_at_s: 0.0,
            last_look_s: 0.0,
            last_everything_s: 0.0,
            last_query_s: 0.0,
            hinted_at_s: 0.0,
            engine_wakes_at_s: None,
            learned_kept_at_s: 0.0,
            config,
        }
    }

    /// Takes in what happened until `now_s` as one event.
    pub fn take(&mut self, now_s: f64, inputs: Vec<Input>) {
        self.mind_the_gap(now_s);
        self.integrate(now_s);
        let mut events = std::mem::take(&mut self.immediate_events);
        let mut questions = Vec::new();
        for input in inputs {
            match input {
                Input::Slurm(report) => self.take_report(now_s, report, &mut events),
                Input::Joined {
                    connection,
                    uid,
                    join,
                    to_agent,
                } => {
                    self.agent_joined(now_s, connection, uid, join, to_agent, &mut events);
                }
                Input::Agent {
                    connection,
                    message,
                } => {
                    self.agent_message(now_s, connection, message, &mut events);
                }
                Input::Disconnected { connection } => self.agents.disconnected(connection, now_s),
                Input::Set { uid, set, answer } => self.respecify(uid, &set, answer),
                Input::Query { uid, query, answer } => questions.push((uid, query, answer)),
                Input::Shown { what, answer } => {
                    // The asker may have gone away.
                    let _ = answer.send(self.shown(now_s, what));
                }
                Input::Hints(hints) => {
                    self.hinted_at_s = now_s;
                    self.accounting.metrics.hints.inc_by(hints);
                }
            }
        }
        self.lose_silent_agents(now_s, &mut events);
        let timer_due = self.engine_wakes_at_s.is_some_and(|time_s| time_s <= now_s);
        if self.has_seen && (!events.is_empty() || timer_due) {
            if events.is_empty() {
                events.push(Event::Timer);
            }
            self.run_engine(now_s, events);
        }
        self.send_placements(now_s);
        for (uid, query, answer) in questions {
            match query {
                Query::History { days } => self.answer_history(now_s, uid, days, answer),
                Query::Command(command) => {
                    let _ = answer.send(self.command(uid, &command));
                }
                query => {
                    let shown = self.answer(now_s, uid, &query);
                    // The asker may have gone away.
                    let _ = answer.send(shown);
                }
            }
        }
        self.look_when_due(now_s);
    }

    /// Who was not listened to, as the daemon stood still, has not been silent.
    fn mind_the_gap(&mut self, now_s: f64) {
        let gap_s = now_s - self.taken_at_s;
        self.taken_at_s = now_s;
        if gap_s > self.config.heartbeat_s.max(LONGEST_WAIT_S * 2.0) {
            self.agents.forgive(now_s);
        }
    }

    fn run_engine(&mut self, now_s: f64, mut events: Vec<Event>) {
        // Some actions have their result at once, which is an event again.
        while !events.is_empty() {
            self.engine_step(now_s, events);
            events = std::mem::take(&mut self.immediate_events);
        }
    }

    fn engine_step(&mut self, now_s: f64, events: Vec<Event>) {
        self.engine_wakes_at_s = None;
        let asked = self.engine.times_decided();
        let began = Instant::now();
        let actions = self.engine.handle(now_s, events);
        let took_s = began.elapsed().as_secs_f64();
        let decisions = self.engine.take_decisions();
        if let Some(solution) = self.engine.last_solution()
            && self.engine.times_decided() > asked
            && (solution.fault.is_some() || !decisions.is_empty())
        {
            self.accounting.metrics.decided(solution, took_s);
        }
        for decision in decisions {
            log::info!("{}", decision.reason);
            if self.decisions.len() == KEPT_DECISIONS {
                self.decisions.pop_front();
            }
            self.store.keep(Record::Decision(decision.clone()));
            self.decisions.push_back(decision);
        }
        self.keep_node_faults();
        for action in actions {
            self.act(now_s, action);
        }
    }

    pub(super) fn wake_engine_at(&mut self, time_s: f64) {
        self.engine_wakes_at_s = Some(time_s);
    }

    fn take_report(&mut self, now_s: f64, report: Report, events: &mut Vec<Event>) {
        match report {
            Report::Seen(sight) => {
                self.look_under_way = false;
                self.last_query_s = sight.query_s;
                self.accounting.metrics.query_s.observe(sight.query_s);
                if self.failures_in_a_row > 0 {
                    log::info!(
                        "slurmctld answers again after {} failed looks",
                        self.failures_in_a_row
                    );
                }
                self.failures_in_a_row = 0;
                self.looks += 1;
                if sight.clock_ahead_s == 0.0 {
                    self.observe(now_s, sight, events);
                } else {
                    self.other_time_s = Some(now_s + sight.clock_ahead_s);
                }
            }
            Report::Blind(error) => {
                self.look_under_way = false;
                self.last_everything_s = 0.0;
                self.looks_failed += 1;
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                self.accounting.metrics.query_errors.inc();
                if self.failures_in_a_row == 1 {
                    log::warn!("slurmctld can't be asked: {error}; nothing changes until it can");
                }
            }
            Report::Changed(change, result) => {
                self.accounting.metrics.changed(result.is_ok());
                self.changed(now_s, change, result, events);
            }
        }
    }

    /// Asks Slurm's thread for a change.
    pub(super) fn change(&mut self, tasks: TaskName, kind: ChangeKind, purpose: Purpose) {
        self.order(Order::Change(Change {
            tasks,
            kind,
            purpose,
        }));
    }

    fn order(&mut self, order: Order) {
        if self.orders.send(order).is_err() {
            // The thread only ends when this sender is dropped, or by a panic.
            log::error!("the thread for Slurm has ended; bftrainerd must be restarted");
            std::process::exit(70);
        }
    }

    /// Slurm has just given out nodes: what looked idle may no longer be.
    pub(super) fn doubt_pool(&mut self, now_s: f64, events: &mut Vec<Event>) {
        self.doubted_at_s = now_s;
        self.hinted_at_s = now_s;
        events.push(Event::PoolDoubted);
    }

    /// When the look that was reported last, or is under way, was begun, epoch seconds.
    pub(super) fn last_look_s(&self) -> f64 {
        self.last_look_s
    }

    /// Whether the look that is being reported was begun after `time_s`.
    pub(super) fn look_began_after(&self, time_s: f64) -> bool {
        self.last_look_s > time_s
    }

    /// When the next look may be, epoch seconds: each `poll_interval_s`, at once
    /// on a hint, but so that queries take a small share of the time.
    fn next_look_s(&self) -> f64 {
        let patience_s = (f64::from(self.failures_in_a_row) * 2.0).min(30.0);
        let shortest_s = SHORTEST_LOOK_S
            .max((self.last_query_s / QUERY_SHARE).min(LONGEST_PAUSE_S))
            .max(patience_s);
        let hinted = self.last_look_s < self.hinted_at_s + SETTLED_AFTER_S;
        let interval_s = if hinted || self.agents.has_parked() {
            shortest_s
        } else {
            shortest_s.max(self.config.poll_interval_s)
        };
        self.last_look_s + interval_s
    }

    fn look_when_due(&mut self, now_s: f64) {
        if self.look_under_way || now_s < self.next_look_s() {
            return;
        }
        let everything =
            self.partition_nodes.is_empty() || now_s - self.last_everything_s >= EVERYTHING_S;
        if everything {
            self.last_everything_s = now_s;
        }
        self.look_under_way = true;
        self.last_look_s = now_s;
        self.order(Order::Look { everything });
    }

    /// Has the next look see everything, soon.
    pub(super) fn look_at_everything(&mut self) {
        self.last_everything_s = 0.0;
        self.last_look_s = 0.0;
    }

    /// Seconds until [`Brain::take`] must be called without any input.
    pub fn seconds_to_wake(&self, now_s: f64) -> f64 {
        let mut wake_s = now_s + LONGEST_WAIT_S;
        if !self.look_under_way {
            wake_s = wake_s.min(self.next_look_s());
        }
        if let Some(time_s) = self.engine_wakes_at_s {
            wake_s = wake_s.min(time_s);
        }
        if let Some(time_s) = self.placements_due_at_s {
            wake_s = wake_s.min(time_s);
        }
        (wake_s - now_s).max(0.001)
    }
}
