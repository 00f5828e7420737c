//! The trainers that are to be replayed, in the order in which they are submitted.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::curve::Curve;

/// A trainer as its file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerSpec {
    /// Its name; need not be unique.
    pub name: String,
    /// When it is submitted, epoch seconds.
    pub submit_s: f64,
    /// Fewest nodes, at least 1.
    pub min_nodes: u32,
    /// Most nodes.
    pub max_nodes: u32,
    /// Seconds without progress when it grows.
    pub up_s: f64,
    /// Seconds without progress when it shrinks or loses nodes.
    pub down_s: f64,
    /// Samples after which it is done.
    pub samples: f64,
    /// Samples per second over the number of nodes.
    pub throughput: Curve,
    /// What is maximised over the number of nodes when the file's objective is asked for.
    pub objective: Curve,
}

/// Trainers that wait for their turn.
#[derive(Clone, Debug)]
pub struct Queue {
    specs: Vec<Arc<TrainerSpec>>,
    next: VecDeque<Arc<TrainerSpec>>,
    repeat: bool,
}

impl Queue {
    /// A queue of `specs`, sorted by submit time. With `repeat` it never ends: when the list runs
    /// out it starts again, every copy submitted at the list's last submit time.
    pub fn new(mut specs: Vec<TrainerSpec>, repeat: bool) -> Self {
        specs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
        let next = specs.iter().cloned().map(Arc::new).collect();
        let last_s = specs.last().map_or(0.0, |spec| spec.submit_s);
        for spec in &mut specs {
            spec.submit_s = last_s;
        }
        Queue {
            specs: specs.into_iter().map(Arc::new).collect(),
            next,
            repeat,
        }
    }

    /// When the next trainer is submitted, epoch seconds; `None` when none is left.
    pub fn next_submit_s(&self) -> Option<f64> {
        self.next.front().map(|spec| spec.submit_s)
    }

    /// The next trainer that was submitted by `now_s`.
    pub fn pop(&mut self, now_s: f64) -> Option<Arc<TrainerSpec>> {
        if self.next_submit_s()? > now_s {
            return None;
        }
        let spec = self.next.pop_front();
        if self.next.is_empty() && self.repeat {
            self.next.extend(self.specs.iter().cloned());
        }
        spec
    }

    /// Whether no trainer is left.
    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, submit_s: f64) -> TrainerSpec {
        let curve = Curve::new(&[(1, 1.0)]).unwrap();
        TrainerSpec {
            name: name.to_owned(),
            submit_s,
            min_nodes: 1,
            max_nodes: 1,
            up_s: 0.0,
            down_s: 0.0,
            samples: 1.0,
            throughput: curve.clone(),
            objective: curve,
        }
    }

    #[test]
    fn copies_of_an_endless_list_are_submitted_with_its_last_trainer() {
        let mut queue = Queue::new(vec![spec("b", 5.0), spec("a", 1.0)], true);
        assert_eq!(queue.pop(0.0), None);
        assert_eq!(
            queue.pop(4.0).map(|spec| spec.name.clone()),
            Some("a".into())
        );
        assert_eq!(queue.pop(4.0), None);
        let names: Vec<String> = (0..4)
            .map(|_| queue.pop(5.0).unwrap().name.clone())
            .collect();
        assert_eq!(names, ["b", "a", "b", "a"]);
    }

    #[test]
    fn a_list_that_is_not_repeated_ends() {
        let mut queue = Queue::new(vec![spec("a", 1.0)], false);
        assert!(queue.pop(1.0).is_some());
        assert!(queue.is_empty());
        assert_eq!(queue.next_submit_s(), None);
    }
}
