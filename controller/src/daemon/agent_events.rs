//! What agents say, checked and told to the engine.

use bftrainer::wire::{FromAgent, Join, Outcome, ToAgent};
use bftrainer_core::engine::{self, Event, LossReason};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::TrainerId;
use tokio::sync::mpsc::UnboundedSender;

use super::agents::{Parked, TaskKey};
use super::brain::Brain;
use super::placements::SHORTEST_LIMIT_MIN;
use super::task::{Plan, Task};
use crate::metrics::Departure;

impl Brain {
    pub(super) fn agent_joined(
        &mut self,
        now_s: f64,
        connection: u64,
        uid: u32,
        join: Join,
        to_agent: UnboundedSender<ToAgent>,
        events: &mut Vec<Event>,
    ) {
        let parked = Parked {
            connection,
            uid,
            join,
            to_agent,
            since_s: now_s,
        };
        if self.has_seen {
            self.consider_join(now_s, parked, events);
        } else {
            self.agents.park(parked);
        }
    }

    /// Lets an agent in when Slurm shows its task on its node; until Slurm does,
    /// it waits.
    pub(super) fn consider_join(&mut self, now_s: f64, parked: Parked, events: &mut Vec<Event>) {
        let join = &parked.join;
        let Some(array) = self.arrays.get(&join.array_job_id) else {
            self.agents.park(parked);
            return;
        };
        if parked.uid != array.owner_uid {
            let reason = format!("job {} belongs to another user", join.array_job_id);
            self.refuse_agent(&parked, &reason);
            return;
        }
        let (Some(spec), Some(task)) = (array.spec(), array.tasks.get(&join.array_task_id)) else {
            self.agents.park(parked);
            return;
        };
        if !is_expected(task, join, array.verdict.is_some()) {
            self.agents.park(parked);
            return;
        }
        let end_time_s = self.end_of(task);
        let welcome = ToAgent::Joined {
            min_nodes: spec.min_nodes,
            max_nodes: spec.max_nodes,
            submit_time_s: array.submit_time_s,
            heartbeat_s: self.config.heartbeat_s,
            grace_s: self.config.engine.grace_s,
            end_time_s,
            time_s: Some(now_s),
        };
        if parked.to_agent.send(welcome).is_err() {
            return;
        }
        if let Some(exit_code) = array.verdict {
            // The connection may have ended; then the agent comes again.
            let _ = parked.to_agent.send(ToAgent::Close { exit_code });
            return;
        }
        // Files of an earlier trainer of the same number say nothing.
        let files_are_ours = join.folder_submit_time_s == Some(array.submit_time_s);
        self.let_in(now_s, parked, end_time_s, files_are_ours, events);
    }

    /// Takes an agent that was welcomed into account.
    fn let_in(
        &mut self,
        now_s: f64,
        parked: Parked,
        end_time_s: Option<i64>,
        files_are_ours: bool,
        events: &mut Vec<Event>,
    ) {
        let Parked {
            connection,
            join,
            to_agent,
            ..
        } = parked;
        for suspected in &mut self.suspected_preemptions {
            if suspected.node == join.node {
                // Slurm tells starts in whole seconds.
                suspected.until_s.get_or_insert(now_s - 1.0);
            }
        }
        self.agents.insert(now_s, connection, &join, to_agent);
        let key = (join.array_job_id, join.array_task_id);
        if let Some(agent) = self.agents.get_mut(key) {
            agent.told_end_s = end_time_s;
        }
        let trainer = TrainerId(join.array_job_id);
        if let Some(exit_code) = join.verdict.filter(|_| files_are_ours) {
            events.push(Event::Finished { trainer, exit_code });
            return;
        }
        events.push(Event::TrainerMode {
            trainer,
            is_live: join.live,
        });
        let running = join.generation.map(|generation| {
            let members = join
                .members
                .iter()
                .map(|name| self.engine.names.intern(name));
            (generation, members.collect())
        });
        events.push(Event::WorkerReady {
            trainer,
            node: self.engine.names.intern(&join.node),
            running,
            newest_generation: match files_are_ours {
                true => join.newest_generation,
                false => 0,
            },
        });
    }

    /// When Slurm ends a task whose agent is here, epoch seconds. One that no look has shown
    /// running began after the last look; should this daemon die before the next one, its
    /// agent goes by that.
    fn end_of(&self, task: &Task) -> Option<i64> {
        if task.runs() {
            return (task.end_time_s > 0).then_some(task.end_time_s);
        }
        let placed = matches!(task.plan, Plan::Placed { .. });
        placed.then(|| self.last_look_s() as i64 + i64::from(SHORTEST_LIMIT_MIN) * 60)
    }

    pub(super) fn refuse_agent(&mut self, parked: &Parked, reason: &str) {
        if let Some(more) = self.refusals.due() {
            log::warn!(
                "agent of {}_{} on {} refused: {reason}{more}",
                parked.join.array_job_id,
                parked.join.array_task_id,
                parked.join.node
            );
        }
        // The agent may have gone away by itself.
        let _ = parked.to_agent.send(ToAgent::Refused {
            reason: reason.to_owned(),
        });
    }

    pub(super) fn agent_message(
        &mut self,
        now_s: f64,
        connection: u64,
        message: FromAgent,
        events: &mut Vec<Event>,
    ) {
        let Some(key) = self.agents.heard(connection, now_s) else {
            return;
        };
        let Some((trainer, node)) = self.agent_place(key) else {
            return;
        };
        match message {
            FromAgent::Heartbeat => {
                self.agents.send(key, ToAgent::Heartbeat);
            }
            FromAgent::Started { generation } => {
                self.accounting.started(self.engine.names.name(node), now_s);
                events.push(Event::WorkerStarted {
                    trainer,
                    node,
                    generation,
                });
            }
            FromAgent::Stopped {
                generation,
                outcome,
                free_port,
            } => {
                if let Some(agent) = self.agents.get_mut(key) {
                    agent.free_port = free_port;
                }
                let outcome = match outcome {
                    Outcome::Stopped => engine::Outcome::Stopped,
                    Outcome::Exited => engine::Outcome::Exited,
                    Outcome::Fenced { newest_generation } => {
                        engine::Outcome::Fenced { newest_generation }
                    }
                    Outcome::Failed { exit_code, reason } => {
                        engine::Outcome::Failed { exit_code, reason }
                    }
                };
                events.push(Event::WorkerStopped {
                    trainer,
                    node,
                    generation,
                    outcome,
                });
            }
            FromAgent::Progress(progress) => {
                if let Some(array) = self.arrays.get_mut(&key.0) {
                    events.push(Event::Progress {
                        trainer,
                        generation: progress.generation.unwrap_or(0),
                        samples: progress.samples,
                    });
                    array.pace.report(now_s, progress.samples);
                    array.progress = progress;
                }
            }
            FromAgent::Leaving { reason, preempted } => {
                self.agent_leaves(now_s, key, node, &reason, preempted, events);
            }
        }
    }

    fn agent_leaves(
        &mut self,
        now_s: f64,
        key: TaskKey,
        node: NodeId,
        reason: &str,
        preempted: bool,
        events: &mut Vec<Event>,
    ) {
        let name = self.engine.names.name(node).to_owned();
        self.agents.remove(key);
        let Some(task) = self
            .arrays
            .get_mut(&key.0)
            .and_then(|array| array.tasks.get_mut(&key.1))
        else {
            return;
        };
        if !matches!(task.plan, Plan::Placed { .. } | Plan::Runs { .. }) {
            // It leaves as told.
            return;
        }
        log::info!("T{}_{} leaves {name}: {reason}", key.0, key.1);
        task.plan = Plan::Gone {
            restart_count: task.restart_count,
            since_s: now_s,
        };
        task.left.leaves(&name, now_s);
        let reason = if preempted {
            self.taken_from(key.0, &name, Departure::Graceful, now_s);
            self.doubt_pool(now_s, events);
            LossReason::Preempted
        } else {
            LossReason::Ended
        };
        events.push(Event::WorkerLost {
            trainer: TrainerId(key.0),
            node,
            reason,
        });
    }

    /// Whose agent this is, and on which node.
    fn agent_place(&mut self, key: TaskKey) -> Option<(TrainerId, NodeId)> {
        let node = self.agents.get(key)?.node.clone();
        Some((TrainerId(key.0), self.engine.names.intern(&node)))
    }

    pub(super) fn lose_silent_agents(&mut self, now_s: f64, events: &mut Vec<Event>) {
        for (key, name) in self.agents.take_silent(now_s) {
            let Some(array) = self.arrays.get_mut(&key.0) else {
                continue;
            };
            let closing = array.verdict.is_some();
            let Some(task) = array.tasks.get_mut(&key.1) else {
                continue;
            };
            if !matches!(task.plan, Plan::Placed { .. } | Plan::Runs { .. }) {
                continue;
            }
            if closing {
                // It has most likely ended, though no look has shown it yet.
                task.plan = Plan::Gone {
                    restart_count: task.restart_count,
                    since_s: now_s,
                };
                continue;
            }
            log::warn!("T{}_{}: its agent on {name} fell silent", key.0, key.1);
            let node = self.engine.names.intern(&name);
            events.push(Event::WorkerLost {
                trainer: TrainerId(key.0),
                node,
                reason: LossReason::Silent,
            });
        }
    }
}

/// Whether the agent's task was placed on its node and, as far as Slurm shows, is in the run
/// that the agent was started in.
fn is_expected(task: &Task, join: &Join, is_closing: bool) -> bool {
    match &task.plan {
        Plan::Placed { node, .. } => *node == join.node,
        Plan::Runs {
            node,
            restart_count,
        } => *node == join.node && *restart_count == join.restart_count,
        // The rest of an ended trainer is not placed.
        Plan::Rest | Plan::Closing { .. } => is_closing,
        _ => false,
    }
}
