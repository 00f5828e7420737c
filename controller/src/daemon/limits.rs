//! Time limits of running workers: raised in time, and told to their agents.

use std::collections::BTreeMap;

use bftrainer::wire::ToAgent;

use super::brain::Brain;
use super::observe::{add_reservations, tasks};
use super::slurm_thread::{Change, ChangeKind, Purpose};
use super::task::Plan;
use crate::slurm::TaskUpdate;

impl Brain {
    /// Raises the limits of workers in time, so that none ends in TIMEOUT.
    pub(super) fn renew_limits(&mut self, now_s: f64) {
        let lease_s = self.config.engine.lease_s;
        let mut reserved: BTreeMap<String, i64> = BTreeMap::new();
        add_reservations(&mut reserved, &self.reservations);
        let mut renewals: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for (id, array) in &self.arrays {
            if array.verdict.is_some() {
                continue;
            }
            for (task_id, task) in &array.tasks {
                let Plan::Runs { node, .. } = &task.plan else {
                    continue;
                };
                let Some(limit_min) = task.limit_min else {
                    continue;
                };
                let left_s = task.end_time_s as f64 - now_s;
                if left_s > lease_s / 2.0 {
                    continue;
                }
                let minutes_to = |time_s: f64| (time_s - task.start_time_s as f64) / 60.0;
                // A planned job takes its node from a running worker whatever the
                // worker's limit is; a reservation does not.
                let ends_min = [
                    Some(minutes_to(now_s + lease_s).floor()),
                    self.planned_by_jobs
                        .get(node)
                        .map(|end_s| minutes_to(*end_s as f64).ceil()),
                    reserved
                        .get(node)
                        .map(|end_s| minutes_to(*end_s as f64).floor()),
                    array.stay_min.map(f64::from),
                ];
                let wanted_min =
                    ends_min.into_iter().flatten().fold(f64::INFINITY, f64::min) as u32;
                if wanted_min > limit_min {
                    renewals
                        .entry((*id, wanted_min))
                        .or_default()
                        .push(*task_id);
                }
            }
        }
        for ((id, limit_min), task_ids) in renewals {
            let update = TaskUpdate {
                limit_min: Some(limit_min),
                ..TaskUpdate::default()
            };
            self.change(
                tasks(id, task_ids),
                ChangeKind::Update(update),
                Purpose::Extend,
            );
        }
        self.tell_ends();
    }

    /// Slurm has raised limits: agents know it at once, should the next look be late.
    pub(super) fn extended(&mut self, change: &Change) {
        let (Some((id, task_ids)), ChangeKind::Update(update)) =
            (change.tasks.members(), &change.kind)
        else {
            return;
        };
        let (Some(array), Some(limit_min)) = (self.arrays.get_mut(&id), update.limit_min) else {
            return;
        };
        for task_id in task_ids {
            if let Some(task) = array.tasks.get_mut(&task_id)
                && task.start_time_s > 0
            {
                task.limit_min = Some(limit_min);
                task.end_time_s = task.start_time_s + i64::from(limit_min) * 60;
            }
        }
        self.tell_ends();
    }

    /// Tells agents whose limit moved.
    fn tell_ends(&mut self) {
        let mut messages = Vec::new();
        for (id, array) in &self.arrays {
            for (task_id, task) in &array.tasks {
                if !matches!(task.plan, Plan::Runs { .. }) {
                    continue;
                }
                let end_time_s = (task.end_time_s > 0).then_some(task.end_time_s);
                let key = (*id, *task_id);
                if let Some(agent) = self.agents.get_mut(key)
                    && agent.told_end_s != end_time_s
                {
                    agent.told_end_s = end_time_s;
                    messages.push((key, ToAgent::Until { end_time_s }));
                }
            }
        }
        for (key, message) in messages {
            self.agents.send(key, message);
        }
    }
}
