//! The nodes that a task has left, and when.
//!
//! A slurmd keeps what it knows of a job's run for a while after its end; a new run of the same job
//! that comes meanwhile can be taken for the old one. Slurm itself waits 120 s before it starts a
//! requeued job again, which a placement's begin time switches off.

use std::collections::BTreeMap;

/// The same task must not return to the node that it left within this time, seconds:
/// Slurm revokes the credential of the new run with the old one's, and on a busy
/// machine a slurmd was seen to wait in vain for the prolog of a job that it had had
/// 4 s before, and was drained. Of several tasks the one that left the node longest ago
/// is taken.
pub const SAME_NODE_PAUSE_S: f64 = 10.0;

/// Longer ago makes no difference, seconds: as long as Slurm keeps a requeued job back by itself.
const REMEMBERED_S: f64 = 120.0;

/// When a task left which node, epoch seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Left {
    nodes: BTreeMap<String, f64>,
    /// It left some node that is not known.
    any_s: Option<f64>,
}

impl Left {
    /// It left a node, nobody knows which.
    pub fn some_node(time_s: f64) -> Self {
        Left {
            any_s: Some(time_s),
            ..Left::default()
        }
    }

    /// It leaves `node` now.
    pub fn leaves(&mut self, node: &str, now_s: f64) {
        self.nodes
            .retain(|_, time_s| now_s - *time_s < REMEMBERED_S);
        self.nodes.insert(node.to_owned(), now_s);
    }

    /// When it left `node` last, epoch seconds; negative infinity if it never did, as far as is
    /// known.
    pub fn left_s(&self, node: &str) -> f64 {
        let known_s = self.nodes.get(node).copied();
        known_s
            .into_iter()
            .chain(self.any_s)
            .fold(f64::NEG_INFINITY, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_remembered_for_a_while_and_not_only_the_last() {
        let mut left = Left::default();
        assert_eq!(left.left_s("n1"), f64::NEG_INFINITY);
        left.leaves("n1", 1000.0);
        left.leaves("n2", 1005.0);
        assert_eq!((left.left_s("n1"), left.left_s("n2")), (1000.0, 1005.0));
        left.leaves("n3", 1124.0);
        assert_eq!(left.left_s("n1"), f64::NEG_INFINITY);
        assert_eq!(left.left_s("n2"), 1005.0);
    }

    #[test]
    fn a_node_that_is_not_known_may_be_any() {
        let mut left = Left::some_node(1000.0);
        assert_eq!(left.left_s("n1"), 1000.0);
        left.leaves("n1", 1010.0);
        assert_eq!((left.left_s("n1"), left.left_s("n2")), (1010.0, 1000.0));
    }
}
