//! The agents that are, or were lately, connected.

use std::collections::BTreeMap;

use bftrainer::wire::{Join, MISSED_HEARTBEATS, ToAgent};
use tokio::sync::mpsc::UnboundedSender;

/// How long a join waits for Slurm to show its task, seconds. Below the agent's
/// patience with an unanswered join, 10 s.
const PARKED_S: f64 = 8.0;

/// A task: array job id and task number.
pub type TaskKey = (u32, u32);

/// One agent.
#[derive(Debug)]
pub struct Agent {
    /// Number of its newest connection.
    pub connection: u64,
    /// Its node.
    pub node: String,
    /// Restarts of its task before the run that it is of.
    pub restart_count: u32,
    /// Messages to it; `None` while it is away.
    to_agent: Option<UnboundedSender<ToAgent>>,
    /// When it was last heard, epoch seconds.
    pub heard_s: f64,
    /// The port it offers for a master.
    pub free_port: u16,
    /// The end of its task that it was told, epoch seconds.
    pub told_end_s: Option<i64>,
}

/// A join that waits until Slurm shows its task.
#[derive(Debug)]
pub struct Parked {
    /// Number of its connection.
    pub connection: u64,
    /// Proven uid.
    pub uid: u32,
    /// Who it says it is.
    pub join: Join,
    /// Messages to it.
    pub to_agent: UnboundedSender<ToAgent>,
    /// Since when it waits, epoch seconds.
    pub since_s: f64,
}

/// All agents.
#[derive(Debug)]
pub struct Agents {
    by_task: BTreeMap<TaskKey, Agent>,
    by_connection: BTreeMap<u64, TaskKey>,
    parked: Vec<Parked>,
    heartbeat_s: f64,
}

impl Agents {
    /// No agents; they are lost after three missed heartbeats.
    pub fn new(heartbeat_s: f64) -> Self {
        Agents {
            by_task: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            parked: Vec::new(),
            heartbeat_s,
        }
    }

    /// Adds an agent, or its new connection.
    pub fn insert(
        &mut self,
        now_s: f64,
        connection: u64,
        join: &Join,
        to_agent: UnboundedSender<ToAgent>,
    ) {
        let key = (join.array_job_id, join.array_task_id);
        let agent = Agent {
            connection,
            node: join.node.clone(),
            restart_count: join.restart_count,
            to_agent: Some(to_agent),
            heard_s: now_s,
            free_port: join.free_port,
            told_end_s: None,
        };
        if let Some(old) = self.by_task.insert(key, agent) {
            self.by_connection.remove(&old.connection);
        }
        self.by_connection.insert(connection, key);
    }

    /// Keeps a join until Slurm shows its task.
    pub fn park(&mut self, parked: Parked) {
        self.parked.push(parked);
    }

    /// Whether joins wait for a look at Slurm.
    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// The joins that wait for Slurm to show their tasks.
    pub fn parked(&self) -> &[Parked] {
        &self.parked
    }

    /// Takes all waiting joins.
    pub fn take_parked(&mut self) -> Vec<Parked> {
        std::mem::take(&mut self.parked)
    }

    /// Whether a waiting join has waited too long.
    pub fn is_overdue(parked: &Parked, now_s: f64) -> bool {
        now_s - parked.since_s > PARKED_S
    }

    /// Marks the agent behind a connection as heard and names its task.
    pub fn heard(&mut self, connection: u64, now_s: f64) -> Option<TaskKey> {
        let key = *self.by_connection.get(&connection)?;
        self.by_task.get_mut(&key)?.heard_s = now_s;
        Some(key)
    }

    /// A connection has ended; its agent may come back.
    pub fn disconnected(&mut self, connection: u64, now_s: f64) {
        self.parked.retain(|parked| parked.connection != connection);
        let Some(key) = self.by_connection.remove(&connection) else {
            return;
        };
        if let Some(agent) = self.by_task.get_mut(&key) {
            agent.to_agent = None;
            agent.heard_s = agent.heard_s.max(now_s - self.heartbeat_s);
        }
    }

    /// The agent of a task.
    pub fn get(&self, key: TaskKey) -> Option<&Agent> {
        self.by_task.get(&key)
    }

    /// The agent of a task.
    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Agent> {
        self.by_task.get_mut(&key)
    }

    /// Forgets a task's agent; its connection ends.
    pub fn remove(&mut self, key: TaskKey) {
        if let Some(agent) = self.by_task.remove(&key) {
            self.by_connection.remove(&agent.connection);
        }
    }

    /// Sends to a task's agent; whether it is connected.
    pub fn send(&self, key: TaskKey, message: ToAgent) -> bool {
        self.by_task
            .get(&key)
            .and_then(|agent| agent.to_agent.as_ref())
            .is_some_and(|to_agent| to_agent.send(message).is_ok())
    }

    /// Connected agents.
    pub fn connected(&self) -> usize {
        self.by_task
            .values()
            .filter(|agent| agent.to_agent.is_some())
            .count()
    }

    /// Counts all as heard now.
    pub fn forgive(&mut self, now_s: f64) {
        for agent in self.by_task.values_mut() {
            agent.heard_s = now_s;
        }
    }

    /// Removes and returns those not heard for too long, with their nodes.
    pub fn take_silent(&mut self, now_s: f64) -> Vec<(TaskKey, String)> {
        let deadline_s = now_s - MISSED_HEARTBEATS * self.heartbeat_s;
        let silent: Vec<(TaskKey, String)> = self
            .by_task
            .iter()
            .filter(|(_, agent)| agent.heard_s < deadline_s)
            .map(|(key, agent)| (*key, agent.node.clone()))
            .collect();
        for (key, _) in &silent {
            self.remove(*key);
        }
        silent
    }
}
