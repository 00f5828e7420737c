//! The engine's actions: changes in Slurm, messages to agents.

use bftrainer::wire::{Member, Start, ToAgent};
use bftrainer_core::engine::{Action, Event};
use bftrainer_core::node::NodeId;
use bftrainer_core::trainer::TrainerId;

use super::agents::TaskKey;
use super::brain::{Brain, WantedPlacement};
use super::observe::tasks;
use super::slurm_thread::{ChangeKind, Purpose};
use super::task::Plan;
use crate::slurm::TaskUpdate;

impl Brain {
    pub(super) fn act(&mut self, now_s: f64, action: Action) {
        match action {
            Action::Place { trainer, node, .. } => {
                let node = self.engine.names.name(node).to_owned();
                self.accounting.placed(&node, now_s);
                self.wanted.push_back(WantedPlacement { trainer, node });
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
                self.close(now_s, trainer, exit_code, "");
            }
            Action::Fail {
                trainer,
                exit_code,
                reason,
            } => {
                log::warn!("T{trainer} {reason}");
                self.close(now_s, trainer, exit_code, &reason);
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
        // An agent may say hello before a look shows its task running.
        let has_agent = self.agents.get((id, task_id)).is_some();
        let Some(task) = self
            .arrays
            .get_mut(&id)
            .and_then(|array| array.tasks.get_mut(&task_id))
        else {
            return;
        };
        let waits = matches!(task.plan, Plan::Placing { .. } | Plan::Placed { .. })
            && !task.runs()
            && !has_agent;
        task.plan = Plan::Leaving { node: name.clone() };
        self.accounting.leave_ordered(&name, now_s);
        let kind = if waits {
            ChangeKind::Update(TaskUpdate::hold())
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
}
