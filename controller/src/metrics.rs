//! What the daemon measures, for Prometheus in the OpenMetrics format. Names
//! and meanings are listed in docs/admin.md; nothing here knows the daemon.

use std::sync::atomic::AtomicU64;

use bftrainer_core::allocation::{Solution, Solver};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The page's type (OpenMetrics 1.0, section "Protocol Negotiation").
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most trainers with series of their own: each costs memory in every Prometheus.
pub const MOST_TRAINERS: usize = 100;

/// A counter of seconds and the like.
pub type Sum = Counter<f64, AtomicU64>;

/// A gauge of anything.
pub type Level = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DecisionLabels {
    solver: &'static str,
    outcome: &'static str,
}

impl DecisionLabels {
    /// Who decided, and how good the decision is known to be.
    fn new(solution: &Solution) -> Self {
        DecisionLabels {
            solver: match solution.solver {
                Solver::Dp => "dp",
                Solver::Milp => "milp",
                _ => "greedy",
            },
            outcome: match solution.fault {
                Some(_) => "failed",
                None if solution.optimal => "optimal",
                None => "incumbent",
            },
        }
    }
}

/// Whether a preempted worker's agent could say good-bye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It told the controller and left by itself.
    Graceful,
    /// Only Slurm showed it.
    Silent,
}

impl Departure {
    fn label(self) -> &'static str {
        match self {
            Departure::Graceful => "graceful",
            Departure::Silent => "silent",
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PreemptionLabels {
    departure: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ChangeLabels {
    result: &'static str,
}

impl ChangeLabels {
    fn new(accepted: bool) -> Self {
        ChangeLabels {
            result: if accepted { "accepted" } else { "refused" },
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TrainerLabels {
    jobid: u32,
    user: String,
}

/// A trainer's row.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerSample {
    /// Its array job id.
    pub jobid: u32,
    /// Its owner.
    pub user: String,
    /// Nodes on which its ranks run.
    pub nodes: f64,
    /// Cumulative samples, as reported.
    pub samples: f64,
    /// Node-seconds in which its ranks ran.
    pub harvested_node_s: f64,
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    solver_s: Histogram,
    preemptions: Family<PreemptionLabels, Counter>,
    changes: Family<ChangeLabels, Counter>,
    trainers: Family<StateLabels, Gauge>,
    trainer_nodes: Family<TrainerLabels, Level>,
    trainer_samples: Family<TrainerLabels, Level>,
    trainer_node_s: Family<TrainerLabels, Sum>,
    trainers_without_series: Gauge,
    /// Nodes of the pool: idle, or held by our tasks.
    pub pool_nodes: Gauge,
    /// Of these, nodes that bear a worker.
    pub held_nodes: Gauge,
    /// Of these, nodes on which ranks run.
    pub training_nodes: Gauge,
    /// Nodes that are left alone for a while.
    pub quarantined_nodes: Gauge,
    /// Connected agents.
    pub agents: Gauge,
    /// Jobs in our partition that are no trainers.
    pub plain_jobs: Gauge,
    /// Node-seconds of the pool.
    pub pool_node_s: Sum,
    /// Of these, on nodes that could be given to a trainer.
    pub usable_node_s: Sum,
    /// Node-seconds with a worker.
    pub held_node_s: Sum,
    /// Node-seconds in which ranks ran.
    pub harvested_node_s: Sum,
    /// From a placement to ranks running, seconds.
    pub start_s: Histogram,
    /// From the order to leave to Slurm's answer, seconds.
    pub release_s: Histogram,
    /// One look at slurmctld, seconds.
    pub query_s: Histogram,
    /// Looks that failed.
    pub query_errors: Counter,
    /// Hints that arrived.
    pub hints: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Everything at zero.
    pub fn new() -> Self {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("bftrainer"),
            decisions: Family::default(),
            solver_s: Histogram::new(exponential_buckets(1e-5, 4.0, 10)),
            preemptions: Family::default(),
            changes: Family::default(),
            trainers: Family::default(),
            trainer_nodes: Family::default(),
            trainer_samples: Family::default(),
            trainer_node_s: Family::default(),
            trainers_without_series: Gauge::default(),
            pool_nodes: Gauge::default(),
            held_nodes: Gauge::default(),
            training_nodes: Gauge::default(),
            quarantined_nodes: Gauge::default(),
            agents: Gauge::default(),
            plain_jobs: Gauge::default(),
            pool_node_s: Sum::default(),
            usable_node_s: Sum::default(),
            held_node_s: Sum::default(),
            harvested_node_s: Sum::default(),
            start_s: Histogram::new(exponential_buckets(0.125, 2.0, 10)),
            release_s: Histogram::new(exponential_buckets(0.125, 2.0, 10)),
            query_s: Histogram::new(exponential_buckets(0.001, 2.5, 10)),
            query_errors: Counter::default(),
            hints: Counter::default(),
        };
        metrics.register_pool();
        metrics.register_work();
        metrics.register_trainers();
        // Series that are there from the start can be alerted on.
        for departure in [Departure::Graceful, Departure::Silent] {
            metrics.preemptions_of(departure).inc_by(0);
        }
        for accepted in [true, false] {
            metrics.changes_of(accepted).inc_by(0);
        }
        metrics
    }

    fn register_pool(&mut self) {
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        let registry = &mut self.registry;
        registry.register("build", "The running bftrainerd", Info::new(version));
        let gauges = [
            (
                "pool_nodes",
                "Nodes idle or held by trainers",
                &self.pool_nodes,
            ),
            ("held_nodes", "Nodes that bear a worker", &self.held_nodes),
            (
                "training_nodes",
                "Nodes on which ranks run",
                &self.training_nodes,
            ),
            (
                "quarantined_nodes",
                "Nodes left alone after a failure",
                &self.quarantined_nodes,
            ),
            ("agents", "Connected worker agents", &self.agents),
            (
                "plain_jobs",
                "Jobs in the trainers' partition that are no trainers",
                &self.plain_jobs,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let sums = [
            ("pool_node", "Node-seconds of the pool", &self.pool_node_s),
            (
                "usable_node",
                "Node-seconds of the pool that a trainer could have had",
                &self.usable_node_s,
            ),
            ("held_node", "Node-seconds with a worker", &self.held_node_s),
            (
                "harvested_node",
                "Node-seconds in which ranks ran",
                &self.harvested_node_s,
            ),
        ];
        for (name, help, sum) in sums {
            registry.register_with_unit(name, help, Unit::Seconds, sum.clone());
        }
    }

    fn register_work(&mut self) {
        let registry = &mut self.registry;
        let histograms = [
            (
                "start_latency",
                "From a placement to running ranks",
                &self.start_s,
            ),
            (
                "release_latency",
                "From the order to leave a node to Slurm's answer",
                &self.release_s,
            ),
            ("solver", "Time for one decision", &self.solver_s),
            (
                "slurm_query",
                "Time for one look at slurmctld",
                &self.query_s,
            ),
        ];
        for (name, help, histogram) in histograms {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        registry.register(
            "decisions",
            "Decisions that changed something",
            self.decisions.clone(),
        );
        registry.register(
            "preemptions",
            "Workers preempted by Slurm",
            self.preemptions.clone(),
        );
        registry.register(
            "slurm_changes",
            "Changes asked of slurmctld",
            self.changes.clone(),
        );
        registry.register(
            "slurm_query_errors",
            "Looks at slurmctld that failed",
            self.query_errors.clone(),
        );
        registry.register(
            "hints",
            "Hints from prologs and epilogs",
            self.hints.clone(),
        );
    }

    fn register_trainers(&mut self) {
        let registry = &mut self.registry;
        registry.register("trainers", "Trainers by state", self.trainers.clone());
        registry.register(
            "trainer_nodes",
            "Nodes on which a trainer's ranks run",
            self.trainer_nodes.clone(),
        );
        registry.register(
            "trainer_samples",
            "A trainer's cumulative samples, which a rollback lowers",
            self.trainer_samples.clone(),
        );
        registry.register_with_unit(
            "trainer_harvested_node",
            "Node-seconds in which a trainer's ranks ran",
            Unit::Seconds,
            self.trainer_node_s.clone(),
        );
        registry.register(
            "trainers_without_series",
            "Trainers beyond those that have series of their own",
            self.trainers_without_series.clone(),
        );
    }

    /// A decision that changed something or met a fault, and how long it took, seconds.
    pub fn decided(&self, solution: &Solution, took_s: f64) {
        let labels = DecisionLabels::new(solution);
        self.decisions.get_or_create(&labels).inc();
        self.solver_s.observe(took_s);
    }

    /// Slurm took a node from its worker.
    pub fn preempted(&self, departure: Departure) {
        self.preemptions_of(departure).inc();
    }

    fn preemptions_of(&self, departure: Departure) -> Counter {
        let labels = PreemptionLabels {
            departure: departure.label(),
        };
        self.preemptions.get_or_create_owned(&labels)
    }

    /// slurmctld took a change, or refused it.
    pub fn changed(&self, accepted: bool) {
        self.changes_of(accepted).inc();
    }

    fn changes_of(&self, accepted: bool) -> Counter {
        let labels = ChangeLabels::new(accepted);
        self.changes.get_or_create_owned(&labels)
    }

    /// The trainers as they are now: how many in which state, and series of the
    /// first [`MOST_TRAINERS`] samples.
    pub fn set_trainers<'a>(
        &self,
        states: impl Iterator<Item = &'a str>,
        samples: &[TrainerSample],
    ) {
        self.trainers.clear();
        for state in states {
            let labels = StateLabels {
                state: state.to_owned(),
            };
            self.trainers.get_or_create(&labels).inc();
        }
        self.trainer_nodes.clear();
        self.trainer_samples.clear();
        self.trainer_node_s.clear();
        for sample in samples.iter().take(MOST_TRAINERS) {
            let labels = TrainerLabels {
                jobid: sample.jobid,
                user: sample.user.clone(),
            };
            self.trainer_nodes.get_or_create(&labels).set(sample.nodes);
            self.trainer_samples
                .get_or_create(&labels)
                .set(sample.samples);
            self.trainer_node_s
                .get_or_create(&labels)
                .inc_by(sample.harvested_node_s);
        }
        let left_out = samples.len().saturating_sub(MOST_TRAINERS);
        self.trainers_without_series.set(left_out as i64);
    }

    /// The page.
    pub fn encode(&self) -> String {
        let mut page = String::new();
        // Writing into a String does not fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bftrainer_core::allocation::{DpSolver, Problem};

    #[test]
    fn names_have_the_prefix_base_units_and_total() {
        let metrics = Metrics::new();
        let problem = Problem::new(0, 60.0, Vec::new());
        metrics.decided(DpSolver::new().solve(&problem), 2e-5);
        metrics.preempted(Departure::Silent);
        metrics.harvested_node_s.inc_by(1.5);
        let page = metrics.encode();
        for line in [
            "# TYPE bftrainer_pool_nodes gauge",
            "# UNIT bftrainer_start_latency_seconds seconds",
            "bftrainer_harvested_node_seconds_total 1.5",
            "bftrainer_decisions_total{solver=\"dp\",outcome=\"optimal\"} 1",
            "bftrainer_preemptions_total{departure=\"silent\"} 1",
            "bftrainer_preemptions_total{departure=\"graceful\"} 0",
            "bftrainer_slurm_query_errors_total 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        assert!(page.contains(&format!(
            "bftrainer_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        )));
        assert!(page.ends_with("# EOF\n"));
        assert!(
            page.lines()
                .all(|l| l.starts_with('#') || l.starts_with("bftrainer_"))
        );
    }

    #[test]
    fn trainers_have_series_up_to_the_cap_and_lose_them_when_they_end() {
        let metrics = Metrics::new();
        let sample = |jobid| TrainerSample {
            jobid,
            user: "ada".to_owned(),
            nodes: 2.0,
            samples: 100.0,
            harvested_node_s: 3.5,
        };
        let many: Vec<_> = (0..MOST_TRAINERS as u32 + 5).map(sample).collect();
        metrics.set_trainers(["RUNNING", "PENDING", "RUNNING"].into_iter(), &many);
        let page = metrics.encode();
        assert!(
            page.contains("bftrainer_trainers{state=\"RUNNING\"} 2"),
            "{page}"
        );
        assert!(
            page.contains("bftrainer_trainers_without_series 5"),
            "{page}"
        );
        let series = "bftrainer_trainer_harvested_node_seconds_total{";
        assert_eq!(page.matches(series).count(), MOST_TRAINERS);
        metrics.set_trainers(["RUNNING"].into_iter(), &[sample(7)]);
        let page = metrics.encode();
        assert_eq!(page.matches(series).count(), 1);
        assert!(page.contains("{jobid=\"7\",user=\"ada\"} 3.5"), "{page}");
    }
}
