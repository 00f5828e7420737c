//! What the page shows, as JSON. Anybody who has an account on this host may look, so what
//! Slurm's PrivateData hides from users is not in it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::brain::Brain;
use super::levels::NodeCounts;
use super::orders::Mode;
use super::rows::{Sight, decision_row};
use super::web::Shown;
use crate::timeline::{Point, STEP_S};

/// Decisions that are shown.
const MOST_DECISIONS: usize = 200;

/// The newest points go with the state, so that a page need not ask for the whole timeline
/// again unless it was away for longer.
const NEWEST_POINTS: usize = 6;

/// What is shown of a trainer in any case.
const FACTS: [&str; 22] = [
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

/// What is shown besides where jobs are not private: names, and sentences, which may hold some.
const WORDS: [&str; 7] = [
    "name",
    "user",
    "account",
    "reason",
    "specification",
    "node_list",
    "why",
];

/// What `/state.json` gives. It is written as it is: as values it would be copied twice.
#[derive(Serialize)]
struct State<'a> {
    schema: &'static str,
    /// Epoch seconds.
    now: f64,
    version: &'static str,
    host: Option<String>,
    partition: &'a str,
    mode: Mode,
    /// Whether slurm.conf's PrivateData hides jobs, and so names and reasons.
    jobs_are_private: bool,
    /// Whether slurmctld has answered since the start.
    has_seen: bool,
    failed_looks_in_a_row: u32,
    agents: usize,
    plain_jobs: usize,
    counts: NodeCounts,
    trainers: Vec<Value>,
    nodes: Option<Vec<Value>>,
    /// Nodes left alone by command, with the reasons.
    excluded_nodes: Option<&'a BTreeMap<String, String>>,
    decisions: Vec<Value>,
    step_s: i64,
    points: Vec<Point>,
}

/// What `/timeline.json` gives.
#[derive(Serialize)]
struct Timeline {
    points: Vec<Point>,
}

impl Brain {
    /// What was asked for.
    pub(super) fn shown(&self, now_s: f64, what: Shown) -> String {
        match what {
            Shown::Metrics => self.metrics_page(now_s),
            Shown::State => written(&self.state(now_s)),
            Shown::Timeline => written(&Timeline {
                points: self.timeline.newest(usize::MAX),
            }),
        }
    }

    fn state(&self, now_s: f64) -> State<'_> {
        let sight = Sight::of_anybody(&self.settings);
        let shows = |field: &str| {
            let hidden = !sight.nodes && field == "node_list";
            FACTS.contains(&field) || sight.others && WORDS.contains(&field) && !hidden
        };
        let trainers = self
            .arrays
            .iter()
            .map(|(id, array)| only(self.show_row(now_s, *id, array), shows));
        State {
            schema: "bftrainer.page/1",
            now: now_s,
            version: env!("CARGO_PKG_VERSION"),
            host: host_name(),
            partition: &self.config.partition,
            mode: self.admin_orders.mode,
            jobs_are_private: self.settings.private_jobs,
            has_seen: self.has_seen,
            failed_looks_in_a_row: self.failures_in_a_row,
            agents: self.agents.connected(),
            plain_jobs: self.plain_jobs,
            counts: self.node_counts(now_s),
            trainers: trainers.collect(),
            nodes: sight.nodes.then(|| self.node_rows(now_s, sight)),
            excluded_nodes: sight.nodes.then_some(&self.admin_orders.excluded),
            decisions: self.newest_decisions(sight),
            step_s: STEP_S,
            points: self.timeline.newest(NEWEST_POINTS),
        }
    }

    fn newest_decisions(&self, sight: Sight) -> Vec<Value> {
        let newest = self.decisions.iter().rev().take(MOST_DECISIONS);
        newest
            .map(decision_row)
            .map(|row| only(row, |field| sight.others || field != "reason"))
            .collect()
    }
}

/// Numbers that JSON does not know become null, so there is nothing that can't be written.
fn written(shown: &impl Serialize) -> String {
    serde_json::to_string(shown).unwrap_or_default()
}

/// The fields of a row that are shown.
fn only(mut row: Value, shows: impl Fn(&str) -> bool) -> Value {
    if let Value::Object(fields) = &mut row {
        fields.retain(|field, _| shows(field));
    }
    row
}

fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bftrainer::spec::Spec;
    use bftrainer_core::engine::Event;
    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::daemon::array::{Admission, Array};
    use crate::daemon::task::tests::record;
    use crate::slurm::SlurmSettings;
    use crate::store::Store;

    /// A daemon that sees so many idle nodes, and trainers of user ada for up to 16 nodes.
    fn brain(folder: &Path, nodes: usize, trainers: u32, private_jobs: bool) -> Brain {
        let config = Config::parse("learn = false", folder).unwrap();
        let settings = SlurmSettings {
            slurmctld_time_s: 0,
            slurm_user_uid: 64030,
            kill_wait_s: 30,
            backfill_interval_s: 30,
            backfill_resolution_s: 60,
            private_jobs,
            private_nodes: private_jobs,
            version: "22.05.8".to_owned(),
            private_usage: private_jobs,
        };
        let (orders, _received) = std::sync::mpsc::channel();
        let (store, memory) = Store::open(folder, 10).unwrap();
        let mut brain = Brain::new(config, settings, orders, store, memory);
        let names = (0..nodes).map(|node| format!("n{node}"));
        let joined = names.map(|name| (brain.engine.names.intern(&name), None));
        let mut events = vec![Event::Pool {
            joined: joined.collect(),
            left: Vec::new(),
            hole_ends: Vec::new(),
        }];
        for id in 1..=trainers {
            let spec: Spec = "nodes=1-16".parse().unwrap();
            let mut record = record(0);
            record.array_job_id = id;
            record.name = "ada's <b>network</b>".to_owned();
            let array = Array::new(&record, Admission::Admitted(spec), None);
            brain.arrays.insert(id, array);
            brain.announce(id, &mut events);
        }
        brain.engine.handle(1000.0, events);
        brain.decisions = brain.engine.take_decisions().into();
        brain
    }

    #[test]
    fn where_jobs_are_private_no_name_and_no_sentence_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let shown = |private| {
            let brain = brain(folder.path(), 4, 2, private);
            (json!(brain.state(1001.0)), brain.metrics_page(1001.0))
        };
        let (open, metrics) = shown(false);
        assert_eq!(open["trainers"][0]["name"], "ada's <b>network</b>");
        assert!(open["trainers"][0].get("work_dir").is_none());
        assert!(open["decisions"][0]["reason"].is_string());
        assert_eq!(open["nodes"][0]["node"], "n0");
        assert!(metrics.contains("ada"));
        let (hidden, metrics) = shown(true);
        assert_eq!(hidden["trainers"][0]["jobid"], 1);
        assert_eq!(hidden["counts"]["pool"], 4);
        for text in [hidden.to_string(), metrics] {
            for word in ["ada", "network", "n0", "worth"] {
                assert!(!text.contains(&format!("{word} ")), "{word} in {text}");
                assert!(!text.contains(&format!("\"{word}")), "{word} in {text}");
            }
        }
    }

    #[test]
    fn a_large_site_has_a_state_of_some_megabytes_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let brain = brain(folder.path(), 5000, 200, false);
        let text = brain.shown(1001.0, Shown::State);
        assert!(
            text.len() > 500_000 && text.len() < 4_000_000,
            "{}",
            text.len()
        );
    }
}
