//! What users and administrators are shown: rows of JSON objects whose keys are
//! the column names.

use std::collections::BTreeMap;

use bftrainer::wire::{Answer, Query};
use bftrainer_core::engine::Decision;
use bftrainer_core::node::NodeId;
use bftrainer_core::pool::Phase;
use bftrainer_core::trainer::{RunState, Trainer, TrainerId, TrainerState};
use serde_json::{Value, json};

use super::accounting::{quantile, running_nodes};
use super::array::{Admission, Array};
use super::brain::Brain;
use crate::slurm::SlurmSettings;
use crate::store::Record;

/// Ended trainers that can still be shown.
const KEPT_ENDED: usize = 1000;

impl Brain {
    /// Answers a user's question with what Slurm's PrivateData lets him see.
    pub(super) fn answer(&self, now_s: f64, uid: u32, query: &Query) -> Answer {
        let sight = Sight::of(uid, &self.settings);
        let rows = match query {
            Query::Queue => self
                .arrays
                .iter()
                .filter(|(_, array)| sight.shows(array.owner_uid))
                .map(|(id, array)| self.queue_row(now_s, *id, array))
                .collect(),
            Query::Nodes if !sight.nodes => {
                return Answer::Failed {
                    reason: "slurm.conf's PrivateData=nodes lets only SlurmUser and root see nodes"
                        .to_owned(),
                };
            }
            Query::Nodes => self.node_rows(now_s, sight),
            Query::Show { array_job_id: None } => vec![self.totals(sight)],
            Query::Show {
                array_job_id: Some(id),
            } => match self.show_rows(now_s, *id, sight) {
                Some(rows) => rows,
                None => {
                    return Answer::Failed {
                        reason: format!(
                            "{id} is no trainer that is known now; bftrainer queue lists them"
                        ),
                    };
                }
            },
            Query::Why { array_job_id } => self.why_rows(*array_job_id, sight),
            // Answered elsewhere: they change something, or take their time.
            Query::History { .. } | Query::Command(_) => Vec::new(),
        };
        Answer::Rows { rows }
    }

    fn show_rows(&self, now_s: f64, id: u32, sight: Sight) -> Option<Vec<Value>> {
        if !sight.shows(self.owner_of(id)?) {
            return None;
        }
        match (self.arrays.get(&id), self.history.get(&id)) {
            (Some(array), _) => Some(vec![self.show_row(now_s, id, array)]),
            (None, row) => Some(vec![row?.clone()]),
        }
    }

    /// The owner of a trainer that runs or has ended.
    fn owner_of(&self, id: u32) -> Option<u32> {
        if let Some(array) = self.arrays.get(&id) {
            return Some(array.owner_uid);
        }
        let uid = self.history.get(&id)?.get("uid").and_then(Value::as_u64);
        // Rows of the first version have no uid: nobody's.
        Some(
            uid.and_then(|uid| u32::try_from(uid).ok())
                .unwrap_or(u32::MAX),
        )
    }

    /// Keeps what is known of an array whose tasks have all ended.
    pub(super) fn remember_ended(&mut self, now_s: f64, id: u32) {
        let Some(array) = self.arrays.get(&id) else {
            return;
        };
        let mut row = self.show_row(now_s, id, array);
        row["state"] = json!(match array.verdict {
            Some(0) => "COMPLETED",
            Some(_) => "FAILED",
            None if array.tasks.values().any(|task| task.given_up) => "FAILED",
            None => "CANCELLED",
        });
        // What it waited for when it ended is no reason for its end.
        row["reason"] = json!(array.end_reason);
        row["why"] = Value::Null;
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

    fn queue_row(&self, now_s: f64, id: u32, array: &Array) -> Value {
        let trainer = self.engine.trainers().get(&TrainerId(id));
        let (min, max) = array
            .spec()
            .map_or((0, 0), |spec| (spec.min_nodes, spec.max_nodes));
        let nodes = trainer.map_or(0, running_nodes);
        let progress = &array.progress;
        let total = progress
            .total
            .or_else(|| array.spec().and_then(|spec| spec.samples));
        json!({
            "jobid": id,
            "name": array.name,
            "user": array.owner_name,
            "state": state(array, trainer),
            "nodes": nodes,
            "min": min,
            "max": max,
            "samples": progress.samples,
            "total": total,
            "epoch": progress.epoch,
            "loss": progress.loss,
            "samples_per_s": array.pace.samples_per_s().filter(|_| nodes > 0),
            "time_left_s": total
                .filter(|_| nodes > 0)
                .and_then(|total| array.pace.time_left_s(now_s, total)),
            "rescales": trainer.map_or(0, Trainer::rescales),
            "preemptions": array.preemptions,
            "harvested_node_s": array.harvested_node_s,
            "reason": self.reason(now_s, array, trainer),
        })
    }

    pub(super) fn show_row(&self, now_s: f64, id: u32, array: &Array) -> Value {
        let mut row = self.queue_row(now_s, id, array);
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
            row.insert("uid".to_owned(), json!(array.owner_uid));
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
            row.extend(self.learned_fields(TrainerId(id)));
            row.insert("open_tasks".to_owned(), json!(array.open_tasks()));
            let terms = self.terms(array);
            let caps = terms.caps.iter().map(|cap| (&cap.name, cap.max_nodes));
            row.insert(
                "classes".to_owned(),
                json!(self.classes.names(terms.classes.as_ref())),
            );
            row.insert("why".to_owned(), json!(self.engine.explain(TrainerId(id))));
            row.insert("excluded_nodes".to_owned(), json!(array.excluded));
            row.insert("caps".to_owned(), json!(caps.collect::<BTreeMap<_, _>>()));
            row.insert("exit_code".to_owned(), json!(array.verdict));
        }
        row
    }

    pub(super) fn node_rows(&self, now_s: f64, sight: Sight) -> Vec<Value> {
        let shows = |trainer: TrainerId| {
            let owner = self.owner_of(trainer.0);
            owner.is_some_and(|owner| sight.shows(owner))
        };
        let mut nodes: Vec<_> = self.engine.pool().iter().collect();
        nodes.sort_by_key(|(id, _)| self.engine.names.rank(*id));
        nodes
            .into_iter()
            .map(|(id, node)| {
                let quarantine = self.engine.quarantine_of(id, now_s);
                let use_of_it = match (&node.worker, quarantine) {
                    (Some(worker), _) => match worker.phase {
                        Phase::Placed | Phase::Found => "starting",
                        Phase::Ready => "ready",
                        Phase::Member => "training",
                        Phase::Stale { .. } => "stopping",
                        Phase::Leaving => "leaving",
                    },
                    (None, Some(_)) => "quarantine",
                    (None, None) if node.assigned.is_some() => "assigned",
                    (None, None) => "idle",
                };
                let worker = node.worker.as_ref().map(|worker| worker.trainer);
                let trainer = worker.or(node.assigned).filter(|trainer| shows(*trainer));
                json!({
                    "node": self.engine.names.name(id),
                    "use": use_of_it,
                    "jobid": trainer.map(|trainer| trainer.0),
                    "joined": node.joined_s,
                    "hole_end": node.hole_end_s,
                    "class": self.classes.name_of(id),
                    "reason": quarantine.map(|it| it.reason.clone())
                        .or_else(|| self.avoided_by(id, now_s, shows)),
                })
            })
            .collect()
    }

    /// Which trainers keep off a node, and why, in words.
    fn avoided_by(
        &self,
        node: NodeId,
        now_s: f64,
        shows: impl Fn(TrainerId) -> bool,
    ) -> Option<String> {
        let avoided: Vec<String> = self
            .engine
            .avoided_by(node, now_s)
            .filter(|(trainer, _)| shows(*trainer))
            .map(|(trainer, avoidance)| {
                format!("T{trainer} keeps off it: {}", avoidance.quarantine.reason)
            })
            .collect();
        (!avoided.is_empty()).then(|| avoided.join("; "))
    }

    fn why_rows(&self, id: Option<u32>, sight: Sight) -> Vec<Value> {
        self.decisions
            .iter()
            .filter(|decision| id.is_none_or(|id| decision.trainer.0 == id))
            .filter(|decision| {
                let owner = self.owner_of(decision.trainer.0);
                sight.shows(owner.unwrap_or(u32::MAX))
            })
            .map(decision_row)
            .collect()
    }

    /// Why a trainer does not train.
    fn reason(&self, now_s: f64, array: &Array, trainer: Option<&Trainer>) -> Option<String> {
        if let Admission::Refused(reason) = &array.admission {
            return Some(reason.clone());
        }
        let trainer = trainer.filter(|trainer| trainer.run.is_none())?;
        let id = trainer.info.id;
        let has_nodes = || {
            let mut nodes = self.engine.pool().nodes();
            nodes.any(|node| node.assigned == Some(id))
        };
        let pauses = now_s < trainer.resume_at_s.max(trainer.restart_at_s);
        match (&trainer.state, &trainer.blocked_reason) {
            (TrainerState::Closing, _) => array.end_reason.clone(),
            (_, Some(reason)) if pauses || has_nodes() => Some(reason.clone()),
            (TrainerState::Admitted, _) if trainer.assembling_since_s.is_some() => None,
            _ => self.why_without_nodes(now_s, trainer),
        }
    }

    fn why_without_nodes(&self, now_s: f64, trainer: &Trainer) -> Option<String> {
        let id = trainer.info.id;
        if let Some(order) = self.admin_orders.reason() {
            return Some(order.to_owned());
        }
        let classes = trainer.info.terms.classes.as_ref();
        if self.classes.names(classes).is_empty() {
            return Some("no node of the partition has what its tasks ask for".to_owned());
        }
        if let Some(limit) = self.engine.used_up_limit(id) {
            return Some(format!("a limit is used up: {limit}"));
        }
        let nodes = self.engine.pool().ids();
        let usable = nodes.filter(|node| self.engine.may_have(id, *node));
        let fits = trainer.info.min_nodes <= usable.count() as u32;
        if trainer.state == TrainerState::Waiting && fits {
            return Some("others come first".to_owned());
        }
        let left_alone = self.engine.left_alone(id, now_s);
        left_alone.or_else(|| Some("not enough idle nodes".to_owned()))
    }

    fn totals(&self, sight: Sight) -> Value {
        let accounting = &self.accounting;
        let quantiles =
            |values| json!({ "p50": quantile(values, 0.5), "p95": quantile(values, 0.95) });
        json!({
            "mode": self.admin_orders.mode,
            "excluded_nodes": sight.nodes.then_some(&self.admin_orders.excluded),
            "trainers": self.engine.trainers().len(),
            "pool_nodes": self.engine.pool().len(),
            "agents": self.agents.connected(),
            "plain_jobs": self.plain_jobs,
            "pool_node_s": accounting.pool_node_s,
            "usable_node_s": accounting.usable_node_s,
            "harvested_node_s": accounting.harvested_node_s,
            "start_s": quantiles(&accounting.start_s),
            "release_s": quantiles(&accounting.release_s),
            "preempted": sight.nodes.then_some(&accounting.preemptions),
            "decisions": self.engine.outcomes(),
            "slurm_looks": self.looks,
            "slurm_failed_looks": self.looks_failed,
        })
    }
}

/// A decision and its reason.
pub(super) fn decision_row(decision: &Decision) -> Value {
    json!({
        "time": decision.time_s,
        "jobid": decision.trainer.0,
        "from": decision.from_nodes,
        "to": decision.to_nodes,
        "reason": decision.reason,
    })
}

/// What a user may see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// `None`: anybody.
    uid: Option<u32>,
    /// Others' trainers, too.
    pub others: bool,
    pub nodes: bool,
}

impl Sight {
    /// SlurmUser and root see all.
    fn of(uid: u32, settings: &SlurmSettings) -> Self {
        let is_operator = uid == 0 || uid == settings.slurm_user_uid;
        Sight {
            uid: Some(uid),
            others: is_operator || !settings.private_jobs,
            nodes: is_operator || !settings.private_nodes,
        }
    }

    /// What anybody may see.
    pub fn of_anybody(settings: &SlurmSettings) -> Self {
        Sight {
            uid: None,
            others: !settings.private_jobs,
            nodes: !settings.private_nodes,
        }
    }

    fn shows(self, owner_uid: u32) -> bool {
        self.others || self.uid == Some(owner_uid)
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
