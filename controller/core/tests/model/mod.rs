//! A model of what the engine's actions meet: Slurm with its nodes and tasks
//! (`slurm`), agents and ranks (`agents`, `programs`), with random delays and
//! failures. It executes actions as the daemon does and complains when one makes
//! no sense (`checks`) or something is left undone (`settled`). What comes from
//! outside is an `ops::Op`. With BFT_TRACE set it tells what it does.

mod agents;
mod checks;
pub mod classes;
mod dice;
pub mod ops;
mod programs;
mod settled;
mod slurm;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use bftrainer_core::engine::{Action, Engine, EngineConfig, Event};
use bftrainer_core::node::{ClassId, NodeId};
use bftrainer_core::trainer::{TrainerId, TrainerInfo};

use agents::Agent;
use classes::Limits;
use dice::Dice;

/// How a world begins.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub nodes: u32,
    pub begin_s: f64,
    pub config: EngineConfig,
    /// Whether placements and starts fail and messages get lost.
    pub faults: bool,
    /// Whether programs report progress.
    pub progress: bool,
    /// How many classes of nodes there are.
    pub classes: u32,
    pub limits: Limits,
    /// Whether decisions look so far ahead that restarts cost nothing.
    pub free_restarts: bool,
}

/// Everything outside the engine, and the engine.
pub struct World {
    pub engine: Engine,
    /// All that the engine has done, and when.
    pub actions: Vec<(f64, Action)>,
    /// An engine rebuilt from a snapshot, which must do as `engine` does.
    twin: Option<Engine>,
    pub now_s: f64,
    dice: Dice,
    faults: bool,
    /// Whether nothing is broken in this world, from its begin.
    is_fair: bool,
    progress: bool,
    free_restarts: bool,
    config: EngineConfig,
    /// Whether the controller runs, and in which of its lives.
    up: bool,
    life: u64,
    timer_s: Option<f64>,
    /// What the controller has heard and not told the engine yet.
    inbox: Vec<Event>,
    delivery_planned: bool,
    /// Whether free nodes may be taken, as the controller knows and as the
    /// engine was told.
    in_doubt: bool,
    told_in_doubt: bool,
    queue: BinaryHeap<Planned>,
    planned: u64,
    classes: u32,
    limits: Limits,
    class_of: BTreeMap<NodeId, ClassId>,
    nodes: BTreeMap<NodeId, Node>,
    trainers: BTreeMap<TrainerId, Program>,
    tasks: BTreeMap<u64, Task>,
    newest_task: u64,
    newest_trainer: u32,
    is_traced: bool,
}

/// A node as Slurm sees it.
#[derive(Debug, Default)]
struct Node {
    /// No regular job runs here.
    idle: bool,
    /// It is broken: its agent died without a word and nothing starts.
    dead: bool,
    /// When a regular job is planned to use it, epoch seconds.
    hole_end_s: Option<f64>,
    /// The hole end that the engine knows and since when.
    told_end_s: Option<(f64, f64)>,
    /// Until when it is being cleaned up behind a task that left, epoch seconds.
    departure_until_s: f64,
}

/// A trainer: its array, its files, its program.
#[derive(Debug)]
struct Program {
    info: TrainerInfo,
    /// Tasks in the array.
    tasks: usize,
    /// The newest generation in the control folder.
    folder_generation: u64,
    /// The members that the host file names.
    folder_members: Vec<NodeId>,
    /// Ranks that stay go on through changes of membership.
    is_live: bool,
    verdict: Option<i32>,
    closing: bool,
    samples: u64,
    checkpoint: u64,
    /// Newest generation that this engine started.
    started: u64,
    /// Generations in which ranks end by the program's or their node's fault.
    failing: BTreeSet<u64>,
    /// When the engine heard of failures that may count, epoch seconds.
    failures_s: Vec<f64>,
    /// Samples that must be passed for them to be forgotten.
    failures_at_samples: u64,
    /// Samples that the engine has heard of.
    heard_samples: u64,
}

/// One task of an array, from its release on.
#[derive(Debug)]
struct Task {
    trainer: TrainerId,
    node: NodeId,
    state: TaskState,
    plan: Plan,
    /// A limit of its owner keeps it from starting.
    limited: bool,
    /// It never starts.
    stuck: bool,
    /// Its agent never says hello.
    mute: bool,
    /// To be held again when it has not started by then, epoch seconds.
    deadline_s: f64,
    /// Slurm took its node.
    requeued: bool,
    /// Whether the engine knows of it, since when, and whether it was told that
    /// it is gone.
    known_since_s: Option<f64>,
    told_gone: bool,
    /// Whether the engine no longer counts on it.
    given_up: bool,
    /// Whether the engine heard its hello.
    heard: bool,
    agent: Agent,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TaskState {
    Pending,
    Running,
    Ended,
}

/// What the controller has asked of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plan {
    /// To run, as soon as the array has a task to spare.
    Wanted,
    Placed,
    Runs,
    Leaving,
    Gone,
    /// Nothing: somebody else released it, or an earlier controller did.
    Rest,
}

/// What will happen.
#[derive(Clone, Debug)]
enum What {
    /// What the controller has heard goes to the engine.
    Delivery,
    /// The controller looks at Slurm.
    Look,
    /// A wanted placement is sent to Slurm.
    Send(u64),
    /// Slurm tries to start a task.
    TryStart(u64),
    /// Slurm answers to a leave.
    LeaveAnswered(u64),
    /// Slurm has cleaned up behind a task.
    Ended(u64),
    /// A regular job takes a node as planned (for that second).
    PlannedUse(NodeId, f64),
    /// An agent says hello, first or again.
    Hello(u64),
    /// An agent's message arrives, over a connection in a life of the controller.
    Message(u64, u64, Box<Event>),
    /// An agent's ranks take their next step.
    Step(u64, u64),
    /// Ranks end because a peer is gone.
    Collateral(u64, u64),
    /// An agent sees a newer generation in the control folder.
    Fence(u64, u64),
    /// The controller has missed an agent's heartbeats since that connection.
    Silence(u64, u64),
    /// A program makes progress.
    Progress(TrainerId),
    /// The controller is started again.
    Boot,
}

#[derive(Clone, Debug)]
struct Planned {
    time_s: f64,
    number: u64,
    what: What,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = other.time_s.total_cmp(&self.time_s);
        order.then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Planned {}

/// Seconds between two looks at Slurm.
const LOOK_S: f64 = 2.0;

/// Seconds between two progress lines.
const PROGRESS_S: f64 = 5.0;

impl World {
    pub fn new(setup: &Setup) -> Self {
        let mut config = setup.config.clone();
        if setup.free_restarts {
            config.horizon_s = 1e9;
        }
        let mut world = World {
            engine: new_engine(&config, setup.nodes),
            actions: Vec::new(),
            twin: None,
            now_s: setup.begin_s,
            dice: Dice::new(setup.seed),
            faults: setup.faults,
            is_fair: !setup.faults,
            progress: setup.progress,
            free_restarts: setup.free_restarts,
            config,
            up: true,
            life: 1,
            timer_s: None,
            inbox: Vec::new(),
            delivery_planned: false,
            in_doubt: false,
            told_in_doubt: false,
            queue: BinaryHeap::new(),
            planned: 0,
            classes: setup.classes,
            limits: setup.limits,
            class_of: (0..setup.nodes)
                .map(|n| (NodeId(n), ClassId(n * 2 / 3 % setup.classes)))
                .collect(),
            nodes: (0..setup.nodes)
                .map(|n| (NodeId(n), Node::default()))
                .collect(),
            trainers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            newest_task: 0,
            newest_trainer: 0,
            is_traced: std::env::var_os("BFT_TRACE").is_some(),
        };
        world.plan(LOOK_S, What::Look);
        world.inbox = world.class_events();
        world
    }

    /// Lets `seconds` pass.
    pub fn pass(&mut self, seconds: f64) {
        let until_s = self.now_s + seconds;
        loop {
            let next_s = self.queue.peek().map_or(f64::INFINITY, |next| next.time_s);
            let timer_s = self.timer_s.unwrap_or(f64::INFINITY);
            if next_s.min(timer_s) > until_s {
                break;
            }
            if timer_s <= next_s {
                self.now_s = self.now_s.max(timer_s);
                let mut events = std::mem::take(&mut self.inbox);
                events.push(Event::Timer);
                self.consult(events);
            } else if let Some(next) = self.queue.pop() {
                self.now_s = next.time_s;
                self.happen(next.what);
            }
        }
        self.now_s = until_s;
    }

    /// Rebuilds the engine from a snapshot, to live on beside the old one.
    pub fn take_snapshot(&mut self) {
        self.twin = Some(copy(&self.engine));
    }

    /// Whether the engine and its twin, if there is one, are in the same state.
    pub fn twins_agree(&self) -> bool {
        let state = |engine| serde_json::to_value(engine).unwrap();
        let twin = self.twin.as_ref();
        twin.is_none_or(|twin| state(twin) == state(&self.engine))
    }

    /// From now on nothing is planned, broken or lost.
    pub fn calm_down(&mut self) {
        self.faults = false;
        self.heal_nodes();
    }

    fn plan(&mut self, in_s: f64, what: What) {
        self.planned += 1;
        self.queue.push(Planned {
            time_s: self.now_s + in_s,
            number: self.planned,
            what,
        });
    }

    /// As [`World::plan`], between `low` and `high` seconds from now.
    fn plan_within(&mut self, low: f64, high: f64, what: What) {
        let in_s = self.dice.between(low, high);
        self.plan(in_s, what);
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Delivery => {
                self.delivery_planned = false;
                let events = std::mem::take(&mut self.inbox);
                if !events.is_empty() {
                    self.consult(events);
                }
            }
            What::Look => {
                self.plan(LOOK_S, What::Look);
                if self.up {
                    self.look(Vec::new());
                }
            }
            What::Send(task) => self.send_placement(task),
            What::TryStart(task) => self.try_start(task),
            What::LeaveAnswered(task) => self.leave_answered(task),
            What::Ended(task) => self.task_ended(task),
            What::PlannedUse(node, hole_end_s) => {
                if self.nodes[&node].hole_end_s == Some(hole_end_s) {
                    self.check_vacated(node);
                    self.take_node(node);
                }
            }
            What::Hello(task) => self.hello(task),
            What::Message(task, connection, event) => self.message(task, connection, *event),
            What::Step(task, serial) => self.step(task, serial),
            What::Collateral(task, serial) => self.collateral(task, serial),
            What::Fence(task, serial) => self.fence(task, serial),
            What::Silence(task, connection) => self.silence(task, connection),
            What::Progress(trainer) => self.make_progress(trainer),
            What::Boot => self.boot(),
        }
    }

    /// The controller hears of something; it goes to the engine at once or
    /// together with what follows in the next moments.
    fn tell(&mut self, event: Event) {
        if !self.up {
            return;
        }
        self.inbox.push(event);
        if !self.delivery_planned {
            self.delivery_planned = true;
            let in_s = if self.dice.chance(0.8) {
                0.0
            } else {
                self.dice.between(0.0, 0.3)
            };
            self.plan(in_s, What::Delivery);
        }
    }

    /// One call of the engine, its actions, and what follows from them at once.
    fn consult(&mut self, mut events: Vec<Event>) {
        while self.up && !events.is_empty() {
            self.trace(|| format!("told {events:?}"));
            self.note_told(&events);
            let before = self.assigned();
            let actions = self.engine.handle(self.now_s, events.clone());
            let decisions = self.engine.take_decisions();
            self.trace(|| format!("does {actions:?}"));
            if let Some(twin) = &mut self.twin {
                assert_eq!(twin.handle(self.now_s, events.clone()), actions);
                assert_eq!(twin.take_decisions(), decisions);
            }
            self.note_unwanted(&events);
            self.check_state(&before, &events, &decisions);
            self.timer_s = None;
            let mut at_once = Vec::new();
            for action in &actions {
                self.act(action, &mut at_once);
            }
            self.check_wake_up(&actions);
            self.check_nothing_is_due();
            let now_s = self.now_s;
            self.actions
                .extend(actions.into_iter().map(|action| (now_s, action)));
            events = at_once;
        }
    }

    fn act(&mut self, action: &Action, at_once: &mut Vec<Event>) {
        self.check_action(action);
        match action {
            Action::Place { trainer, node, .. } => self.want_placement(*trainer, *node),
            Action::Leave { trainer, node, .. } => self.leave(*trainer, *node, at_once),
            Action::Start {
                trainer,
                generation,
                members,
            } => {
                for node in members {
                    if let Some(task) = self.reachable(*trainer, *node) {
                        self.agent_starts(task, *generation, members);
                    }
                }
            }
            Action::Stop {
                trainer,
                generation,
                nodes,
                grace_s,
            } => {
                for node in nodes {
                    if let Some(task) = self.reachable(*trainer, *node) {
                        self.agent_stops(task, *generation, *grace_s);
                    }
                }
            }
            Action::Close { trainer, exit_code }
            | Action::Fail {
                trainer, exit_code, ..
            } => self.close(*trainer, *exit_code),
            Action::WakeAt { time_s } => self.timer_s = Some(*time_s),
        }
    }

    /// The task of `trainer` on `node` whose agent the controller can reach.
    fn reachable(&self, trainer: TrainerId, node: NodeId) -> Option<u64> {
        let (id, task) = self.tasks.iter().find(|(_, task)| {
            task.trainer == trainer
                && task.node == node
                && matches!(task.plan, Plan::Placed | Plan::Runs)
        })?;
        (task.agent.connected && task.agent.joined_life == self.life).then_some(*id)
    }

    fn assigned(&self) -> BTreeMap<NodeId, TrainerId> {
        let pool = self.engine.pool();
        pool.iter()
            .filter_map(|(id, node)| Some((id, node.assigned?)))
            .collect()
    }

    fn trace(&self, line: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{:.3} {}", self.now_s, line());
        }
    }
}

/// An engine rebuilt from a snapshot.
fn copy(engine: &Engine) -> Engine {
    let snapshot = serde_json::to_string(engine).unwrap();
    serde_json::from_str(&snapshot).unwrap()
}

/// An engine that knows the nodes' names, whose order is not that of the numbers.
fn new_engine(config: &EngineConfig, nodes: u32) -> Engine {
    let mut engine = Engine::new(config.clone());
    for n in 0..nodes {
        engine.names.intern(&format!("n{}", nodes - n));
    }
    engine
}
