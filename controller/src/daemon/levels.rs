//! How many of what there are now, for the page and for Prometheus.

use serde::Serialize;

use super::accounting::running_nodes;
use super::brain::Brain;
use crate::metrics::TrainerSample;

/// Nodes by what they are used for.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct NodeCounts {
    /// Idle or held by trainers.
    pub pool: usize,
    /// Of these, with a worker.
    pub held: usize,
    /// Of these, with running ranks.
    pub training: usize,
    /// Left alone after a failure.
    pub quarantined: usize,
}

impl Brain {
    pub(super) fn node_counts(&self, now_s: f64) -> NodeCounts {
        let pool = self.engine.pool();
        let trainers = self.engine.trainers().values();
        let is_quarantined = |node: &_| self.engine.quarantine_of(*node, now_s).is_some();
        NodeCounts {
            pool: pool.len(),
            held: pool.nodes().filter(|node| node.worker.is_some()).count(),
            training: trainers.map(running_nodes).sum(),
            quarantined: pool.ids().filter(is_quarantined).count(),
        }
    }

    /// The metrics' page.
    pub(super) fn metrics_page(&self, now_s: f64) -> String {
        let metrics = &self.accounting.metrics;
        let counts = self.node_counts(now_s);
        metrics.pool_nodes.set(counts.pool as i64);
        metrics.held_nodes.set(counts.held as i64);
        metrics.training_nodes.set(counts.training as i64);
        metrics.quarantined_nodes.set(counts.quarantined as i64);
        metrics.agents.set(self.agents.connected() as i64);
        metrics.plain_jobs.set(self.plain_jobs as i64);
        metrics.set_trainers(self.trainer_states(), &self.trainer_samples());
        metrics.encode()
    }

    /// Those with the most nodes first: beyond the cap the least is lost. Without names where
    /// users don't see each other's jobs.
    fn trainer_samples(&self) -> Vec<TrainerSample> {
        let mut samples: Vec<TrainerSample> = self
            .arrays
            .iter()
            .map(|(id, array)| TrainerSample {
                jobid: *id,
                user: match self.settings.private_jobs {
                    true => String::new(),
                    false => array.owner_name.clone(),
                },
                nodes: self.running_nodes_of(*id) as f64,
                samples: array.progress.samples as f64,
                harvested_node_s: array.harvested_node_s,
            })
            .collect();
        samples.sort_by(|one, other| other.nodes.total_cmp(&one.nodes));
        samples
    }
}
