//! The agents' part of the world: hellos, ranks that start and stop, the control
//! folder with its fence, messages that get lost with their connection.

use bftrainer_core::engine::{Event, LossReason, Outcome};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::TrainerId;

use super::{Plan, Task, TaskState, What, World};

/// A worker agent.
#[derive(Debug, Default)]
pub(super) struct Agent {
    pub alive: bool,
    /// The network to it is cut.
    pub cut_off: bool,
    pub connected: bool,
    pub connection: u64,
    /// The controller's life in which it said hello last.
    pub joined_life: u64,
    pub ranks: Option<Ranks>,
    /// A start that waits for the end of the ranks that run.
    pending: Option<(u64, Vec<NodeId>)>,
    newest_seen: u64,
    last_stopped: Option<(u64, Outcome)>,
    /// Messages arrive in order: when the last one does, epoch seconds.
    last_message_s: f64,
    serial: u64,
}

/// One generation's ranks on one node.
#[derive(Debug)]
pub(super) struct Ranks {
    pub generation: u64,
    pub members: Vec<NodeId>,
    pub state: RanksState,
    /// Changes with the state; steps for an older one are void.
    pub serial: u64,
    /// The control folder's file system hangs.
    pub is_hung: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RanksState {
    Preparing { cancelled: bool },
    Running,
    Ending(Outcome),
}

/// Ranks that were killed are gone within this time, seconds.
const KILL_S: f64 = 0.1;

impl World {
    pub(super) fn hello(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if !self.up || !task.agent.alive || task.agent.cut_off || task.agent.connected {
            return;
        }
        if task.plan == Plan::Rest {
            // The controller has not seen this task yet: the agent waits.
            return self.plan(1.0, What::Hello(id));
        }
        if !matches!(task.plan, Plan::Placed | Plan::Runs) {
            return;
        }
        let (trainer, node) = (task.trainer, task.node);
        let agent = &mut task.agent;
        agent.connected = true;
        agent.connection += 1;
        agent.joined_life = self.life;
        agent.last_message_s = self.now_s;
        let Some(program) = self.trainers.get(&trainer) else {
            return;
        };
        if let Some(exit_code) = program.verdict {
            self.tell(Event::Finished { trainer, exit_code });
            return;
        }
        let running = agent
            .ranks
            .as_ref()
            .filter(|ranks| !matches!(ranks.state, RanksState::Preparing { .. }))
            .map(|ranks| (ranks.generation, ranks.members.clone()));
        let is_idle = agent.ranks.is_none();
        let newest_generation = program.folder_generation.max(agent.newest_seen);
        let last_stopped = agent.last_stopped.clone().filter(|_| is_idle);
        let is_live = program.is_live;
        self.tell(Event::TrainerMode { trainer, is_live });
        self.tell(Event::WorkerReady {
            trainer,
            node,
            running,
            newest_generation,
        });
        if let Some((generation, outcome)) = last_stopped {
            self.report_stopped(id, generation, outcome);
        }
    }

    /// The agent says something; it is lost with the connection.
    pub(super) fn report(&mut self, id: u64, event: Event) {
        let delay_s = self.dice.between(0.001, 0.05);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if task.agent.connected {
            let time_s = (self.now_s + delay_s).max(task.agent.last_message_s);
            task.agent.last_message_s = time_s;
            let connection = task.agent.connection;
            self.plan(
                time_s - self.now_s,
                What::Message(id, connection, Box::new(event)),
            );
        }
    }

    pub(super) fn message(&mut self, id: u64, connection: u64, event: Event) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let agent = &task.agent;
        if agent.connected
            && agent.connection == connection
            && agent.joined_life == self.life
            && matches!(task.plan, Plan::Placed | Plan::Runs)
        {
            self.tell(event);
        }
    }

    fn report_stopped(&mut self, id: u64, generation: u64, outcome: Outcome) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.agent.last_stopped = Some((generation, outcome.clone()));
        let (trainer, node) = (task.trainer, task.node);
        self.report(
            id,
            Event::WorkerStopped {
                trainer,
                node,
                generation,
                outcome,
            },
        );
    }

    fn report_started(&mut self, id: u64, generation: u64) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let (trainer, node) = (task.trainer, task.node);
        self.report(
            id,
            Event::WorkerStarted {
                trainer,
                node,
                generation,
            },
        );
    }

    /// The controller tells the agent to start a generation.
    pub(super) fn agent_starts(&mut self, id: u64, generation: u64, members: &[NodeId]) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let is_live = self
            .trainers
            .get(&task.trainer)
            .is_some_and(|it| it.is_live);
        let agent = &mut task.agent;
        if let Some(ranks) = &mut agent.ranks
            && is_live
            && !matches!(ranks.state, RanksState::Preparing { .. })
            && (ranks.generation == generation || generation > agent.newest_seen)
        {
            agent.newest_seen = generation;
            ranks.generation = generation;
            ranks.members = members.to_vec();
            return self.update(id, generation);
        }
        let prepared = agent.ranks.as_ref().map(|ranks| ranks.generation);
        let pending = agent.pending.as_ref().map(|(pending, _)| *pending);
        if [prepared, pending].contains(&Some(generation)) {
            return;
        }
        if generation <= agent.newest_seen {
            let newest_generation = agent.newest_seen;
            let fenced = Outcome::Fenced { newest_generation };
            return self.report_stopped(id, generation, fenced);
        }
        if agent.ranks.is_some() {
            agent.pending = Some((generation, members.to_vec()));
            self.end_ranks_within(id, KILL_S, Outcome::Stopped);
        } else {
            self.prepare(id, generation, members.to_vec());
        }
    }

    /// Live ranks go on in another generation.
    fn update(&mut self, id: u64, generation: u64) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let (trainer, node) = (task.trainer, task.node);
        let (Some(ranks), Some(program)) = (&task.agent.ranks, self.trainers.get_mut(&trainer))
        else {
            return;
        };
        if ranks.state != RanksState::Running {
            return;
        }
        let newest_generation = program.folder_generation;
        let is_master = ranks.members.first() == Some(&node);
        if newest_generation > generation {
            if is_master {
                self.end_ranks_within(id, KILL_S, Outcome::Fenced { newest_generation });
            }
            return;
        }
        if is_master && newest_generation < generation {
            program.folder_generation = generation;
            program.folder_members = ranks.members.clone();
            self.raise_fence(trainer, generation);
        }
        self.report_started(id, generation);
    }

    fn prepare(&mut self, id: u64, generation: u64, members: Vec<NodeId>) {
        let is_hung = self.faults && self.dice.chance(0.01);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let agent = &mut task.agent;
        agent.newest_seen = agent.newest_seen.max(generation);
        agent.serial += 1;
        let serial = agent.serial;
        agent.ranks = Some(Ranks {
            generation,
            members,
            state: RanksState::Preparing { cancelled: false },
            serial,
            is_hung,
        });
        if !is_hung {
            self.plan_within(0.02, 1.0, What::Step(id, serial));
        }
    }

    /// The controller tells the agent to stop a generation.
    pub(super) fn agent_stops(&mut self, id: u64, generation: u64, grace_s: f64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let program = self.trainers.get(&task.trainer);
        let is_live = program.is_some_and(|program| program.is_live);
        let agent = &mut task.agent;
        // A number that was stopped is not used again.
        agent.newest_seen = agent.newest_seen.max(generation);
        if let Some(ranks) = &mut agent.ranks
            && (ranks.generation == generation || is_live && ranks.generation < generation)
        {
            ranks.generation = generation;
            agent.pending.take_if(|(pending, _)| *pending <= generation);
            if let RanksState::Preparing { cancelled } = &mut ranks.state {
                *cancelled = true;
                return;
            }
            let is_whole = ranks.state == RanksState::Running;
            if let Some(program) = self.trainers.get_mut(&task.trainer)
                && is_whole
                && grace_s > 0.0
            {
                program.checkpoint = program.samples;
            }
            let save_s = self.dice.between(0.05, 2.0);
            let within_s = if grace_s > 0.0 {
                save_s.min(grace_s)
            } else {
                KILL_S
            };
            return self.end_ranks_within(id, within_s, Outcome::Stopped);
        }
        if agent
            .pending
            .as_ref()
            .is_some_and(|(pending, _)| *pending == generation)
        {
            agent.pending = None;
        }
        let outcome = match &agent.last_stopped {
            Some((last, outcome)) if *last == generation => outcome.clone(),
            _ => Outcome::Stopped,
        };
        self.report_stopped(id, generation, outcome);
    }

    /// Ranks that run end; those that are ending already keep their outcome.
    pub(super) fn end_ranks_within(&mut self, id: u64, within_s: f64, outcome: Outcome) {
        let Some(ranks) = self
            .tasks
            .get_mut(&id)
            .and_then(|task| task.agent.ranks.as_mut())
        else {
            return;
        };
        match &mut ranks.state {
            RanksState::Preparing { cancelled } => *cancelled = true,
            RanksState::Running => {
                ranks.state = RanksState::Ending(outcome);
                ranks.serial += 1;
                let serial = ranks.serial;
                self.tasks.get_mut(&id).expect("just found").agent.serial = serial;
                self.plan_within(0.01, within_s.max(0.02), What::Step(id, serial));
            }
            RanksState::Ending(_) => {
                let serial = ranks.serial;
                self.plan_within(0.01, within_s.max(0.02), What::Step(id, serial));
            }
        }
    }

    pub(super) fn step(&mut self, id: u64, serial: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let Some(ranks) = &mut task.agent.ranks else {
            return;
        };
        if ranks.serial != serial {
            return;
        }
        match ranks.state.clone() {
            RanksState::Preparing { cancelled: true } => self.ranks_ended(id, Outcome::Stopped),
            RanksState::Preparing { cancelled: false } => self.prepared(id),
            RanksState::Running => {}
            RanksState::Ending(outcome) => self.ranks_ended(id, outcome),
        }
    }

    /// The control folder is claimed or checked; then the ranks run.
    fn prepared(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let (trainer, node) = (task.trainer, task.node);
        let (Some(ranks), Some(program)) = (&mut task.agent.ranks, self.trainers.get_mut(&trainer))
        else {
            return;
        };
        let (generation, is_master) = (ranks.generation, ranks.members.first() == Some(&node));
        let newest = program.folder_generation;
        if newest > generation || is_master && newest == generation {
            task.agent.newest_seen = task.agent.newest_seen.max(newest);
            let newest_generation = newest;
            return self.ranks_ended(id, Outcome::Fenced { newest_generation });
        }
        ranks.state = RanksState::Running;
        if is_master {
            program.folder_generation = generation;
            program.folder_members = ranks.members.clone();
            program.samples = program.checkpoint;
            self.raise_fence(trainer, generation);
        }
        self.report_started(id, generation);
        if self.faults && self.dice.chance(0.02) {
            self.program_fails(id, 1);
        }
    }

    /// Whoever runs an older generation sees the new number within a heartbeat.
    fn raise_fence(&mut self, trainer: TrainerId, generation: u64) {
        let older: Vec<(u64, u64)> = self
            .ranks_of(trainer)
            .filter(|(_, _, ranks)| ranks.generation < generation)
            .map(|(id, _, ranks)| (id, ranks.serial))
            .collect();
        for (id, serial) in older {
            self.plan_within(0.0, 2.0, What::Fence(id, serial));
        }
    }

    pub(super) fn ranks_of(
        &self,
        trainer: TrainerId,
    ) -> impl Iterator<Item = (u64, &Task, &Ranks)> {
        self.tasks
            .iter()
            .filter(move |(_, task)| task.trainer == trainer)
            .filter_map(|(id, task)| Some((*id, task, task.agent.ranks.as_ref()?)))
    }

    pub(super) fn fence(&mut self, id: u64, serial: u64) {
        if let Some(task) = self.tasks.get(&id)
            && task.agent.serial == serial
            && self.trainers.get(&task.trainer).is_none_or(|program| {
                // Members that live on need not have heard of it yet.
                !program.is_live || !program.folder_members.contains(&task.node)
            })
        {
            let newest_generation = self
                .trainers
                .get(&task.trainer)
                .map_or(0, |program| program.folder_generation);
            self.end_ranks_within(id, KILL_S, Outcome::Fenced { newest_generation });
        }
    }

    fn ranks_ended(&mut self, id: u64, outcome: Outcome) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let Some(ranks) = task.agent.ranks.take() else {
            return;
        };
        let pending = task.agent.pending.take();
        self.report_stopped(id, ranks.generation, outcome);
        if let Some((generation, members)) = pending {
            self.prepare(id, generation, members);
        }
    }

    /// The agent and its ranks are gone at once.
    pub(super) fn kill_agent(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.agent.alive = false;
        task.agent.connected = false;
        let trainer = task.trainer;
        if let Some(ranks) = task.agent.ranks.take() {
            self.bereave(trainer, ranks.generation);
        }
    }

    /// The agent's connection breaks; it connects anew after `away_s`.
    pub(super) fn disconnect(&mut self, id: u64, away_s: Option<f64>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if !task.agent.connected {
            return;
        }
        task.agent.connected = false;
        let connection = task.agent.connection;
        match away_s {
            Some(away_s) => self.plan(away_s, What::Hello(id)),
            None => task.agent.cut_off = true,
        }
        self.plan_within(6.0, 7.5, What::Silence(id, connection));
    }

    pub(super) fn silence(&mut self, id: u64, connection: u64) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        if !task.agent.connected
            && task.agent.connection == connection
            && task.agent.joined_life == self.life
            && matches!(task.plan, Plan::Placed | Plan::Runs)
        {
            let (trainer, node) = (task.trainer, task.node);
            self.tell(Event::WorkerLost {
                trainer,
                node,
                reason: LossReason::Silent,
            });
        }
    }

    /// The node loses its power.
    pub(super) fn crash(&mut self, node: NodeId) {
        if let Some(crashed) = self.nodes.get_mut(&node) {
            crashed.dead = true;
        }
        for id in self.running_on(node) {
            self.disconnect(id, None);
            self.kill_agent(id);
        }
    }
}

impl Task {
    /// Whether its processes are there.
    pub(super) fn runs(&self) -> bool {
        self.state == TaskState::Running
    }
}
