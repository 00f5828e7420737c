//! The engine's actions: changes in Slurm, messages to agents.

use bftrainer::spec::AdminComment;
use bftrainer::wire::{Member, Start, ToAgent};
use bftrainer_core::engine::{Action, Event, PlaceFault};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::TrainerId;

use super::agents::TaskKey;
use super::brain::{Brain, WantedPlacement};
use super::observe::tasks;
use super::slurm_thread::{Change, ChangeKind, Purpose};
use super::tasks::{Admission, Plan, Task};
use crate::config::Closing;
use crate::slurm::{SlurmError, TaskName, TaskUpdate};

/// The same task must not return to the node that it left within this time:
/// Slurm revokes the credential of the new run with the old one's, seconds.
const SAME_NODE_PAUSE_S: f64 = 3.5;

/// A closed task has this long, minutes.
const CLOSE_LIMIT_MIN: u32 = 1;

impl Brain {
    pub(super) fn act(&mut self, now_s: f64, action: Action) {
        match action {
            Action::Place {
                trainer,
                node,
                limit_s,
            } => {
                let node = self.engine.names.name(node).to_owned();
                self.accounting.placed(&node, now_s);
                self.wanted.push_back(WantedPlacement {
                    trainer,
                    node,
                    limit_s,
                    since_s: now_s,
                });
            }
            Action::Leave {
                trainer,
                node,
                reason,
            } => self.leave(now_s, trainer, node, &reason),
            Action::Start {
                trainer,
                generation,
                members,
            } => {
                self.start(trainer, generation, &members);
            }
            Action::Stop {
                trainer,
                generation,
                nodes,
                grace_s,
            } => {
                for node in nodes {
                    if let Some(key) = self.task_key(trainer, node) {
                        self.agents.send(
                            key,
                            ToAgent::Stop {
                                generation,
                                grace_s,
                            },
                        );
                    }
                }
            }
            Action::Close { trainer, exit_code } => {
                log::info!("T{trainer} has finished with exit code {exit_code}");
                self.close(trainer, exit_code, "");
            }
            Action::Fail {
                trainer,
                exit_code,
                reason,
            } => {
                log::warn!("T{trainer} {reason}");
                self.close(trainer, exit_code, &reason);
            }
            Action::WakeAt { time_s } => self.wake_engine_at(time_s),
        }
    }

    fn task_key(&self, trainer: TrainerId, node: NodeId) -> Option<TaskKey> {
        let task = self
            .arrays
            .get(&trainer.0)?
            .task_on(self.engine.names.name(node))?;
        Some((trainer.0, task))
    }

    /// Sends placements as fast as `max_starts_per_s` allows.
    pub(super) fn send_placements(&mut self, now_s: f64) {
        let rate = f64::from(self.config.max_starts_per_s);
        self.start_tokens =
            (self.start_tokens + (now_s - self.tokens_at_s).max(0.0) * rate).min(rate);
        self.tokens_at_s = now_s;
        for _ in 0..self.wanted.len() {
            if self.start_tokens < 1.0 {
                return;
            }
            let Some(wanted) = self.wanted.pop_front() else {
                return;
            };
            if self.is_still_wanted(&wanted) && !self.place(now_s, &wanted) {
                self.wanted.push_back(wanted);
            }
        }
    }

    fn is_still_wanted(&self, wanted: &WantedPlacement) -> bool {
        let Some(node) = self.engine.names.id(&wanted.node) else {
            return false;
        };
        self.engine
            .pool()
            .get(&node)
            .is_some_and(|node| node.worker_of(wanted.trainer).is_some())
    }

    /// Asks Slurm to run one of the trainer's waiting tasks on a node; whether
    /// there was one.
    fn place(&mut self, now_s: f64, wanted: &WantedPlacement) -> bool {
        let id = wanted.trainer.0;
        let has_end = self.planned.contains_key(&wanted.node);
        let Some(array) = self.arrays.get_mut(&id) else {
            return true;
        };
        if array.task_on(&wanted.node).is_some() {
            // The task that was there has not gone yet.
            return false;
        }
        let just_left = |task: &Task| {
            task.left.as_ref().is_some_and(|(node, time_s)| {
                *node == wanted.node && now_s - time_s < SAME_NODE_PAUSE_S
            })
        };
        let free = array
            .tasks
            .iter_mut()
            .find(|(_, task)| task.plan == Plan::Rest && task.waits() && !just_left(task));
        let Some((task_id, task)) = free else {
            return false;
        };
        let task_id = *task_id;
        task.plan = Plan::Placing {
            node: wanted.node.clone(),
        };
        self.start_tokens -= 1.0;
        // Slurm counts in whole minutes; a limit that fits must not be rounded up.
        let waited_s = now_s - wanted.since_s;
        let minutes = if has_end {
            ((wanted.limit_s - waited_s) / 60.0).floor().max(1.0)
        } else {
            (wanted.limit_s / 60.0).ceil().max(1.0)
        };
        let update = TaskUpdate {
            required_nodes: Some(wanted.node.clone()),
            limit_min: Some(minutes as u32),
            begin_now: true,
            hold: Some(false),
            admin_comment: None,
        };
        self.change(
            tasks(id, vec![task_id]),
            ChangeKind::Update(update),
            Purpose::Place {
                node: wanted.node.clone(),
            },
        );
        true
    }

    fn leave(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, reason: &str) {
        let name = self.engine.names.name(node).to_owned();
        let Some((id, task_id)) = self.task_key(trainer, node) else {
            // It was never sent to Slurm.
            self.wanted
                .retain(|wanted| wanted.trainer != trainer || wanted.node != name);
            self.immediate_events
                .push(Event::WorkerGone { trainer, node });
            return;
        };
        log::debug!("T{id}_{task_id} leaves {name}: {reason}");
        let Some(task) = self
            .arrays
            .get_mut(&id)
            .and_then(|array| array.tasks.get_mut(&task_id))
        else {
            return;
        };
        let waits = matches!(task.plan, Plan::Placing { .. } | Plan::Placed { .. }) && !task.runs();
        task.plan = Plan::Leaving { node: name.clone() };
        self.accounting.leave_ordered(&name, now_s);
        let kind = if waits {
            ChangeKind::Update(TaskUpdate {
                hold: Some(true),
                ..TaskUpdate::default()
            })
        } else {
            ChangeKind::RequeueHold
        };
        self.change(
            tasks(id, vec![task_id]),
            kind,
            Purpose::Leave { node: name },
        );
    }

    fn start(&mut self, trainer: TrainerId, generation: u64, members: &[NodeId]) {
        let list: Vec<Member> = members
            .iter()
            .map(|node| {
                let node = self.engine.names.name(*node).to_owned();
                let address = self
                    .nodes
                    .get(&node)
                    .map_or_else(|| node.clone(), |record| record.address.clone());
                Member { node, address }
            })
            .collect();
        let master_port = members
            .first()
            .and_then(|node| self.task_key(trainer, *node))
            .and_then(|key| self.agents.get(key))
            .map_or(0, |agent| agent.free_port);
        log::info!(
            "T{trainer}: generation {generation} starts on {} nodes: {}",
            list.len(),
            list.iter()
                .map(|member| member.node.as_str())
                .collect::<Vec<_>>()
                .join(",")
        );
        for (rank, node) in (0..).zip(members) {
            let Some(key) = self.task_key(trainer, *node) else {
                continue;
            };
            let deadline_s = self.planned.get(self.engine.names.name(*node)).copied();
            let start = Start {
                generation,
                node_rank: rank,
                members: list.clone(),
                master_port,
                deadline_s,
            };
            self.agents.send(key, ToAgent::Start(start));
        }
    }

    /// Ends an array: agents exit with the code, the rest is released to end at
    /// once, or cancelled.
    fn close(&mut self, trainer: TrainerId, exit_code: i32, reason: &str) {
        let id = trainer.0;
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        array.verdict = Some(exit_code);
        let Some(spec) = array.spec() else {
            return;
        };
        let comment = AdminComment {
            spec: spec.clone(),
            submitted_s: array.submit_time_s,
            exit_code: Some(exit_code),
            reason: (!reason.is_empty()).then(|| reason.to_owned()),
        };
        let connected: Vec<u32> = array.tasks.keys().copied().collect();
        for task_id in connected {
            self.agents
                .send((id, task_id), ToAgent::Close { exit_code });
        }
        self.wanted.retain(|wanted| wanted.trainer != trainer);
        let update = TaskUpdate {
            admin_comment: Some(comment.to_string()),
            ..TaskUpdate::default()
        };
        self.change(
            TaskName::Array(id),
            ChangeKind::Update(update),
            Purpose::Close,
        );
        self.release_rest(id);
    }

    /// Releases, or cancels, the tasks of an ended trainer that wait.
    pub(super) fn release_rest(&mut self, id: u32) {
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        let mut rest = Vec::new();
        for (task_id, task) in &mut array.tasks {
            if task.waits() && task.held {
                task.plan = Plan::Rest;
                rest.push(*task_id);
            }
        }
        if rest.is_empty() {
            return;
        }
        let kind = match self.config.closing {
            Closing::Cancel => ChangeKind::Cancel,
            Closing::Run => ChangeKind::Update(TaskUpdate {
                required_nodes: Some(String::new()),
                limit_min: Some(CLOSE_LIMIT_MIN),
                begin_now: true,
                hold: Some(false),
                admin_comment: None,
            }),
        };
        self.change(tasks(id, rest), kind, Purpose::Close);
    }

    /// The result of a change that was asked for.
    pub(super) fn changed(
        &mut self,
        now_s: f64,
        change: Change,
        result: Result<(), SlurmError>,
        events: &mut Vec<Event>,
    ) {
        if let Err(error) = &result {
            log::debug!("{} {:?}: {error}", change.tasks, change.purpose);
        }
        match (change.purpose, change.tasks) {
            (Purpose::Admit, TaskName::Array(id)) => self.admitted(id, result, events),
            (
                Purpose::Place { node },
                TaskName::Task {
                    array_job_id,
                    array_task_id,
                },
            ) => {
                self.place_answered(now_s, (array_job_id, array_task_id), node, result, events);
            }
            (
                Purpose::Leave { node },
                TaskName::Task {
                    array_job_id,
                    array_task_id,
                },
            ) => {
                self.leave_answered(now_s, (array_job_id, array_task_id), node, result, events);
            }
            (purpose, tasks) => {
                if let Err(error) = result {
                    log::warn!("{tasks}: {purpose:?} was refused: {error}");
                }
            }
        }
    }

    fn admitted(&mut self, id: u32, result: Result<(), SlurmError>, events: &mut Vec<Event>) {
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        let Admission::Asked(spec) = array.admission.clone() else {
            return;
        };
        match result {
            Ok(()) => {
                log::info!("T{id} of {} admitted: {spec}", array.owner_name);
                array.admission = Admission::Admitted(spec);
                for task in array.tasks.values_mut() {
                    task.held = task.held || task.waits();
                }
                self.announce(id, events);
            }
            Err(error) => {
                log::warn!("T{id} could not be held: {error}; it is tried again");
                self.arrays.remove(&id);
            }
        }
    }

    fn place_answered(
        &mut self,
        now_s: f64,
        (id, task_id): TaskKey,
        node: String,
        result: Result<(), SlurmError>,
        events: &mut Vec<Event>,
    ) {
        let planned = self.planned.contains_key(&node);
        let backfill_s = f64::from(self.settings.backfill_interval_s);
        let patience_s = self.config.place_timeout_s + if planned { backfill_s } else { 0.0 };
        let Some(task) = self
            .arrays
            .get_mut(&id)
            .and_then(|array| array.tasks.get_mut(&task_id))
        else {
            return;
        };
        if !matches!(&task.plan, Plan::Placing { node: placing } if *placing == node) {
            return;
        }
        match result {
            Ok(()) => {
                task.held = false;
                task.plan = Plan::Placed {
                    node,
                    deadline_s: now_s + patience_s,
                };
            }
            Err(error) => {
                task.plan = Plan::Rest;
                let node_id = self.engine.names.intern(&node);
                events.push(Event::PlaceFailed {
                    trainer: TrainerId(id),
                    node: node_id,
                    fault: PlaceFault::Node,
                    reason: format!("T{id}: Slurm refused to place a task on {node}: {error}"),
                });
            }
        }
    }

    fn leave_answered(
        &mut self,
        now_s: f64,
        (id, task_id): TaskKey,
        node: String,
        result: Result<(), SlurmError>,
        events: &mut Vec<Event>,
    ) {
        let Some(task) = self
            .arrays
            .get_mut(&id)
            .and_then(|array| array.tasks.get_mut(&task_id))
        else {
            return;
        };
        if !matches!(&task.plan, Plan::Leaving { node: leaving } if *leaving == node) {
            return;
        }
        match result {
            Ok(()) => {
                let restart_count = task.restart_count;
                task.plan = Plan::Gone {
                    restart_count,
                    since_s: now_s,
                };
                task.left = Some((node.clone(), now_s));
                self.agents.remove((id, task_id));
                self.accounting.left(&node, now_s);
                self.departures.insert(node.clone(), now_s);
                let node = self.engine.names.intern(&node);
                events.push(Event::WorkerGone {
                    trainer: TrainerId(id),
                    node,
                });
            }
            Err(error) => {
                // It started or ended in this moment: what Slurm shows next decides.
                log::debug!("T{id}_{task_id} could not leave {node}: {error}");
                let restart_count = task.restart_count;
                if task.runs() {
                    task.plan = Plan::Runs {
                        node,
                        restart_count,
                    };
                }
            }
        }
    }
}
