//! Which arrays become trainers: shape and specification are checked, the array
//! is held as administrator, and what was accepted is kept in its AdminComment.

use bftrainer::spec::{AdminComment, Spec};
use bftrainer_core::curve::Curve;
use bftrainer_core::engine::Event;
use bftrainer_core::trainer::{TrainerId, TrainerInfo};

use super::array::{Admission, Array};
use super::brain::Brain;
use super::slurm_thread::{ChangeKind, Purpose};
use crate::classes::Requirement;
use crate::slurm::{BaseState, JobRecord, TaskName, TaskUpdate};

/// What an array's AdminComment starts with when it was refused.
const REFUSED_PREFIX: &str = "bftrainer refused: ";

impl Brain {
    /// Admits a new array of so many `tasks`, or looks again at one that was refused.
    pub(super) fn observe_array(&mut self, job: &JobRecord, tasks: u32, events: &mut Vec<Event>) {
        let id = job.array_job_id;
        if let Some(array) = self.arrays.get(&id)
            && !matches!(array.admission, Admission::Refused(_))
        {
            return;
        }
        if matches!(
            job.base,
            BaseState::Complete | BaseState::Cancelled | BaseState::Failed
        ) {
            // The records of an ended array stay for MinJobAge.
            return;
        }
        if let Some(kept) = AdminComment::parse(&job.admin_comment) {
            let mut array = Array::new(job, Admission::Admitted(kept.spec), kept.exit_code);
            array.end_reason = kept.reason;
            array.submit_time_s = kept.submitted_s;
            array.stay_min = kept.stay_min;
            log::info!("T{id} of {} found, admitted before", array.owner_name);
            self.arrays.insert(id, array);
            self.announce(id, events);
            return;
        }
        let key = if id == 0 { job.job_id } else { id };
        match self.validate(job, tasks) {
            Ok(spec) => {
                let array = Array::new(job, Admission::Asked(spec.clone()), None);
                let comment = AdminComment {
                    spec,
                    submitted_s: array.submit_time_s,
                    stay_min: array.stay_min,
                    exit_code: None,
                    reason: None,
                };
                let update = TaskUpdate {
                    hold: Some(true),
                    admin_comment: Some(comment.to_string()),
                    ..TaskUpdate::default()
                };
                self.arrays.insert(id, array);
                self.change(
                    TaskName::Array(id),
                    ChangeKind::Update(update),
                    Purpose::Admit,
                );
            }
            Err(reason) => {
                let comment = format!("{REFUSED_PREFIX}{reason}");
                let told = job.admin_comment == comment
                    || self
                        .arrays
                        .get(&key)
                        .is_some_and(|array| array.admission == Admission::Refused(reason.clone()));
                if !told {
                    log::warn!("job {key} is held: {reason}");
                    let update = TaskUpdate {
                        hold: (job.base == BaseState::Pending).then_some(true),
                        admin_comment: Some(comment),
                        ..TaskUpdate::default()
                    };
                    self.change(
                        TaskName::Array(key),
                        ChangeKind::Update(update),
                        Purpose::Refuse,
                    );
                }
                let refused = Admission::Refused(reason);
                self.arrays
                    .entry(key)
                    .and_modify(|array| array.admission = refused.clone())
                    .or_insert_with(|| Array::new(job, refused, None));
            }
        }
    }

    fn validate(&self, job: &JobRecord, tasks: u32) -> Result<Spec, String> {
        let spec = match Spec::from_comment(&job.comment) {
            Some(Ok(spec)) => spec,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the comment carries no specification".to_owned()),
        };
        if job.array_job_id == 0 {
            return Err(format!(
                "it is no job array; submit it with --array=0-{}",
                spec.max_nodes - 1
            ));
        }
        if job.node_count > 1 {
            return Err("its tasks want more than one node; submit it with -N1".to_owned());
        }
        if !job.exclusive {
            return Err("its tasks share nodes; submit it with --exclusive".to_owned());
        }
        if !job.requeue {
            return Err("its tasks can't be requeued; submit it with --requeue".to_owned());
        }
        Requirement::new(&job.request)?;
        if spec.max_nodes > tasks {
            return Err(format!(
                "it asks for up to {} nodes but has {tasks} tasks; submit it with --array=0-{}",
                spec.max_nodes,
                spec.max_nodes - 1
            ));
        }
        let all: u32 = self
            .arrays
            .values()
            .filter(|array| array.id != job.array_job_id)
            .filter(|array| !matches!(array.admission, Admission::Refused(_)))
            .map(Array::open_tasks)
            .sum();
        if all + tasks > self.config.max_tasks {
            return Err(format!(
                "trainers would have {} tasks in all, more than max_tasks = {}; it is admitted \
                 when others have ended",
                all + tasks,
                self.config.max_tasks
            ));
        }
        Ok(spec)
    }

    /// Tells the engine of an admitted array.
    pub(super) fn announce(&mut self, id: u32, events: &mut Vec<Event>) {
        let Some(info) = self.trainer_info(id) else {
            return;
        };
        events.push(Event::TrainerArrived(info));
        if let Some(exit_code) = self.arrays.get(&id).and_then(|array| array.verdict) {
            events.push(Event::Finished {
                trainer: TrainerId(id),
                exit_code,
            });
        }
    }

    pub(super) fn trainer_info(&self, id: u32) -> Option<TrainerInfo> {
        let array = self.arrays.get(&id)?;
        let spec = array.spec()?;
        let open = array.open_tasks();
        let max_nodes = if open == 0 {
            spec.max_nodes
        } else {
            spec.max_nodes.min(open)
        };
        let curve = (!spec.curve.is_empty())
            .then(|| Curve::new(&spec.curve).ok())
            .flatten()
            .map(|curve| curve.clamped_to_linear());
        Some(TrainerInfo {
            program: array.program.clone(),
            has_own_curve: !spec.curve.is_empty(),
            id: TrainerId(id),
            owner_uid: array.owner_uid,
            min_nodes: spec.min_nodes,
            max_nodes,
            weight: spec.weight,
            curve: curve
                .unwrap_or_else(|| Curve::amdahl(self.config.parallel_fraction, spec.max_nodes)),
            up_s: spec.up_s.unwrap_or(self.config.up_s),
            down_s: spec.down_s.unwrap_or(self.config.down_s),
            max_stay_s: array.stay_min.map(|minutes| f64::from(minutes) * 60.0),
            terms: self.terms(array),
        })
    }
}
