//! What the daemon shows over HTTP on this host.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Input, brain::Brain};
use crate::metrics::{CONTENT_TYPE, TrainerSample};

/// The brain answers within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pages; the brain answers through `inputs`.
pub fn router(inputs: mpsc::UnboundedSender<Input>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(inputs)
}

async fn metrics(State(inputs): State<mpsc::UnboundedSender<Input>>) -> Response {
    let (answer, answered) = oneshot::channel();
    // When the brain is gone, `answered` fails as well.
    let _ = inputs.send(Input::Metrics { answer });
    match timeout(PATIENCE, answered).await {
        Ok(Ok(page)) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "bftrainerd is busy\n").into_response(),
    }
}

impl Brain {
    /// The metrics' page.
    pub(super) fn metrics_page(&self, now_s: f64) -> String {
        let metrics = &self.accounting.metrics;
        let pool = self.engine.pool();
        let workers = pool.nodes().filter(|node| node.worker.is_some()).count();
        metrics.pool_nodes.set(pool.len() as i64);
        metrics.held_nodes.set(workers as i64);
        metrics.agents.set(self.agents.connected() as i64);
        metrics.plain_jobs.set(self.plain_jobs as i64);
        let nodes = self.engine.pool().ids();
        let quarantined = nodes
            .filter(|node| self.engine.quarantine_of(*node, now_s).is_some())
            .count();
        metrics.quarantined_nodes.set(quarantined as i64);
        let samples = self.trainer_samples();
        let training: f64 = samples.iter().map(|sample| sample.nodes).sum();
        metrics.training_nodes.set(training as i64);
        metrics.set_trainers(self.trainer_states(), &samples);
        metrics.encode()
    }

    /// Those with the most nodes first: beyond the cap the least is lost.
    fn trainer_samples(&self) -> Vec<TrainerSample> {
        let mut samples: Vec<TrainerSample> = self
            .arrays
            .iter()
            .map(|(id, array)| TrainerSample {
                jobid: *id,
                user: array.owner_name.clone(),
                nodes: self.running_nodes_of(*id) as f64,
                samples: array.progress.samples as f64,
                harvested_node_s: array.harvested_node_s,
            })
            .collect();
        samples.sort_by(|one, other| other.nodes.total_cmp(&one.nodes));
        samples
    }
}
