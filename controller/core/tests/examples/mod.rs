//! What the engine does in plain situations, one sentence each. The bench obeys
//! actions at once, or leaves them to the test.

mod classes;
mod faults;
mod generations;
mod learning;
mod live;
mod placement;

use bftrainer_core::curve::Curve;
use bftrainer_core::engine::{Action, Decision, Engine, EngineConfig, Event, LossReason, Outcome};
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{Run, RunState, Terms, Trainer, TrainerId, TrainerInfo};

/// An engine, its clock, when it wants to be called, and what it has decided.
struct Bench {
    engine: Engine,
    now_s: f64,
    wake_s: Option<f64>,
    decisions: Vec<Decision>,
}

impl Bench {
    fn new(config: EngineConfig) -> Self {
        let mut engine = Engine::new(config);
        for n in 0..64 {
            engine.names.intern(&format!("n{n}"));
        }
        Bench {
            engine,
            now_s: 1000.0,
            wake_s: None,
            decisions: Vec::new(),
        }
    }

    fn tell(&mut self, events: Vec<Event>) -> Vec<Action> {
        let mut actions = self.engine.handle(self.now_s, events);
        self.decisions.extend(self.engine.take_decisions());
        self.wake_s = None;
        actions.retain(|action| match action {
            Action::WakeAt { time_s } => {
                self.wake_s = Some(*time_s);
                false
            }
            _ => true,
        });
        actions
    }

    /// As [`Bench::tell`]; then all that is ordered is done at once, to the end.
    /// Returns what was ordered.
    fn live(&mut self, events: Vec<Event>) -> Vec<Action> {
        let actions = self.tell(events);
        self.obey(actions)
    }

    fn obey(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let mut todo = actions;
        let mut done = Vec::new();
        while !todo.is_empty() {
            let results = todo.iter().flat_map(results).collect::<Vec<Event>>();
            done.append(&mut todo);
            for event in results {
                todo.extend(self.tell(vec![event]));
            }
        }
        done
    }

    /// Lets time pass, wakes the engine when it wants that and never else, and obeys.
    fn pass(&mut self, seconds: u32) -> Vec<Action> {
        let until_s = self.now_s + f64::from(seconds);
        let mut done = Vec::new();
        while let Some(time_s) = self.wake_s.filter(|time_s| *time_s <= until_s) {
            assert!(time_s > self.now_s);
            self.now_s = time_s;
            done.extend(self.live(vec![Event::Timer]));
        }
        self.now_s = until_s;
        done
    }

    fn arrive(&mut self, info: TrainerInfo) -> Vec<Action> {
        self.live(vec![Event::TrainerArrived(info)])
    }

    fn trainer(&self, id: u32) -> &Trainer {
        &self.engine.trainers()[&TrainerId(id)]
    }

    fn run(&self, id: u32) -> &Run {
        self.trainer(id).run.as_ref().expect("a generation")
    }

    /// The members of a trainer's generation, which must run; none without one.
    fn running_on(&self, id: u32) -> Vec<u32> {
        let Some(run) = &self.trainer(id).run else {
            return Vec::new();
        };
        assert_eq!(run.state, RunState::Running);
        run.members.iter().map(|node| node.0).collect()
    }

    fn assigned(&self, id: u32) -> Vec<u32> {
        let pool = self.engine.pool();
        pool.iter()
            .filter(|(_, node)| node.assigned == Some(TrainerId(id)))
            .map(|(node, _)| node.0)
            .collect()
    }

    fn phase(&self, node: u32) -> Option<Phase> {
        let node = &self.engine.pool()[NodeId(node)];
        node.worker.as_ref().map(|worker| worker.phase)
    }

    fn is_quarantined(&self, node: u32) -> bool {
        let quarantine = self.engine.quarantine_of(NodeId(node), self.now_s);
        quarantine.is_some()
    }

    fn avoids(&self, trainer: u32, node: u32) -> bool {
        let (trainer, node) = (TrainerId(trainer), NodeId(node));
        let avoidance = self.engine.avoidance_of(trainer, node, self.now_s);
        avoidance.is_some()
    }

    fn last_reason(&self, id: u32) -> &str {
        let mut decisions = self.decisions.iter().rev();
        let last = decisions.find(|decision| decision.trainer == TrainerId(id));
        last.map_or("", |decision| &decision.reason)
    }
}

/// A bench on which T1, of whom `told` is true as well, trains on `count` nodes and may
/// have up to `max_nodes`.
fn training_as(told: Vec<Event>, count: u32, max_nodes: u32) -> Bench {
    let mut bench = Bench::new(EngineConfig::default());
    let mut events = vec![idle(0..count), Event::TrainerArrived(info(1, 1, max_nodes))];
    events.extend(told);
    bench.live(events);
    assert_eq!(bench.running_on(1), (0..count).collect::<Vec<u32>>());
    bench
}

/// A new engine's first sight of T1's running tasks.
fn restarted_as(told: Vec<Event>, tasks: u32) -> Bench {
    let mut bench = Bench::new(EngineConfig::default());
    let mut events = vec![Event::TrainerArrived(info(1, 1, tasks)), idle(0..tasks)];
    events.extend((0..tasks).map(|node| found(1, node)));
    events.extend(told);
    assert_eq!(bench.tell(events), []);
    bench
}

/// What an action brings about when all goes well.
fn results(action: &Action) -> Vec<Event> {
    match action {
        Action::Place { trainer, node, .. } => vec![hello(trainer.0, node.0)],
        Action::Leave { trainer, node, .. } => vec![Event::WorkerGone {
            trainer: *trainer,
            node: *node,
        }],
        Action::Start {
            trainer,
            generation,
            members,
        } => members
            .iter()
            .map(|node| started(trainer.0, node.0, *generation))
            .collect(),
        Action::Stop {
            trainer,
            generation,
            nodes,
            ..
        } => nodes
            .iter()
            .map(|node| stopped(trainer.0, node.0, *generation, Outcome::Stopped))
            .collect(),
        Action::Close { .. } | Action::Fail { .. } | Action::WakeAt { .. } => Vec::new(),
    }
}

/// A trainer that scales well and restarts in no time.
fn info(id: u32, min_nodes: u32, max_nodes: u32) -> TrainerInfo {
    TrainerInfo {
        program: None,
        has_own_curve: true,
        id: TrainerId(id),
        owner_uid: 1000 + id,
        min_nodes,
        max_nodes,
        weight: 1.0,
        curve: Curve::amdahl(0.98, max_nodes),
        up_s: 1.0,
        down_s: 1.0,
        max_stay_s: None,
        terms: Terms::default(),
    }
}

/// Nodes become idle, without a planned end.
fn idle(nodes: impl IntoIterator<Item = u32>) -> Event {
    idle_until(nodes, None)
}

fn idle_until(nodes: impl IntoIterator<Item = u32>, hole_end_s: Option<f64>) -> Event {
    Event::Pool {
        joined: nodes.into_iter().map(|n| (NodeId(n), hole_end_s)).collect(),
        left: Vec::new(),
        hole_ends: Vec::new(),
    }
}

fn left(nodes: impl IntoIterator<Item = u32>) -> Event {
    Event::Pool {
        joined: Vec::new(),
        left: nodes.into_iter().map(NodeId).collect(),
        hole_ends: Vec::new(),
    }
}

fn hello(trainer: u32, node: u32) -> Event {
    Event::WorkerReady {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        running: None,
        newest_generation: 0,
    }
}

/// The hello of an agent whose ranks run.
fn back(trainer: u32, node: u32, generation: u64, members: &[u32]) -> Event {
    Event::WorkerReady {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        running: Some((generation, nodes(members))),
        newest_generation: generation,
    }
}

fn found(trainer: u32, node: u32) -> Event {
    Event::WorkerFound {
        trainer: TrainerId(trainer),
        node: NodeId(node),
    }
}

fn started(trainer: u32, node: u32, generation: u64) -> Event {
    Event::WorkerStarted {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        generation,
    }
}

fn stopped(trainer: u32, node: u32, generation: u64, outcome: Outcome) -> Event {
    Event::WorkerStopped {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        generation,
        outcome,
    }
}

fn failed() -> Outcome {
    Outcome::Failed {
        exit_code: 1,
        reason: "local rank 0 exited 1".to_owned(),
    }
}

fn lost(trainer: u32, node: u32, reason: LossReason) -> Event {
    Event::WorkerLost {
        trainer: TrainerId(trainer),
        node: NodeId(node),
        reason,
    }
}

fn progress(trainer: u32, generation: u64, samples: u64) -> Event {
    Event::Progress {
        trainer: TrainerId(trainer),
        generation,
        samples,
    }
}

fn nodes(nodes: &[u32]) -> Vec<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

/// The nodes of the placements among `actions`.
fn placed(actions: &[Action]) -> Vec<u32> {
    let place = |action: &Action| match action {
        Action::Place { node, .. } => Some(node.0),
        _ => None,
    };
    actions.iter().filter_map(place).collect()
}

/// The nodes that are left among `actions`.
fn leaving(actions: &[Action]) -> Vec<u32> {
    let leave = |action: &Action| match action {
        Action::Leave { node, .. } => Some(node.0),
        _ => None,
    };
    actions.iter().filter_map(leave).collect()
}

fn start(trainer: u32, generation: u64, members: &[u32]) -> Action {
    Action::Start {
        trainer: TrainerId(trainer),
        generation,
        members: nodes(members),
    }
}

fn stop(trainer: u32, generation: u64, on: &[u32], grace_s: f64) -> Action {
    Action::Stop {
        trainer: TrainerId(trainer),
        generation,
        nodes: nodes(on),
        grace_s,
    }
}
