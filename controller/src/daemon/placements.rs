//! Placements: one of a trainer's waiting tasks is let run on one node, not
//! faster than `max_starts_per_s`.

use bftrainer_core::engine::{Event, PlaceFault};
use bftrainer_core::trainer::TrainerId;

use super::agents::TaskKey;
use super::brain::{Brain, WantedPlacement};
use super::left::SAME_NODE_PAUSE_S;
use super::observe::tasks;
use super::slurm_thread::{ChangeKind, Purpose};
use super::task::Plan;
use crate::slurm::{SlurmError, TaskUpdate};

/// Slurm counts limits in minutes.
pub(super) const SHORTEST_LIMIT_MIN: u32 = 1;

impl Brain {
    /// Sends placements as fast as `max_starts_per_s` allows.
    pub(super) fn send_placements(&mut self, now_s: f64) {
        let rate = f64::from(self.config.max_starts_per_s);
        self.start_tokens =
            (self.start_tokens + (now_s - self.tokens_at_s).max(0.0) * rate).min(rate);
        self.tokens_at_s = now_s;
        self.placements_due_at_s = None;
        for _ in 0..self.wanted.len() {
            if self.start_tokens < 1.0 {
                let time_s = now_s + (1.0 - self.start_tokens) / rate;
                return self.place_again_at(time_s);
            }
            let Some(wanted) = self.wanted.pop_front() else {
                return;
            };
            if self.is_still_wanted(&wanted) && !self.place(now_s, &wanted) {
                if let Some(time_s) = self.free_again_at_s(now_s, &wanted) {
                    self.place_again_at(time_s);
                }
                self.wanted.push_back(wanted);
            }
        }
    }

    fn place_again_at(&mut self, time_s: f64) {
        let due_s = self.placements_due_at_s.unwrap_or(f64::INFINITY);
        self.placements_due_at_s = Some(due_s.min(time_s));
    }

    /// When a task that waits may return to the node that it has just left, epoch
    /// seconds. What else a placement waits for, a look at Slurm shows.
    fn free_again_at_s(&self, now_s: f64, wanted: &WantedPlacement) -> Option<f64> {
        let tasks = self.arrays.get(&wanted.trainer.0)?.tasks.values();
        tasks
            .filter(|task| task.plan == Plan::Rest && task.waits())
            .map(|task| task.left.left_s(&wanted.node) + SAME_NODE_PAUSE_S)
            .filter(|time_s| *time_s > now_s)
            .reduce(f64::min)
    }

    fn is_still_wanted(&self, wanted: &WantedPlacement) -> bool {
        let Some(node) = self.engine.names.id(&wanted.node) else {
            return false;
        };
        self.engine
            .pool()
            .get(node)
            .is_some_and(|node| node.worker_of(wanted.trainer).is_some())
    }

    /// Asks Slurm to run one of the trainer's waiting tasks on a node; whether
    /// there was one.
    fn place(&mut self, now_s: f64, wanted: &WantedPlacement) -> bool {
        let id = wanted.trainer.0;
        let Some(array) = self.arrays.get_mut(&id) else {
            return true;
        };
        if array.task_on(&wanted.node).is_some() {
            // The task that was there has not gone yet.
            return false;
        }
        let before_s = now_s - SAME_NODE_PAUSE_S;
        let Some((task_id, task)) = array.free_task(&wanted.node, before_s) else {
            return false;
        };
        task.plan = Plan::Placing {
            node: wanted.node.clone(),
        };
        self.start_tokens -= 1.0;
        // The shortest limit still fits when a regular job is planned there, or its plan
        // moves, before Slurm starts the task; it is raised as soon as the worker runs.
        let update = TaskUpdate::release(wanted.node.clone(), SHORTEST_LIMIT_MIN);
        self.change(
            tasks(id, vec![task_id]),
            ChangeKind::Update(update),
            Purpose::Place {
                node: wanted.node.clone(),
            },
        );
        true
    }

    pub(super) fn place_answered(
        &mut self,
        now_s: f64,
        (id, task_id): TaskKey,
        node: String,
        result: Result<(), SlurmError>,
        events: &mut Vec<Event>,
    ) {
        // While a regular job waits, Slurm's main scheduler starts nothing in a lower
        // partition on the same nodes, planned or not: only backfill does.
        let backfill_s = f64::from(self.settings.backfill_interval_s);
        let waits_for_backfill = !self.planned.is_empty();
        let patience_s =
            self.config.place_timeout_s + if waits_for_backfill { backfill_s } else { 0.0 };
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
