//! What becomes of the tasks: started, lost, left, ended; and those that nobody
//! placed.

use std::collections::BTreeSet;

use bftrainer::wire::ToAgent;
use bftrainer_core::engine::{Event, LossReason, PlaceFault};
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::TrainerId;

use super::agents::TaskKey;
use super::brain::{Brain, SuspectedPreemption};
use super::observe::tasks;
use super::slurm_thread::{ChangeKind, Purpose};
use super::task::{Plan, RunEnd, Task, Turn};
use crate::metrics::Departure;
use crate::slurm::{BaseState, NodeBase, TaskUpdate, is_own_reason};

/// A task whose worker is gone and that still runs after this is found again
/// and removed by force, seconds over KillWait.
const GONE_S: f64 = 5.0;

/// Whether a requeued task was preempted is known by then, or never, seconds.
const LONGEST_SUSPICION_S: f64 = 300.0;

/// The job that took a node has started at most so long before the loss is noticed,
/// seconds.
const NOTICED_WITHIN_S: f64 = 10.0;

/// Tasks that are not as they should be.
#[derive(Default)]
struct Stray {
    /// Released by somebody, or requeued by Slurm.
    not_held: Vec<u32>,
    /// Ended with an error that no verdict explains.
    failed: Vec<u32>,
    /// Slurm may not queue them again.
    not_requeueable: Vec<u32>,
    /// Whether one ended with 0 though there is no verdict.
    completed: bool,
}

/// A placed task that waits in vain.
struct LatePlacement {
    task: TaskKey,
    /// Where it was to run.
    node: String,
    /// Whether its own limits, licences or dependencies keep it.
    is_limited: bool,
}

impl Brain {
    /// What has become of an array's tasks; `present` are those that Slurm shows.
    pub(super) fn observe_tasks(
        &mut self,
        now_s: f64,
        id: u32,
        present: &BTreeSet<u32>,
        events: &mut Vec<Event>,
        found: &mut Vec<Event>,
    ) {
        self.drop_absent_tasks(id, present, events);
        let Some(array) = self.arrays.get(&id) else {
            return;
        };
        let closing = array.verdict.is_some();
        let all_ended = array.tasks.values().all(Task::ended);
        // Cancelled tasks may take a while to end, but they ask for nothing.
        let is_cancelled = array
            .tasks
            .values()
            .all(|task| task.base == BaseState::Cancelled);
        let takes_part = array.spec().is_some();
        if array.tasks.is_empty()
            || !closing && is_cancelled
            || all_ended && (closing || !takes_part)
        {
            self.forget_array(now_s, id, events);
            return;
        }
        if !takes_part {
            return;
        }
        self.take_turns(now_s, id, events);
        if closing {
            self.release_rest(now_s, id);
            return;
        }
        let stray = self.find_strays(id, found);
        if all_ended && stray.failed.is_empty() {
            self.forget_array(now_s, id, events);
            return;
        }
        if stray.completed {
            // Its script ended well without our agent: so has the trainer.
            let trainer = TrainerId(id);
            events.push(Event::Finished {
                trainer,
                exit_code: 0,
            });
            return;
        }
        self.mend_strays(id, stray);
        let max_before = self
            .engine
            .trainers()
            .get(&TrainerId(id))
            .map(|known| known.info.max_nodes);
        if let Some(info) = self.trainer_info(id)
            && max_before.is_some_and(|max_nodes| max_nodes != info.max_nodes)
        {
            events.push(Event::TrainerChanged(info));
        }
    }

    /// A cancelled task that never ran leaves no record; others go after MinJobAge.
    fn drop_absent_tasks(&mut self, id: u32, present: &BTreeSet<u32>, events: &mut Vec<Event>) {
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        array.tasks.retain(|task_id, task| {
            let is_present = present.contains(task_id);
            if !is_present
                && let Some(node) = task.plan.node()
                && let Some(node) = self.engine.names.id(node)
            {
                let (trainer, reason) = (TrainerId(id), LossReason::Ended);
                events.push(Event::WorkerLost {
                    trainer,
                    node,
                    reason,
                });
            }
            is_present
        });
    }

    fn take_turns(&mut self, now_s: f64, id: u32, events: &mut Vec<Event>) {
        let patience_s = f64::from(self.settings.kill_wait_s) + GONE_S;
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        let closing = array.verdict.is_some();
        let mut left_alone = Vec::new();
        let mut turns = Vec::new();
        for (task_id, task) in &mut array.tasks {
            let agent = self.agents.get((id, *task_id));
            if closing && task.is_left_alone(agent.is_some(), now_s, patience_s) {
                left_alone.push(*task_id);
            }
            let joined_run = agent.map(|agent| agent.restart_count);
            let turn = task.turn(now_s, patience_s, joined_run);
            turns.push((*task_id, task.base == BaseState::Failed, turn));
        }
        for (task_id, has_failed, turn) in turns {
            let event = match turn {
                Turn::AsAsked => continue,
                Turn::NotStarted { node: name } => Event::PlaceFailed {
                    trainer: TrainerId(id),
                    node: self.engine.names.intern(&name),
                    fault: PlaceFault::Node,
                    reason: format!("T{id}: Slurm could not start a task on {name}"),
                },
                Turn::Left { node: name } => {
                    let node = self.engine.names.intern(&name);
                    self.departures.insert(name, now_s);
                    Event::WorkerGone {
                        trainer: TrainerId(id),
                        node,
                    }
                }
                Turn::Lost { node, end } => {
                    self.task_lost(now_s, (id, task_id), node, end, has_failed)
                }
            };
            events.push(event);
        }
        if !left_alone.is_empty() {
            self.change(
                tasks(id, left_alone),
                ChangeKind::RequeueHold,
                Purpose::Close,
            );
        }
    }

    /// A task is no longer on its node, though nobody told it to leave.
    fn task_lost(
        &mut self,
        now_s: f64,
        (id, task_id): TaskKey,
        name: String,
        end: RunEnd,
        has_failed: bool,
    ) -> Event {
        let (trainer, node) = (TrainerId(id), self.engine.names.intern(&name));
        // A forgotten run's agent loses its ranks but is not told to end: slurmctld ends jobs that
        // it does not know of when their node registers. Ended before, the job stays in slurmd's
        // books; slurmd then refuses the next job of that number, and Slurm drains the node.
        let order = match end {
            RunEnd::Forgotten => self.stop_at_once(trainer),
            RunEnd::Requeued | RunEnd::Over => ToAgent::Ended,
        };
        self.agents.send((id, task_id), order);
        self.agents.remove((id, task_id));
        if end != RunEnd::Over {
            self.taken_from(id, &name, Departure::Silent, now_s);
        }
        if self
            .arrays
            .get(&id)
            .is_some_and(|array| array.verdict.is_some())
        {
            return Event::WorkerGone { trainer, node };
        }
        let reason = match end {
            RunEnd::Requeued | RunEnd::Forgotten => LossReason::Preempted,
            RunEnd::Over => LossReason::Ended,
        };
        self.loss(trainer, node, reason, has_failed)
    }

    /// Kills the ranks of the trainer's newest generation, and leaves the agent.
    fn stop_at_once(&self, trainer: TrainerId) -> ToAgent {
        let known = self.engine.trainers().get(&trainer);
        ToAgent::Stop {
            generation: known.map_or(0, |known| known.generation),
            grace_s: 0.0,
        }
    }

    /// What it means that a task is no longer on its node though nobody told it to leave.
    fn loss(
        &self,
        trainer: TrainerId,
        node: NodeId,
        reason: LossReason,
        has_failed: bool,
    ) -> Event {
        let worker = self.engine.pool().get(node);
        let worker = worker.and_then(|it| it.worker_of(trainer));
        let has_joined = worker.is_none_or(|worker| worker.phase != Phase::Placed);
        match has_failed && !has_joined {
            false => Event::WorkerLost {
                trainer,
                node,
                reason,
            },
            // The agent is missing there, or the task's output file can't be written.
            true => Event::PlaceFailed {
                trainer,
                node,
                fault: PlaceFault::NodeOrTrainer,
                reason: "its task failed before its agent had joined; the task's output file may \
                         tell why"
                    .to_owned(),
            },
        }
    }

    /// The task of an array was requeued off its node, most likely by Slurm, or slurmctld has
    /// forgotten its run.
    pub(super) fn taken_from(&mut self, id: u32, node: &str, departure: Departure, now_s: f64) {
        self.accounting.taken(node);
        self.taken.insert(node.to_owned(), now_s);
        self.suspected_preemptions.push(SuspectedPreemption {
            array_job_id: id,
            node: node.to_owned(),
            departure,
            time_s: now_s,
            until_s: None,
        });
    }

    /// A requeued task was preempted when a regular job has started on its node since;
    /// after an owner's or an administrator's `scontrol requeue`, or a node's failure,
    /// none does.
    pub(super) fn count_preemptions(&mut self, now_s: f64) {
        for suspected in std::mem::take(&mut self.suspected_preemptions) {
            let (node, time_s) = (&suspected.node, suspected.time_s);
            let until_s = suspected.until_s.unwrap_or(f64::INFINITY);
            let started_s = self.regular_starts.get(node).map(|start_s| *start_s as f64);
            if started_s.is_some_and(|it| it > time_s - NOTICED_WITHIN_S && it < until_s) {
                if let Some(array) = self.arrays.get_mut(&suspected.array_job_id) {
                    array.preemptions += 1;
                }
                self.accounting.preempted(node, suspected.departure, time_s);
            } else if now_s - time_s < LONGEST_SUSPICION_S
                && suspected.until_s.is_none()
                && !self.holds(node)
            {
                self.suspected_preemptions.push(suspected);
            }
        }
    }

    /// Whether a task of ours runs on the node.
    fn holds(&self, node: &str) -> bool {
        let mut tasks = self.arrays.values().flat_map(|array| array.tasks.values());
        tasks.any(|task| task.runs() && task.node.as_deref() == Some(node))
    }

    fn find_strays(&mut self, id: u32, found: &mut Vec<Event>) -> Stray {
        let mut stray = Stray::default();
        let Some(array) = self.arrays.get_mut(&id) else {
            return stray;
        };
        for (task_id, task) in &mut array.tasks {
            if !task.requeue && !task.ended() {
                stray.not_requeueable.push(*task_id);
            }
            if task.plan != Plan::Rest {
                continue;
            }
            if task.runs() {
                let Some(node) = task.node.clone() else {
                    continue;
                };
                let (trainer, restart_count) = (TrainerId(id), task.restart_count);
                found.push(Event::WorkerFound {
                    trainer,
                    node: self.engine.names.intern(&node),
                });
                task.plan = Plan::Runs {
                    node,
                    restart_count,
                };
            } else if task.waits() && !task.held {
                stray.not_held.push(*task_id);
            } else if task.ended() && task.base == BaseState::Complete {
                stray.completed = true;
            } else if task.ended() && task.base == BaseState::Failed && !task.given_up {
                stray.failed.push(*task_id);
            }
        }
        stray
    }

    fn mend_strays(&mut self, id: u32, stray: Stray) {
        if !stray.not_held.is_empty() {
            self.change(
                tasks(id, stray.not_held),
                ChangeKind::Update(TaskUpdate::hold()),
                Purpose::Hold,
            );
        }
        if !stray.not_requeueable.is_empty() {
            self.allow_requeue(id, stray.not_requeueable);
        }
        if !stray.failed.is_empty() {
            log::warn!(
                "T{id}: tasks {:?} ended without a verdict, queued again",
                stray.failed
            );
            self.change(
                tasks(id, stray.failed),
                ChangeKind::RequeueHold,
                Purpose::Revive,
            );
        }
    }

    /// Without requeueing a preempted task would be cancelled, and none could leave.
    fn allow_requeue(&mut self, id: u32, task_ids: Vec<u32>) {
        if let Some(array) = self.arrays.get_mut(&id)
            && !std::mem::replace(&mut array.warned_of_requeue, true)
        {
            log::warn!(
                "T{id}: its owner {} has set Requeue=0; set to 1 again, as a trainer's tasks \
                 must be requeueable",
                array.owner_name
            );
        }
        self.change(
            tasks(id, task_ids),
            ChangeKind::Update(TaskUpdate::allow_requeue()),
            Purpose::AllowRequeue,
        );
    }

    /// All tasks of an array have ended: what is known of it becomes history.
    fn forget_array(&mut self, now_s: f64, id: u32, events: &mut Vec<Event>) {
        if self.arrays.get(&id).is_some_and(|it| it.spec().is_some()) {
            self.remember_ended(now_s, id);
            events.push(Event::TrainerGone {
                trainer: TrainerId(id),
            });
            self.forget_learned(TrainerId(id));
        }
        self.arrays.remove(&id);
    }

    /// Placements that Slurm has not carried out in time are taken back.
    pub(super) fn observe_deadlines(&mut self, now_s: f64, events: &mut Vec<Event>) {
        for late in self.late_placements(now_s) {
            let (id, task_id) = late.task;
            if let Some(task) = self
                .arrays
                .get_mut(&id)
                .and_then(|array| array.tasks.get_mut(&task_id))
            {
                task.plan = Plan::Rest;
            }
            let (fault, reason) = self.fault_of(&late);
            events.push(Event::PlaceFailed {
                trainer: TrainerId(id),
                node: self.engine.names.intern(&late.node),
                fault,
                reason,
            });
            self.change(
                tasks(id, vec![task_id]),
                ChangeKind::Update(TaskUpdate::hold()),
                Purpose::Hold,
            );
        }
    }

    /// Placed tasks that wait in vain. They are held at once: Slurm skips the rest of an
    /// array after one of its tasks was looked at in vain.
    fn late_placements(&self, now_s: f64) -> Vec<LatePlacement> {
        let mut late = Vec::new();
        for (id, array) in &self.arrays {
            for (task_id, task) in &array.tasks {
                let Plan::Placed { node, deadline_s } = &task.plan else {
                    continue;
                };
                let is_limited = is_own_reason(task.wait_reason);
                let can_start = !is_limited
                    && now_s <= *deadline_s
                    && self.may_start_on(node)
                    && self.fits_plan(now_s, task, node);
                if task.waits() && !can_start {
                    late.push(LatePlacement {
                        task: (*id, *task_id),
                        node: node.clone(),
                        is_limited,
                    });
                }
            }
        }
        late
    }

    fn may_start_on(&self, node: &str) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|node| !node.flagged && (node.base == NodeBase::Idle || node.completing))
    }

    /// Whether the task would end before the job that backfill has planned there begins.
    fn fits_plan(&self, now_s: f64, task: &Task, node: &str) -> bool {
        let grid_s = i64::from(self.settings.backfill_resolution_s).max(1);
        self.planned.get(node).is_none_or(|end_s| {
            let limit_s = f64::from(task.limit_min.unwrap_or(0)) * 60.0;
            now_s + limit_s < (end_s / grid_s * grid_s) as f64
        })
    }

    /// Whose fault it is that the task did not start, and why.
    fn fault_of(&self, late: &LatePlacement) -> (PlaceFault, String) {
        if late.is_limited {
            let reason =
                "its tasks wait for a limit, licence or dependency (squeue -r shows which)";
            return (PlaceFault::Trainer, reason.to_owned());
        }
        let is_idle = self
            .nodes
            .get(&late.node)
            .is_some_and(|node| node.base == NodeBase::Idle && !node.flagged);
        // Where a job is planned, waiting for backfill says nothing of the node.
        match is_idle && self.planned.is_empty() {
            true => {
                let (id, node) = (late.task.0, &late.node);
                let reason = format!("T{id}: no task started on {node} in time");
                (PlaceFault::Node, reason)
            }
            false => (PlaceFault::Nobody, String::new()),
        }
    }
}
