//! Time limits of running workers: raised in time, and told to their agents.

use bftrainer::wire::ToAgent;

use super::brain::Brain;
use super::observe::tasks;
use super::slurm_thread::{ChangeKind, Purpose};
use super::tasks::Plan;
use crate::slurm::TaskUpdate;

impl Brain {
    /// Raises the limits of workers in time, so that none ends in TIMEOUT.
    pub(super) fn renew_limits(&mut self, now_s: f64) {
        let lease_s = self.config.engine.lease_s;
        let mut renewals = Vec::new();
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
                let lease_end_s = now_s + lease_s;
                let until_s = self
                    .planned
                    .get(node)
                    .map_or(lease_end_s, |end_s| lease_end_s.min(*end_s as f64));
                let fits_min = ((until_s - task.start_time_s as f64) / 60.0).floor() as u32;
                let wanted_min = array
                    .stay_min
                    .map_or(fits_min, |stay_min| fits_min.min(stay_min));
                if wanted_min > limit_min {
                    renewals.push((*id, *task_id, wanted_min));
                }
            }
        }
        for (id, task_id, limit_min) in renewals {
            let update = TaskUpdate {
                limit_min: Some(limit_min),
                ..TaskUpdate::default()
            };
            self.change(
                tasks(id, vec![task_id]),
                ChangeKind::Update(update),
                Purpose::Extend,
            );
        }
        self.tell_ends();
    }

    /// Tells agents whose limit or planned end moved.
    fn tell_ends(&mut self) {
        let mut messages = Vec::new();
        for (id, array) in &self.arrays {
            for (task_id, task) in &array.tasks {
                let Plan::Runs { node, .. } = &task.plan else {
                    continue;
                };
                let end_time_s = (task.end_time_s > 0).then_some(task.end_time_s);
                let key = (*id, *task_id);
                if let Some(agent) = self.agents.get_mut(key)
                    && agent.told_end_s != end_time_s
                {
                    agent.told_end_s = end_time_s;
                    let deadline_s = self.planned.get(node).copied();
                    messages.push((
                        key,
                        ToAgent::Until {
                            end_time_s,
                            deadline_s,
                        },
                    ));
                }
            }
        }
        for (key, message) in messages {
            self.agents.send(key, message);
        }
    }
}
