//! The nodes that a task has left, and when.
//!
//! A slurmd keeps what it knows of a job's run for a while after its end; a new run of the same job
//! that comes meanwhile can be taken for the old one. Slurm itself waits 120 s before it starts a
//! requeued job again, which a placement's begin time switches off.

use std::collections::BTreeMap;

/// Longer ago makes no difference, seconds.
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
    pub fn note(&mut self, node: &str, now_s: f64) {
        self.nodes
            .retain(|_, time_s| now_s - *time_s < REMEMBERED_S);
        self.nodes.insert(node.to_owned(), now_s);
    }

    /// When it left `node` last, as far as is known; long ago if it never did.
    pub fn node_s(&self, node: &str) -> f64 {
        let known_s = self.nodes.get(node).copied();
        let times = [known_s, self.any_s];
        times
            .into_iter()
            .flatten()
            .fold(f64::NEG_INFINITY, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_remembered_for_a_while_and_not_only_the_last() {
        let mut left = Left::default();
        assert_eq!(left.node_s("n1"), f64::NEG_INFINITY);
        left.note("n1", 1000.0);
        left.note("n2", 1005.0);
        assert_eq!((left.node_s("n1"), left.node_s("n2")), (1000.0, 1005.0));
        left.note("n3", 1124.0);
        assert_eq!(left.node_s("n1"), f64::NEG_INFINITY);
        assert_eq!(left.node_s("n2"), 1005.0);
    }

    #[test]
    fn a_node_that_is_not_known_may_be_any() {
        let mut left = Left::some_node(1000.0);
        assert_eq!(left.node_s("n1"), 1000.0);
        left.note("n1", 1010.0);
        assert_eq!((left.node_s("n1"), left.node_s("n2")), (1010.0, 1000.0));
    }
}
