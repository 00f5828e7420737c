//! What users and administrators are shown: rows of JSON objects whose keys are
//! the column names.

use bftrainer::wire::{Answer, Query};
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{RunState, Trainer, TrainerId, TrainerState};
use serde_json::{Value, json};

use super::accounting::{quantile, running_nodes};
use super::brain::Brain;
use super::tasks::{Admission, Array};
use crate::store::Record;

/// Ended trainers that can still be shown.
const KEPT_ENDED: usize = 1000;

impl Brain {
    /// Answers a user's question.
    pub(super) fn answer(&self, now_s: f64, _uid: u32, query: &Query) -> Answer {
        let rows = match query {
            Query::Queue => self
                .arrays
                .iter()
                .map(|(id, array)| self.queue_row(*id, array))
                .collect(),
            Query::Nodes => self.node_rows(now_s),
            Query::Show { array_job_id: None } => vec![self.totals()],
            Query::Show {
                array_job_id: Some(id),
            } => match (self.arrays.get(id), self.history.get(id)) {
                (Some(array), _) => vec![self.show_row(*id, array)],
                (None, Some(row)) => vec![row.clone()],
                (None, None) => {
                    return Answer::Failed {
                        reason: format!(
                            "{id} is no trainer that is known now; bftrainer queue lists them"
                        ),
                    };
                }
            },
            Query::Why { array_job_id } => self.why_rows(*array_job_id),
        };
        Answer::Rows { rows }
    }

    /// Keeps what is known of an array whose tasks have all ended.
    pub(super) fn remember_ended(&mut self, id: u32) {
        let Some(array) = self.arrays.get(&id) else {
            return;
        };
        let mut row = self.show_row(id, array);
        row["state"] = json!(match array.verdict {
            Some(0) => "COMPLETED",
            Some(_) => "FAILED",
            None if array.tasks.values().any(|task| task.given_up) => "FAILED",
            None => "CANCELLED",
        });
        if self.history.len() >= KEPT_ENDED {
            self.history.pop_first();
        }
        self.store.keep(Record::Ended {
            array_job_id: id,
            row: row.clone(),
        });
        self.history.insert(id, row);
    }

    /// The state of each trainer.
    pub(super) fn trainer_states(&self) -> impl Iterator<Item = &'static str> {
        let trainers = self.engine.trainers();
        self.arrays
            .iter()
            .map(|(id, array)| state(array, trainers.get(&TrainerId(*id))))
    }

    /// Nodes on which ranks of trainer `id` run now.
    pub(super) fn running_nodes_of(&self, id: u32) -> usize {
        let trainer = self.engine.trainers().get(&TrainerId(id));
        trainer.map_or(0, running_nodes)
    }

    fn queue_row(&self, id: u32, array: &Array) -> Value {
        let trainer = self.engine.trainers().get(&TrainerId(id));
        let (min, max) = array
            .spec()
            .map_or((0, 0), |spec| (spec.min_nodes, spec.max_nodes));
        let progress = &array.progress;
        let total = progress
            .total
            .or_else(|| array.spec().and_then(|spec| spec.samples));
        json!({
            "jobid": id,
            "name": array.name,
            "user": array.owner_name,
            "state": state(array, trainer),
            "nodes": trainer.map_or(0, running_nodes),
            "min": min,
            "max": max,
            "samples": progress.samples,
            "total": total,
            "epoch": progress.epoch,
            "loss": progress.loss,
            "rescales": trainer.map_or(0, Trainer::rescales),
            "preemptions": trainer.map_or(0, |trainer| trainer.preemptions),
            "harvested_node_s": array.harvested_node_s,
            "reason": reason(array, trainer, self.engine.pool().len() as u32),
        })
    }

    fn show_row(&self, id: u32, array: &Array) -> Value {
        let mut row = self.queue_row(id, array);
        let trainer = self.engine.trainers().get(&TrainerId(id));
        let members: Vec<&str> = trainer
            .and_then(|trainer| trainer.run.as_ref())
            .map(|run| {
                run.members
                    .iter()
                    .map(|node| self.engine.names.name(*node))
                    .collect()
            })
            .unwrap_or_default();
        if let Some(row) = row.as_object_mut() {
            row.insert("account".to_owned(), json!(array.account));
            row.insert(
                "specification".to_owned(),
                json!(array.spec().map(ToString::to_string)),
            );
            row.insert("work_dir".to_owned(), json!(array.work_dir));
            row.insert("submit_time".to_owned(), json!(array.submit_time_s));
            row.insert(
                "generation".to_owned(),
                json!(trainer.map(|trainer| trainer.generation)),
            );
            row.insert("node_list".to_owned(), json!(members));
            row.insert(
                "restart_s".to_owned(),
                json!(trainer.and_then(|trainer| trainer.restart_s)),
            );
            row.insert("open_tasks".to_owned(), json!(array.open_tasks()));
            row.insert("exit_code".to_owned(), json!(array.verdict));
        }
        row
    }

    fn node_rows(&self, now_s: f64) -> Vec<Value> {
        self.engine
            .pool()
            .iter()
            .map(|(id, node)| {
                let quarantine = self
                    .engine
                    .quarantines()
                    .get(id)
                    .filter(|quarantine| now_s < quarantine.until_s);
                let use_of_it = match (&node.worker, quarantine) {
                    (Some(worker), _) => match worker.phase {
                        Phase::Placed | Phase::Found => "starting",
                        Phase::Ready => "ready",
                        Phase::Member => "training",
                        Phase::Stale => "stopping",
                        Phase::Leaving => "leaving",
                    },
                    (None, Some(_)) => "quarantine",
                    (None, None) if node.assigned.is_some() => "assigned",
                    (None, None) => "idle",
                };
                json!({
                    "node": self.engine.names.name(*id),
                    "use": use_of_it,
                    "jobid": node.worker.as_ref().map(|worker| worker.trainer.0)
                        .or(node.assigned.map(|trainer| trainer.0)),
                    "joined": node.joined_s,
                    "hole_end": node.hole_end_s,
                    "reason": quarantine.map(|quarantine| quarantine.reason.as_str()),
                })
            })
            .collect()
    }

    fn why_rows(&self, id: Option<u32>) -> Vec<Value> {
        self.decisions
            .iter()
            .filter(|decision| id.is_none_or(|id| decision.trainer.0 == id))
            .map(|decision| {
                json!({
                    "time": decision.time_s,
                    "jobid": decision.trainer.0,
                    "from": decision.from_nodes,
                    "to": decision.to_nodes,
                    "reason": decision.reason,
                })
            })
            .collect()
    }

    fn totals(&self) -> Value {
        let accounting = &self.accounting;
        let quantiles =
            |values| json!({ "p50": quantile(values, 0.5), "p95": quantile(values, 0.95) });
        json!({
            "trainers": self.engine.trainers().len(),
            "pool_nodes": self.engine.pool().len(),
            "agents": self.agents.connected(),
            "plain_jobs": self.plain_jobs,
            "idle_node_s": accounting.pool_node_s,
            "usable_node_s": accounting.usable_node_s,
            "harvested_node_s": accounting.harvested_node_s,
            "start_s": quantiles(&accounting.start_s),
            "release_s": quantiles(&accounting.release_s),
            "preempted": accounting.preemptions,
            "slurm_looks": self.looks,
            "slurm_failed_looks": self.looks_failed,
        })
    }
}

/// The state in Slurm's manner of words.
fn state(array: &Array, trainer: Option<&Trainer>) -> &'static str {
    match (&array.admission, trainer) {
        (Admission::Refused(_), _) => "REFUSED",
        (Admission::Asked(_), _) | (_, None) => "PENDING",
        (_, Some(trainer)) => match (&trainer.state, &trainer.run) {
            (TrainerState::Closing, _) => "CLOSING",
            (_, Some(run)) => match run.state {
                RunState::Stopping { .. } => "RESCALING",
                _ => "RUNNING",
            },
            (_, None) if trainer.assembling_since_s.is_some() => "STARTING",
            _ => "PENDING",
        },
    }
}

fn reason(array: &Array, trainer: Option<&Trainer>, pool_nodes: u32) -> Option<String> {
    match (&array.admission, trainer) {
        (Admission::Refused(reason), _) => Some(reason.clone()),
        (_, Some(trainer)) if trainer.run.is_none() => {
            match (&trainer.state, &trainer.blocked_reason) {
                (_, Some(reason)) => Some(reason.clone()),
                (TrainerState::Waiting, None) if trainer.info.min_nodes <= pool_nodes => {
                    Some("others come first".to_owned())
                }
                (TrainerState::Waiting, None) => Some("not enough idle nodes".to_owned()),
                (TrainerState::Admitted, None) if trainer.assembling_since_s.is_none() => {
                    Some("not enough idle nodes".to_owned())
                }
                _ => None,
            }
        }
        _ => None,
    }
}
