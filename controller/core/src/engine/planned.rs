//! Nodes whose planned end is known: how long they may be used, so that Slurm finds them empty
//! when it wants them.

use super::{Engine, SAVE_MARGIN_S};
use crate::node::NodeId;
use crate::pool::PoolNode;
use crate::trainer::TrainerId;

impl Engine {
    /// Whether `node` may be used at `now_s`: to keep its worker or to get one.
    pub fn is_usable(&self, node: NodeId, now_s: f64) -> bool {
        let pool_node = self.pool.get(node);
        pool_node.is_some_and(|it| self.outlasts(it, now_s)) && !self.is_quarantined(node, now_s)
    }

    /// Whether the node's planned end, if any, leaves time to use it.
    pub(super) fn outlasts(&self, node: &PoolNode, now_s: f64) -> bool {
        self.unusable_at_s(node).is_none_or(|time_s| now_s < time_s)
    }

    /// From when on the node's planned end forbids its use, epoch seconds: a
    /// worker that is there leaves just in time, a new one needs longer.
    pub(super) fn unusable_at_s(&self, node: &PoolNode) -> Option<f64> {
        let end_s = node.hole_end_s?;
        let stays = node
            .assigned
            .filter(|trainer| node.keeps_worker_of(*trainer));
        match stays {
            Some(trainer) => Some(end_s - self.vacate_lead_s(trainer)),
            None => self
                .last_start_s(node)
                .map(|time_s| time_s - self.start_lead_s()),
        }
    }

    /// By when a worker must start on `node` so that Slurm finds room for it: the
    /// planned end on backfill's grid, less the wait for its next cycle; epoch seconds.
    fn last_start_s(&self, node: &PoolNode) -> Option<f64> {
        let grid_s = self.config.plan_grid_s;
        let end_s = node.hole_end_s?;
        let grid_end_s = if grid_s > 0.0 {
            (end_s / grid_s).floor() * grid_s
        } else {
            end_s
        };
        Some(grid_end_s - self.config.plan_wait_s)
    }

    /// How long a worker that is placed on `node` at `now_s` could stay there.
    pub(super) fn room_s(&self, node: &PoolNode, now_s: f64) -> f64 {
        self.last_start_s(node)
            .map_or(f64::INFINITY, |time_s| time_s - now_s)
    }

    /// How long before its planned end a node gets no worker any more.
    fn start_lead_s(&self) -> f64 {
        self.config.min_hole_s.max(self.config.vacate_lead_s)
    }

    /// How long before its planned end `trainer` vacates a node: long enough to save.
    pub(super) fn vacate_lead_s(&self, trainer: TrainerId) -> f64 {
        let save_s = self.trainers.get(&trainer).and_then(|known| known.save_s);
        let least_s = save_s.map_or(0.0, |save_s| save_s + SAVE_MARGIN_S);
        least_s
            .max(self.config.vacate_lead_s)
            .min(self.start_lead_s())
    }

    /// Whether the node is expected back too soon for a new worker.
    pub(super) fn is_short(&self, node: NodeId, now_s: f64) -> bool {
        let last_start_s = self.pool.get(node).and_then(|it| self.last_start_s(it));
        last_start_s.is_some_and(|time_s| now_s >= time_s - self.start_lead_s())
    }
}
