//! From times during which nodes were occupied, by jobs or because they were down, to pool events:
//! a node is idle when nothing occupies it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bftrainer_core::replay::PoolEvent;

use super::assemble::Assembler;
use super::{Events, NodeChoice, TraceError};

/// Names of nodes by number.
#[derive(Default)]
pub(super) struct Nodes {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Nodes {
    pub(super) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

/// When which nodes were occupied.
#[derive(Default)]
pub(super) struct Occupancy {
    pub(super) nodes: Nodes,
    /// (epoch seconds, node, +1 or -1)
    changes: Vec<(f64, u32, i32)>,
    /// Nodes whose occupation had no end.
    endless: Vec<(f64, u32)>,
    /// Planned ends of idle nodes' holes: (epoch seconds, node, end).
    planned: Vec<(f64, u32, Option<f64>)>,
}

impl Occupancy {
    /// Something is on `node` from `start_s` to `end_s`, epoch seconds; without an end it is there
    /// until the log ends.
    pub(super) fn add(&mut self, node: u32, start_s: f64, end_s: Option<f64>) {
        match end_s {
            Some(end_s) => {
                self.changes.push((start_s, node, 1));
                self.changes.push((end_s, node, -1));
            }
            None => self.endless.push((start_s, node)),
        }
    }

    /// From `time_s` on, the idle `node` is planned to be used again at `end_s`.
    pub(super) fn plan(&mut self, time_s: f64, node: u32, end_s: Option<f64>) {
        self.planned.push((time_s, node, end_s));
    }

    /// The log as a stream of events, of the nodes in `choice`.
    pub(super) fn events(mut self, choice: &NodeChoice) -> Changes {
        let starts = self
            .endless
            .iter()
            .map(|(start_s, node)| (*start_s, *node, 1));
        self.changes.extend(starts);
        self.changes
            .sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        self.planned.sort_by(|a, b| a.0.total_cmp(&b.0));
        let count = self.nodes.names.len();
        Changes {
            all_changes: self.changes.len(),
            names: self.nodes.names,
            changes: self.changes.into(),
            planned: self.planned.into(),
            occupied: vec![0; count],
            ends: vec![None; count],
            assembler: Assembler::new(choice),
            ready: VecDeque::new(),
            began: false,
        }
    }
}

/// A stream of events from occupied times.
pub(super) struct Changes {
    all_changes: usize,
    names: Vec<String>,
    changes: VecDeque<(f64, u32, i32)>,
    planned: VecDeque<(f64, u32, Option<f64>)>,
    /// How much is on each node.
    occupied: Vec<i32>,
    /// Planned ends.
    ends: Vec<Option<f64>>,
    assembler: Assembler,
    ready: VecDeque<PoolEvent>,
    began: bool,
}

impl Changes {
    /// Takes in all that happens at the next time; false at the end.
    fn advance(&mut self) -> bool {
        let Some((time_s, _, _)) = self.changes.front().copied() else {
            return false;
        };
        // Nodes whose state may have changed, and what they were before.
        let mut touched: BTreeMap<u32, bool> = BTreeMap::new();
        if !self.began {
            self.began = true;
            touched.extend((0..self.names.len() as u32).map(|node| (node, false)));
        }
        while let Some((_, node, change)) = self.changes.front().copied().filter(|c| c.0 <= time_s)
        {
            self.changes.pop_front();
            let occupied = &mut self.occupied[node as usize];
            touched.entry(node).or_insert(*occupied == 0);
            *occupied += change;
            self.ends[node as usize] = None;
        }
        while let Some((_, node, end_s)) = self.planned.front().copied().filter(|p| p.0 <= time_s) {
            self.planned.pop_front();
            self.ends[node as usize] = end_s;
            let idle = self.occupied[node as usize] == 0;
            touched.entry(node).or_insert(idle);
        }
        // What is taken away comes first.
        for idle in [false, true] {
            for node in touched.keys() {
                let index = *node as usize;
                if (self.occupied[index] == 0) == idle {
                    let (name, end_s) = (&self.names[index], self.ends[index]);
                    let complete = self.assembler.transition(time_s, name, idle, end_s);
                    self.ready.extend(complete);
                }
            }
        }
        true
    }
}

impl Iterator for Changes {
    type Item = Result<PoolEvent, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            if !self.advance() {
                self.ready.extend(self.assembler.finish());
                break;
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl Events for Changes {
    fn first_s(&self) -> Option<f64> {
        self.assembler.first_s()
    }

    fn share(&self) -> f64 {
        1.0 - self.changes.len() as f64 / self.all_changes.max(1) as f64
    }
}
