//! How a real cluster differs from the ideal one, and workers that are on their way.

use std::collections::BTreeMap;

use crate::node::NodeId;
use crate::trainer::TrainerId;

/// How a cluster differs from the ideal one. All zero: the ideal, as in the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// From a placement to its worker's hello, seconds.
    pub start_s: f64,
    /// Placements per second; 0 for no limit.
    pub starts_per_s: f64,
    /// Between two checkpoints, seconds; 0 for no loss on preemption.
    pub checkpoint_s: f64,
    /// For one checkpoint, seconds.
    pub save_s: f64,
}

impl Latency {
    /// Share of the time that is spent on training rather than on checkpoints.
    pub(super) fn training_share(&self) -> f64 {
        if self.checkpoint_s > 0.0 {
            self.checkpoint_s / (self.checkpoint_s + self.save_s)
        } else {
            1.0
        }
    }

    /// Work lost, in seconds of the rate, by who runs since `running_s` seconds and loses a node.
    pub(super) fn lost_s(&self, running_s: f64) -> f64 {
        if self.checkpoint_s > 0.0 {
            running_s % (self.checkpoint_s + self.save_s)
        } else {
            0.0
        }
    }
}

/// Workers that were placed and have not said hello.
#[derive(Default)]
pub(super) struct Starting {
    /// (time, number) to (trainer, node): in the order of their hellos.
    due: BTreeMap<(u64, u64), (TrainerId, NodeId)>,
    /// Key in `due` by node.
    by_node: BTreeMap<NodeId, (u64, u64)>,
    number: u64,
    /// When the next placement may be made, epoch seconds.
    next_s: f64,
}

impl Starting {
    pub(super) fn place(
        &mut self,
        now_s: f64,
        latency: &Latency,
        trainer: TrainerId,
        node: NodeId,
    ) {
        let mut at_s = now_s;
        if latency.starts_per_s > 0.0 {
            at_s = at_s.max(self.next_s);
            self.next_s = at_s + 1.0 / latency.starts_per_s;
        }
        // Times from 0 on sort by their bits.
        let key = ((at_s + latency.start_s).max(0.0).to_bits(), self.number);
        self.number += 1;
        self.due.insert(key, (trainer, node));
        self.by_node.insert(node, key);
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        if let Some(key) = self.by_node.remove(&node) {
            self.due.remove(&key);
        }
    }

    pub(super) fn next_s(&self) -> f64 {
        let first = self.due.first_key_value();
        first.map_or(f64::INFINITY, |((bits, _), _)| f64::from_bits(*bits))
    }

    /// The next one that is due at `now_s`.
    pub(super) fn pop(&mut self, now_s: f64) -> Option<(TrainerId, NodeId)> {
        if self.next_s() > now_s {
            return None;
        }
        let (_, (trainer, node)) = self.due.pop_first()?;
        self.by_node.remove(&node);
        Some((trainer, node))
    }
}
