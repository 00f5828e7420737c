//! `bftrainer set`: a trainer gets another specification. Slurm keeps it in the array's
//! AdminComment; only what Slurm has taken counts.

use bftrainer::spec::{AdminComment, Spec};
use bftrainer::wire::{Answer, Set};
use bftrainer_core::engine::Event;
use tokio::sync::oneshot;

use super::array::{Admission, Array};
use super::brain::Brain;
use super::slurm_thread::{ChangeKind, Purpose};
use crate::slurm::{SlurmError, TaskName, TaskUpdate};

/// A change under way.
#[derive(Debug)]
pub(super) struct Respecification {
    spec: Spec,
    answer: oneshot::Sender<Answer>,
}

impl Brain {
    /// Has the specification changed if `uid` may do that, and answers when Slurm has.
    pub(super) fn respecify(&mut self, uid: u32, set: &Set, answer: oneshot::Sender<Answer>) {
        let id = set.array_job_id;
        match self.respecification(uid, id, &set.changes) {
            Ok((spec, comment)) => {
                let update = TaskUpdate {
                    admin_comment: Some(comment.to_string()),
                    ..TaskUpdate::default()
                };
                self.respecifications
                    .insert(id, Respecification { spec, answer });
                self.change(
                    TaskName::Array(id),
                    ChangeKind::Update(update),
                    Purpose::Respecify,
                );
            }
            Err(reason) => {
                // The asker may have gone away.
                let _ = answer.send(Answer::Failed { reason });
            }
        }
    }

    fn respecification(
        &self,
        uid: u32,
        id: u32,
        changes: &str,
    ) -> Result<(Spec, AdminComment), String> {
        let unknown = || format!("{id} is no admitted trainer; bftrainer queue lists them");
        let array = self.arrays.get(&id).ok_or_else(unknown)?;
        let is_administrator = uid == 0 || uid == self.settings.slurm_user_uid;
        if uid != array.owner_uid && !is_administrator {
            return Err(format!("{id} belongs to another user"));
        }
        let old = array.spec().ok_or_else(unknown)?;
        if array.verdict.is_some() {
            return Err(format!("{id} has ended"));
        }
        if self.respecifications.contains_key(&id) {
            return Err(format!("{id} is being changed in this moment; try again"));
        }
        let new = old.changed(changes).map_err(|error| error.to_string())?;
        if !is_administrator {
            check_owners_change(old, &new)?;
        }
        check_size(array, &new)?;
        let comment = AdminComment {
            spec: new.clone(),
            submitted_s: array.submit_time_s,
            stay_min: array.stay_min,
            exit_code: None,
            reason: None,
        };
        Ok((new, comment))
    }

    /// Slurm has answered.
    pub(super) fn respecified(
        &mut self,
        id: u32,
        result: Result<(), SlurmError>,
        events: &mut Vec<Event>,
    ) {
        let Some(Respecification { spec, answer }) = self.respecifications.remove(&id) else {
            return;
        };
        let answer_with = match result {
            Ok(()) => {
                log::info!("T{id} is now {spec}");
                if let Some(array) = self.arrays.get_mut(&id) {
                    array.admission = Admission::Admitted(spec);
                }
                events.extend(self.trainer_info(id).map(Event::TrainerChanged));
                Answer::Rows { rows: Vec::new() }
            }
            Err(error) => Answer::Failed {
                reason: format!("Slurm has not taken the change of {id}: {error}"),
            },
        };
        // The asker may have gone away.
        let _ = answer.send(answer_with);
    }
}

/// An owner may weigh his trainers against each other and ask for less.
fn check_owners_change(old: &Spec, new: &Spec) -> Result<(), String> {
    let allowed = Spec {
        weight: new.weight,
        max_nodes: new.max_nodes,
        ..old.clone()
    };
    if *new != allowed || new.max_nodes > old.max_nodes {
        return Err(format!(
            "owners may change weight= and lower the maximum of nodes={}-{}; anything else is for \
             SlurmUser and root",
            old.min_nodes, old.max_nodes
        ));
    }
    Ok(())
}

fn check_size(array: &Array, new: &Spec) -> Result<(), String> {
    let tasks = array.tasks.len();
    if usize::try_from(new.max_nodes).is_ok_and(|max_nodes| max_nodes <= tasks) {
        return Ok(());
    }
    Err(format!(
        "nodes={}-{}: the array has {tasks} tasks, so {tasks} nodes are the most",
        new.min_nodes, new.max_nodes
    ))
}
