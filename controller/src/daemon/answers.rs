//! Slurm's answers to what was asked of it.

use bftrainer_core::engine::Event;
use bftrainer_core::trainer::TrainerId;

use super::agents::TaskKey;
use super::array::Admission;
use super::brain::Brain;
use super::slurm_thread::{Change, Purpose};
use super::task::Plan;
use crate::slurm::{SlurmError, TaskName};

impl Brain {
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
        if result.is_ok() && change.purpose == Purpose::Extend {
            self.extended(&change);
        }
        match (change.purpose, change.tasks) {
            (Purpose::Admit, TaskName::Array(id)) => self.admitted(id, result, events),
            (Purpose::Respecify, TaskName::Array(id)) => self.respecified(id, result, events),
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
                    if purpose == Purpose::Revive {
                        self.give_up(&tasks);
                    }
                }
            }
        }
    }

    /// Tasks that Slurm won't queue again count as ended.
    fn give_up(&mut self, tasks: &TaskName) {
        let Some((id, task_ids)) = tasks.members() else {
            return;
        };
        let Some(array) = self.arrays.get_mut(&id) else {
            return;
        };
        for task_id in task_ids {
            if let Some(task) = array.tasks.get_mut(&task_id) {
                task.given_up = true;
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
                task.left.leaves(&node, now_s);
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
