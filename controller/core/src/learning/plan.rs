//! Which node counts a program of which nothing is known is profiled at, and for how long.

use serde::{Deserialize, Serialize};

/// The counts, largest first: shrinking is cheap.
const COUNTS: [u32; 4] = [8, 4, 2, 1];

/// Each is measured so long, seconds.
pub const COUNT_S: f64 = 30.0;

/// A profile is over after so much running time, whatever it has shown, seconds.
pub const LONGEST_S: f64 = 300.0;

/// A trainer that is being profiled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Counts that are still to be visited, largest first.
    counts: Vec<u32>,
    /// Measured at the present count, seconds.
    measured_s: f64,
    /// Running time since it began, seconds.
    spent_s: f64,
}

impl Plan {
    /// The plan for a trainer of these bounds; `None` when there is nothing to find out.
    pub fn new(min_nodes: u32, max_nodes: u32) -> Option<Self> {
        let bounds = min_nodes..=max_nodes;
        let counts: Vec<u32> = COUNTS.into_iter().filter(|n| bounds.contains(n)).collect();
        (min_nodes < max_nodes && !counts.is_empty()).then_some(Plan {
            counts,
            measured_s: 0.0,
            spent_s: 0.0,
        })
    }

    /// The most nodes that the trainer is to have now.
    pub fn most_nodes(&self) -> Option<u32> {
        self.counts.first().copied()
    }

    /// It ran on `nodes` nodes for `ran_s` seconds, of which `measured_s` are measured;
    /// whether the next count has come or all is done. On fewer nodes than it might have
    /// had it learns as well: larger counts are then left out.
    pub fn ran(&mut self, nodes: u32, measured_s: f64, ran_s: f64) -> bool {
        self.spent_s += ran_s;
        self.measured_s += measured_s;
        if self.spent_s >= LONGEST_S {
            self.counts.clear();
            return true;
        }
        if self.measured_s < COUNT_S {
            return false;
        }
        self.measured_s = 0.0;
        self.counts.retain(|&count| count < nodes);
        true
    }

    /// The nodes have changed: what comes is measured anew.
    pub fn changed(&mut self) {
        self.measured_s = 0.0;
    }

    /// Whether nothing is left to be visited.
    pub fn is_done(&self) -> bool {
        self.counts.is_empty()
    }

    /// The counts that are left, as "8, 4, 2 and 1".
    pub fn counts(&self) -> String {
        let words: Vec<String> = self.counts.iter().map(u32::to_string).collect();
        match words.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_down_from_eight_to_one_within_the_bounds() {
        let mut plan = Plan::new(1, 64).unwrap();
        assert_eq!(plan.counts(), "8, 4, 2 and 1");
        for nodes in [8, 4, 2, 1] {
            assert_eq!(plan.most_nodes(), Some(nodes));
            assert!(!plan.ran(nodes, 20.0, 25.0));
            assert!(plan.ran(nodes, 20.0, 25.0));
        }
        assert!(plan.is_done());
        assert_eq!(Plan::new(2, 5).unwrap().counts(), "4 and 2");
    }

    #[test]
    fn there_is_nothing_to_find_out_about_a_single_count() {
        assert_eq!(Plan::new(3, 3), None);
        assert_eq!(Plan::new(16, 64), None);
    }

    #[test]
    fn with_fewer_nodes_than_planned_it_goes_on_below() {
        let mut plan = Plan::new(1, 64).unwrap();
        assert!(plan.ran(3, 31.0, 31.0));
        assert_eq!(plan.most_nodes(), Some(2));
    }

    #[test]
    fn it_ends_after_its_time_though_nothing_was_measured() {
        let mut plan = Plan::new(1, 64).unwrap();
        for _ in 0..29 {
            assert!(!plan.ran(8, 0.0, 10.0));
        }
        assert!(plan.ran(8, 0.0, 10.0));
        assert!(plan.is_done());
    }
}
