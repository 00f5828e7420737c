//! What the page shows, as JSON. Anybody who has an account on this host may look, so what
//! Slurm's PrivateData hides from users is not in it.

use serde_json::{Map, Value, json};

use super::brain::Brain;
use super::rows::Sight;
use super::web::Shown;
use crate::timeline::{Point, STEP_S};

/// Decisions that are shown.
const MOST_DECISIONS: usize = 200;

/// The newest points go with the state, so that a page need not ask for the whole timeline
/// again unless it was away for longer.
const NEWEST_POINTS: usize = 6;

/// What is shown of a trainer.
const FIELDS: [&str; 29] = [
    "jobid",
    "name",
    "user",
    "account",
    "state",
    "nodes",
    "min",
    "max",
    "samples",
    "total",
    "epoch",
    "loss",
    "samples_per_s",
    "time_left_s",
    "rescales",
    "preemptions",
    "harvested_node_s",
    "reason",
    "specification",
    "submit_time",
    "generation",
    "node_list",
    "classes",
    "curve",
    "measured",
    "up_s",
    "down_s",
    "profiled_at",
    "why",
];

/// The same without names, and without sentences, which may hold some.
const NAMELESS_FIELDS: [&str; 22] = [
    "jobid",
    "state",
    "nodes",
    "min",
    "max",
    "samples",
    "total",
    "epoch",
    "loss",
    "samples_per_s",
    "time_left_s",
    "rescales",
    "preemptions",
    "harvested_node_s",
    "submit_time",
    "generation",
    "classes",
    "curve",
    "measured",
    "up_s",
    "down_s",
    "profiled_at",
];

impl Brain {
    /// What was asked for.
    pub(super) fn shown(&self, now_s: f64, what: Shown) -> String {
        match what {
            Shown::Metrics => self.metrics_page(now_s),
            Shown::State => self.state(now_s).to_string(),
            Shown::Timeline => json!({
                "step_s": STEP_S,
                "points": self.timeline.newest(usize::MAX),
            })
            .to_string(),
        }
    }

    fn state(&self, now_s: f64) -> Value {
        let sight = Sight::of_anybody(&self.settings);
        let fields: &[&str] = if sight.others {
            &FIELDS
        } else {
            &NAMELESS_FIELDS
        };
        let trainers = self
            .arrays
            .iter()
            .map(|(id, array)| only(self.show_row(now_s, *id, array), fields));
        let trainers: Vec<Value> = trainers.collect();
        let points: Vec<Point> = self.timeline.newest(NEWEST_POINTS);
        json!({
            "schema": "bftrainer.page/1",
            "now": now_s,
            "version": env!("CARGO_PKG_VERSION"),
            "host": host_name(),
            "partition": self.config.partition,
            "mode": self.admin_orders.mode,
            "hidden": {
                "jobs": self.settings.private_jobs,
                "nodes": self.settings.private_nodes,
                "usage": self.settings.private_usage,
            },
            "failed_looks_in_a_row": self.failures_in_a_row,
            "has_seen": self.has_seen,
            "agents": self.agents.connected(),
            "plain_jobs": self.plain_jobs,
            "counts": self.node_counts(now_s),
            "trainers": trainers,
            "nodes": sight.nodes.then(|| self.node_rows(now_s, sight)),
            "excluded_nodes": sight.nodes.then_some(&self.admin_orders.excluded),
            "decisions": self.newest_decisions(sight),
            "step_s": STEP_S,
            "points": points,
        })
    }

    fn newest_decisions(&self, sight: Sight) -> Vec<Value> {
        let newest = self.decisions.iter().rev().take(MOST_DECISIONS);
        newest
            .map(|decision| {
                json!({
                    "time": decision.time_s,
                    "jobid": decision.trainer.0,
                    "from": decision.from_nodes,
                    "to": decision.to_nodes,
                    "reason": sight.others.then_some(&decision.reason),
                })
            })
            .collect()
    }
}

fn only(row: Value, fields: &[&str]) -> Value {
    let Value::Object(row) = row else {
        return row;
    };
    let shown = row
        .into_iter()
        .filter(|(key, _)| fields.contains(&key.as_str()));
    Value::Object(shown.collect::<Map<_, _>>())
}

fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_jobs_are_private_no_name_and_no_sentence_is_shown() {
        for field in NAMELESS_FIELDS {
            assert!(FIELDS.contains(&field), "{field}");
        }
        let row = json!({
            "jobid": 7, "name": "ann's <b>", "user": "ann", "account": "ml", "uid": 1000,
            "work_dir": "/home/ann", "reason": "a limit is used up: user ann", "why": "ann",
            "node_list": ["n1"], "nodes": 1, "specification": "nodes=1-4",
        });
        assert_eq!(
            only(row.clone(), &NAMELESS_FIELDS),
            json!({ "jobid": 7, "nodes": 1 })
        );
        let shown = only(row, &FIELDS);
        assert_eq!(shown["name"], "ann's <b>");
        assert!(shown.get("work_dir").is_none() && shown.get("uid").is_none());
    }
}
