//! Which node counts a program of which nothing is known is profiled at, and for how long.

use serde::{Deserialize, Serialize};

/// The counts, largest first: shrinking is cheap. What lies between is told by the shape.
const COUNTS: [u32; 3] = [8, 2, 1];

/// Each is measured so long, seconds.
pub const COUNT_S: f64 = 30.0;

/// A profile is over so long after the trainer first ran, whatever it has shown, seconds.
pub const LONGEST_S: f64 = 400.0;

/// A trainer that is being profiled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Counts that are still to be visited, largest first.
    counts: Vec<u32>,
    /// When it is over at the latest, epoch seconds; not known before the trainer has run.
    until_s: Option<f64>,
}

impl Plan {
    /// The plan for a trainer of these bounds; `None` when there is nothing to find out.
    pub fn new(min_nodes: u32, max_nodes: u32) -> Option<Self> {
        let bounds = min_nodes..=max_nodes;
        let counts: Vec<u32> = COUNTS.into_iter().filter(|n| bounds.contains(n)).collect();
        (min_nodes < max_nodes && !counts.is_empty()).then_some(Plan {
            counts,
            until_s: None,
        })
    }

    /// The most nodes that the trainer is to have now.
    pub fn most_nodes(&self) -> Option<u32> {
        self.counts.first().copied()
    }

    /// When it is over at the latest, epoch seconds.
    pub fn until_s(&self) -> Option<f64> {
        self.until_s
    }

    /// The trainer runs.
    pub fn runs(&mut self, now_s: f64) {
        self.until_s.get_or_insert(now_s + LONGEST_S);
    }

    /// It was measured on `nodes` nodes for long enough. On fewer nodes than it might have
    /// had it has learned as well: larger counts are then left out.
    pub fn visited(&mut self, nodes: u32) {
        self.counts.retain(|&count| count < nodes);
    }

    /// Whether nothing is left to be visited, or no time.
    pub fn is_done(&self, now_s: f64) -> bool {
        self.counts.is_empty() || self.until_s.is_some_and(|until_s| now_s >= until_s)
    }

    /// The counts that are left, as "8, 2 and 1".
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
        assert_eq!(plan.counts(), "8, 2 and 1");
        for nodes in [8, 2, 1] {
            assert_eq!(plan.most_nodes(), Some(nodes));
            assert!(!plan.is_done(0.0));
            plan.visited(nodes);
        }
        assert!(plan.is_done(0.0));
        assert_eq!(Plan::new(2, 9).unwrap().counts(), "8 and 2");
    }

    #[test]
    fn there_is_nothing_to_find_out_about_a_single_count() {
        assert_eq!(Plan::new(3, 3), None);
        assert_eq!(Plan::new(16, 64), None);
    }

    #[test]
    fn with_fewer_nodes_than_planned_it_goes_on_below() {
        let mut plan = Plan::new(1, 64).unwrap();
        plan.visited(3);
        assert_eq!(plan.most_nodes(), Some(2));
    }

    #[test]
    fn it_ends_after_its_time_though_nothing_was_measured() {
        let mut plan = Plan::new(1, 64).unwrap();
        assert!(!plan.is_done(1e9));
        plan.runs(1e9);
        plan.runs(1e9 + 300.0);
        assert!(!plan.is_done(1e9 + 399.0));
        assert!(plan.is_done(1e9 + 400.0));
    }
}
