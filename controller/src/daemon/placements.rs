//! Placements: one of a trainer's waiting tasks is let run on one node, not
//! faster than `max_starts_per_s`.

use bftrainer_core::engine::{Event, PlaceFault};
use bftrainer_core::trainer::TrainerId;

use super::agents::TaskKey;
use super::brain::{Brain, WantedPlacement};
use super::observe::tasks;
use super::slurm_thread::{ChangeKind, Purpose};
use super::tasks::{Plan, Task};
use crate::slurm::{SlurmError, TaskUpdate};

/// The same task must not return to the node that it left within this time:
/// Slurm revokes the credential of the new run with the old one's, seconds.
const SAME_NODE_PAUSE_S: f64 = 3.5;

impl Brain {
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
        let hole_end_s = self
            .planned
            .get(&wanted.node)
            .map(|end_s| self.backfills_end_s(*end_s as f64));
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
        let minutes = match hole_end_s {
            Some(end_s) => {
                let left_s = end_s - now_s;
                (left_s.min(wanted.limit_s) / 60.0).floor().max(1.0)
            }
            None => (wanted.limit_s / 60.0).ceil().max(1.0),
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

    /// By when a task has to end that backfill is to start before a plan at
    /// `end_s`: backfill begins up to its interval from now, and takes the
    /// plan's begin rounded down to its resolution.
    fn backfills_end_s(&self, end_s: f64) -> f64 {
        let resolution_s = f64::from(self.settings.backfill_resolution_s.max(1));
        let interval_s = f64::from(self.settings.backfill_interval_s);
        (end_s / resolution_s).floor() * resolution_s - interval_s
    }

    pub(super) fn place_answered(
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
                let mut fault = PlaceFault::Node;
                if error.is_of_the_job() {
                    // Its owner cancelled it, most likely: the next look shows it.
                    fault = PlaceFault::Nobody;
                    self.doubt_pool(now_s, events);
                }
                let node_id = self.engine.names.intern(&node);
                events.push(Event::PlaceFailed {
                    trainer: TrainerId(id),
                    node: node_id,
                    fault,
                    reason: format!("T{id}: Slurm refused to place a task on {node}: {error}"),
                });
            }
        }
    }
}
