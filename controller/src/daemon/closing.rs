//! The end of a trainer: its agents exit with the verdict, the rest of its array
//! is released to end at once, or cancelled.

use bftrainer::spec::AdminComment;
use bftrainer::wire::ToAgent;
use bftrainer_core::trainer::TrainerId;

use super::brain::Brain;
use super::observe::tasks;
use super::slurm_thread::{ChangeKind, Purpose};
use super::task::Plan;
use crate::config::Closing;
use crate::slurm::{TaskName, TaskUpdate};

/// A closed task has this long, minutes.
const CLOSE_LIMIT_MIN: u32 = 1;

impl Brain {
    /// Ends an array: agents exit with the code, the rest is released to end at
    /// once, or cancelled.
    pub(super) fn close(&mut self, now_s: f64, trainer: TrainerId, exit_code: i32, reason: &str) {
        let id = trainer.0;
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        array.verdict = Some(exit_code);
        array.end_reason = (!reason.is_empty()).then(|| reason.to_owned());
        let Some(spec) = array.spec() else {
            return;
        };
        let comment = AdminComment {
            spec: spec.clone(),
            submitted_s: array.submit_time_s,
            stay_min: array.stay_min,
            exit_code: Some(exit_code),
            reason: array.end_reason.clone(),
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
        self.release_rest(now_s, id);
    }

    /// Releases, or cancels, the tasks of an ended trainer that wait.
    pub(super) fn release_rest(&mut self, now_s: f64, id: u32) {
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        let mut rest = Vec::new();
        for (task_id, task) in &mut array.tasks {
            if task.waits_for_closing(now_s) {
                task.plan = Plan::Closing {
                    restart_count: task.restart_count,
                };
                rest.push(*task_id);
            }
        }
        if rest.is_empty() {
            return;
        }
        let kind = match self.config.closing {
            Closing::Cancel => ChangeKind::Cancel,
            Closing::Run => ChangeKind::Update(TaskUpdate::release(String::new(), CLOSE_LIMIT_MIN)),
        };
        self.change(tasks(id, rest), kind, Purpose::Close);
    }
}
