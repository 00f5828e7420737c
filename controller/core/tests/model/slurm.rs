//! Slurm's part of the world, and the daemon's view of it: placements, leaves,
//! preemptions, looks.

use std::collections::BTreeSet;

use bftrainer_core::engine::{Event, LossReason, PlaceFault};
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::TrainerId;

use super::agents::Agent;
use super::{Plan, Task, TaskState, What, World, new_engine};

/// A released task that has not started after this is held again, seconds.
const PLACE_TIMEOUT_S: f64 = 12.0;

/// A node that a task left on order belongs to the pool for so long, seconds.
const DEPARTURE_S: f64 = 10.0;

impl World {
    pub(super) fn new_task(&mut self, trainer: TrainerId, node: NodeId, plan: Plan) -> u64 {
        self.newest_task += 1;
        let known = plan == Plan::Wanted;
        let task = Task {
            trainer,
            node,
            state: TaskState::Pending,
            plan,
            limited: self.faults && self.dice.chance(0.03),
            stuck: self.faults && self.dice.chance(0.03),
            mute: self.faults && self.dice.chance(0.03),
            deadline_s: self.now_s + PLACE_TIMEOUT_S,
            requeued: false,
            known_since_s: known.then_some(self.now_s),
            told_gone: false,
            given_up: false,
            heard: false,
            agent: Agent::default(),
        };
        self.tasks.insert(self.newest_task, task);
        self.newest_task
    }

    pub(super) fn want_placement(&mut self, trainer: TrainerId, node: NodeId) {
        if !self.trainers.contains_key(&trainer) {
            return;
        }
        let now_s = self.now_s;
        let there = self.tasks.values_mut().find(|task| {
            task.trainer == trainer
                && task.node == node
                && matches!(task.plan, Plan::Placed | Plan::Runs)
        });
        if let Some(task) = there {
            // A task that was placed before the node was away is still there.
            task.told_gone = false;
            task.given_up = false;
            task.known_since_s = Some(now_s);
            return;
        }
        let task = self.new_task(trainer, node, Plan::Wanted);
        self.plan_within(0.0, 0.1, What::Send(task));
    }

    pub(super) fn send_placement(&mut self, id: u64) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        let (trainer, node) = (task.trainer, task.node);
        let wanted = self.engine.pool().get(node);
        if wanted.is_none_or(|node| node.worker_of(trainer).is_none()) {
            self.tasks.remove(&id);
            return;
        }
        let others = || {
            self.tasks
                .iter()
                .filter(|(other, task)| **other != id && task.trainer == trainer)
        };
        let in_use = others()
            .filter(|(_, task)| task.plan != Plan::Wanted)
            .count();
        let has_not_left =
            others().any(|(_, task)| task.node == node && task.state != TaskState::Ended);
        if has_not_left || in_use >= self.trainers[&trainer].tasks {
            self.plan(0.1, What::Send(id));
            return;
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.plan = Plan::Placed;
            task.deadline_s = self.now_s + PLACE_TIMEOUT_S;
        }
        self.plan_within(0.1, 0.6, What::TryStart(id));
    }

    pub(super) fn try_start(&mut self, id: u64) {
        let Some(task) = self.tasks.get(&id) else {
            return;
        };
        if task.state != TaskState::Pending || task.limited || task.stuck {
            return;
        }
        let node = &self.nodes[&task.node];
        let is_free = node.idle && !node.dead && !self.is_occupied(task.node);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if is_free {
            task.state = TaskState::Running;
            task.agent.alive = true;
            if !task.mute {
                let slow = self.faults && self.dice.chance(0.05);
                let most_s = if slow { 100.0 } else { 2.0 };
                self.plan_within(0.1, most_s, What::Hello(id));
            }
        } else {
            self.plan(0.5, What::TryStart(id));
        }
    }

    /// Whether a task's processes are on the node.
    pub(super) fn is_occupied(&self, node: NodeId) -> bool {
        self.tasks
            .values()
            .any(|task| task.node == node && task.state == TaskState::Running)
    }

    pub(super) fn leave(&mut self, trainer: TrainerId, node: NodeId, at_once: &mut Vec<Event>) {
        // Of several tasks there the one that runs is meant.
        let found = self
            .tasks
            .iter()
            .filter(|(_, task)| {
                task.trainer == trainer
                    && task.node == node
                    && !matches!(task.plan, Plan::Gone | Plan::Rest)
            })
            .max_by_key(|(_, task)| task.runs());
        let Some((id, plan)) = found.map(|(id, task)| (*id, task.plan)) else {
            at_once.push(Event::WorkerGone { trainer, node });
            return;
        };
        if plan == Plan::Wanted {
            self.tasks.remove(&id);
            at_once.push(Event::WorkerGone { trainer, node });
            return;
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.plan = Plan::Leaving;
        }
        self.plan_within(0.02, 0.3, What::LeaveAnswered(id));
    }

    pub(super) fn leave_answered(&mut self, id: u64) {
        let refused = self.faults && self.dice.chance(0.05);
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        if task.plan != Plan::Leaving || task.state == TaskState::Ended {
            return;
        }
        let (trainer, node) = (task.trainer, task.node);
        if task.state == TaskState::Pending {
            self.tasks.remove(&id);
        } else if refused {
            task.plan = Plan::Runs;
            return;
        } else {
            task.plan = Plan::Gone;
            let departure_until_s = self.now_s + DEPARTURE_S;
            if let Some(node) = self.nodes.get_mut(&node) {
                node.departure_until_s = departure_until_s;
            }
            self.end_task(id);
        }
        self.tell(Event::WorkerGone { trainer, node });
    }

    /// Slurm signals a task; its agent kills the ranks and ends.
    pub(super) fn end_task(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let slowly = !task.agent.connected;
        self.kill_agent(id);
        let most_s = if slowly { 10.0 } else { 1.0 };
        self.plan_within(0.05, most_s, What::Ended(id));
    }

    pub(super) fn task_ended(&mut self, id: u64) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.state = TaskState::Ended;
        }
    }

    /// A regular job takes a node.
    pub(super) fn take_node(&mut self, node: NodeId) {
        if let Some(taken) = self.nodes.get_mut(&node) {
            taken.idle = false;
            taken.hole_end_s = None;
        }
        for id in self.running_on(node) {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            task.requeued = true;
            let trainer = task.trainer;
            let last_breath = matches!(task.plan, Plan::Placed | Plan::Runs)
                && task.agent.connected
                && task.agent.joined_life == self.life;
            self.end_task(id);
            if last_breath && self.dice.chance(0.8) {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.plan = Plan::Gone;
                }
                self.doubt();
                self.tell(Event::WorkerLost {
                    trainer,
                    node,
                    reason: LossReason::Preempted,
                });
            }
        }
    }

    pub(super) fn running_on(&self, node: NodeId) -> Vec<u64> {
        self.tasks
            .iter()
            .filter(|(_, task)| task.node == node && task.state == TaskState::Running)
            .map(|(id, _)| *id)
            .collect()
    }

    /// What the controller sees in Slurm, after `news`.
    pub(super) fn look(&mut self, news: Vec<Event>) {
        let mut events = news;
        let mut found = Vec::new();
        let (mut lost, mut ended) = (BTreeSet::new(), Vec::new());
        for (id, task) in &mut self.tasks {
            let (trainer, node) = (task.trainer, task.node);
            let closing = self.trainers[&trainer].closing;
            match (task.plan, task.state) {
                (Plan::Placed, TaskState::Running) => task.plan = Plan::Runs,
                (Plan::Placed, TaskState::Pending) => {
                    let is_idle = self.nodes[&node].idle;
                    let fault = match (task.limited, self.now_s > task.deadline_s, is_idle) {
                        (true, ..) => PlaceFault::Trainer,
                        (_, false, _) => continue,
                        (_, _, true) => PlaceFault::Node,
                        (_, _, false) => PlaceFault::Nobody,
                    };
                    events.push(Event::PlaceFailed {
                        trainer,
                        node,
                        fault,
                        reason: format!("{fault:?}"),
                    });
                    ended.push(*id);
                }
                (Plan::Placed | Plan::Runs, TaskState::Ended) => {
                    let reason = if task.requeued {
                        lost.insert(node);
                        LossReason::Preempted
                    } else {
                        LossReason::Ended
                    };
                    let worker = self.engine.pool().get(node);
                    let worker = worker.and_then(|it| it.worker_of(trainer));
                    let has_joined = worker.is_none_or(|it| it.phase != Phase::Placed);
                    if !closing && reason == LossReason::Ended && !has_joined {
                        events.push(Event::PlaceFailed {
                            trainer,
                            node,
                            fault: PlaceFault::NodeOrTrainer,
                            reason: "it failed before its agent had joined".to_owned(),
                        });
                    } else if !closing {
                        events.push(Event::WorkerLost {
                            trainer,
                            node,
                            reason,
                        });
                    }
                    ended.push(*id);
                }
                (Plan::Leaving, TaskState::Ended) => {
                    events.push(Event::WorkerGone { trainer, node });
                    ended.push(*id);
                }
                (Plan::Rest, TaskState::Running) => {
                    task.plan = Plan::Runs;
                    if !closing {
                        found.push(Event::WorkerFound { trainer, node });
                    }
                }
                // Somebody released it: it is held again.
                (Plan::Rest, TaskState::Pending) => ended.push(*id),
                (_, TaskState::Ended) => ended.push(*id),
                _ => {}
            }
        }
        for id in ended {
            self.tasks.remove(&id);
        }
        self.look_for_ended_trainers(&mut events);
        if let Some(pool) = self.pool_changes(&lost) {
            events.push(pool);
        }
        events.extend(found);
        if std::mem::take(&mut self.in_doubt) {
            events.push(Event::PoolSeen);
        }
        if !events.is_empty() {
            let mut inbox = std::mem::take(&mut self.inbox);
            inbox.extend(events);
            self.consult(inbox);
        }
    }

    /// Slurm has given out nodes: those that look idle may be gone.
    pub(super) fn doubt(&mut self) {
        if self.up {
            self.in_doubt = true;
            self.tell(Event::PoolDoubted);
        }
    }

    fn look_for_ended_trainers(&mut self, events: &mut Vec<Event>) {
        let ended: Vec<TrainerId> = self
            .trainers
            .iter()
            .filter(|(_, program)| program.closing)
            .map(|(id, _)| *id)
            .filter(|id| self.tasks.values().all(|task| task.trainer != *id))
            .collect();
        for trainer in ended {
            self.trainers.remove(&trainer);
            events.push(Event::TrainerGone { trainer });
        }
    }

    fn pool_changes(&self, lost: &BTreeSet<NodeId>) -> Option<Event> {
        let (mut joined, mut left, mut hole_ends) = (Vec::new(), Vec::new(), Vec::new());
        for (id, node) in &self.nodes {
            let known = self.engine.pool().get(*id).filter(|_| !lost.contains(id));
            let tasks = || self.tasks.values().filter(|task| task.node == *id);
            let is_ours = tasks().any(|task| matches!(task.plan, Plan::Runs | Plan::Leaving));
            let is_closing = tasks().any(|task| {
                task.state == TaskState::Running && self.trainers[&task.trainer].closing
            });
            let passing = known.is_some() && (is_closing || self.now_s < node.departure_until_s);
            let is_idle = node.idle && !self.is_occupied(*id);
            match known {
                Some(known) if is_idle || is_ours || passing => {
                    let changed = known.hole_end_s != node.hole_end_s;
                    hole_ends.extend(changed.then_some((*id, node.hole_end_s)));
                }
                Some(_) => left.push(*id),
                None if (is_idle || is_ours) && !lost.contains(id) => {
                    joined.push((*id, node.hole_end_s));
                }
                None => {}
            }
        }
        let changed = !(joined.is_empty() && left.is_empty() && hole_ends.is_empty());
        changed.then_some(Event::Pool {
            joined,
            left,
            hole_ends,
        })
    }

    /// The controller dies and is started again after `away_s`.
    pub(super) fn restart_controller(&mut self, away_s: f64) {
        if !self.up {
            return;
        }
        self.trace(|| "the controller dies".to_owned());
        self.up = false;
        self.life += 1;
        self.timer_s = None;
        self.inbox.clear();
        (self.in_doubt, self.told_in_doubt) = (false, false);
        self.twin = None;
        self.tasks.retain(|_, task| task.plan != Plan::Wanted);
        for task in self.tasks.values_mut() {
            task.agent.connected = false;
        }
        self.plan(away_s, What::Boot);
    }

    pub(super) fn boot(&mut self) {
        self.trace(|| "the controller is back".to_owned());
        self.up = true;
        self.engine = new_engine(&self.config, self.nodes.len() as u32);
        self.twin = None;
        let mut returning = Vec::new();
        for (id, task) in &mut self.tasks {
            task.plan = Plan::Rest;
            task.known_since_s = None;
            task.told_gone = false;
            task.given_up = false;
            task.heard = false;
            if task.agent.alive && !task.agent.cut_off && !task.mute {
                returning.push(*id);
            }
        }
        let mut events = self.class_events();
        for (id, program) in &mut self.trainers {
            program.started = 0;
            events.push(Event::TrainerArrived(program.info.clone()));
            if program.closing {
                events.push(Event::Finished {
                    trainer: *id,
                    exit_code: program.verdict.unwrap_or(1),
                });
            }
        }
        for node in self.nodes.values_mut() {
            node.departure_until_s = 0.0;
            node.told_end_s = None;
        }
        for id in returning {
            self.plan_within(0.05, 6.0, What::Hello(id));
        }
        self.look(events);
    }

    /// The trainer has ended: agents exit, the rest of the array ends.
    pub(super) fn close(&mut self, trainer: TrainerId, exit_code: i32) {
        if let Some(program) = self.trainers.get_mut(&trainer) {
            program.closing = true;
            program.verdict = Some(exit_code);
        }
        self.tasks
            .retain(|_, task| task.trainer != trainer || task.state != TaskState::Pending);
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for id in tasks {
            if self.tasks[&id].trainer == trainer {
                self.end_task(id);
            }
        }
    }

    /// The owner cancels the whole array.
    pub(super) fn cancel(&mut self, trainer: TrainerId) {
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for id in tasks {
            if self.tasks[&id].trainer == trainer {
                self.kill_agent(id);
                self.tasks.remove(&id);
            }
        }
        if self.trainers.remove(&trainer).is_some() {
            self.tell(Event::TrainerGone { trainer });
        }
    }

    pub(super) fn heal_nodes(&mut self) {
        for node in self.nodes.values_mut() {
            node.dead = false;
            node.hole_end_s = None;
        }
        for task in self.tasks.values_mut() {
            (task.stuck, task.limited) = (false, false);
        }
        let pending: Vec<u64> = self.tasks.keys().copied().collect();
        for id in pending {
            self.plan(0.1, What::TryStart(id));
        }
    }
}
