//! Transitions of nodes in, pool events out: all transitions of one time stamp are one event.

use std::collections::HashMap;

use bftrainer_core::node::NodeId;
use bftrainer_core::replay::PoolEvent;

use super::NodeChoice;

/// Puts transitions together to events.
pub(super) struct Assembler {
    ids: HashMap<String, NodeId>,
    /// How many more nodes may be taken in.
    room: usize,
    /// Whether each node is idle, by number.
    idle: Vec<bool>,
    /// Planned end of each node's hole, by number, epoch seconds.
    ends: Vec<Option<f64>>,
    event: PoolEvent,
    first_s: Option<f64>,
}

impl Assembler {
    pub(super) fn new(choice: &NodeChoice) -> Self {
        let first = choice.first.unwrap_or(usize::MAX);
        let listed = choice.list.as_deref().unwrap_or_default();
        let ids: HashMap<String, NodeId> = listed
            .iter()
            .take(first)
            .zip(0..)
            .map(|(name, id)| (name.clone(), NodeId(id)))
            .collect();
        Assembler {
            room: if choice.list.is_some() { 0 } else { first },
            idle: vec![false; listed.len().min(first)],
            ends: vec![None; listed.len().min(first)],
            ids,
            event: PoolEvent::default(),
            first_s: None,
        }
    }

    /// Time of the first transition, epoch seconds.
    pub(super) fn first_s(&self) -> Option<f64> {
        self.first_s
    }

    /// Time of the newest transition, epoch seconds.
    pub(super) fn now_s(&self) -> Option<f64> {
        self.first_s.map(|first_s| first_s.max(self.event.time_s))
    }

    /// Takes in a transition; times must not go backwards. Returns the event before it when that
    /// is complete.
    pub(super) fn transition(
        &mut self,
        time_s: f64,
        node: &str,
        idle: bool,
        end_s: Option<f64>,
    ) -> Option<PoolEvent> {
        let complete = if self.first_s.is_some() && time_s > self.event.time_s {
            self.finish()
        } else {
            None
        };
        self.first_s.get_or_insert(time_s);
        self.event.time_s = time_s;
        if let Some(id) = self.id(node) {
            self.change(id, idle, end_s);
        }
        complete
    }

    /// The event that is being put together, unless it is empty.
    pub(super) fn finish(&mut self) -> Option<PoolEvent> {
        let time_s = self.event.time_s;
        let mut event = std::mem::take(&mut self.event);
        self.event.time_s = time_s;
        if event.left.is_empty() && event.joined.is_empty() && event.ends.is_empty() {
            // The names go with the next event.
            self.event.new_names = event.new_names;
            return None;
        }
        event.left.sort_unstable();
        event.joined.sort_unstable_by_key(|(node, _)| *node);
        Some(event)
    }

    fn id(&mut self, node: &str) -> Option<NodeId> {
        if let Some(id) = self.ids.get(node) {
            return Some(*id);
        }
        if self.room == 0 {
            return None;
        }
        self.room -= 1;
        let id = NodeId(self.idle.len() as u32);
        self.ids.insert(node.to_owned(), id);
        self.idle.push(false);
        self.ends.push(None);
        self.event.new_names.push(node.to_owned());
        Some(id)
    }

    /// What a node already is, it may be told to be again.
    fn change(&mut self, id: NodeId, idle: bool, end_s: Option<f64>) {
        let is_idle = &mut self.idle[id.0 as usize];
        let event = &mut self.event;
        match (*is_idle, idle) {
            (false, true) => event.joined.push((id, end_s)),
            (true, false) => match event.joined.iter().position(|(node, _)| *node == id) {
                Some(index) => drop(event.joined.swap_remove(index)),
                None => event.left.push(id),
            },
            (true, true) if self.ends[id.0 as usize] != end_s => event.ends.push((id, end_s)),
            _ => {}
        }
        *is_idle = idle;
        self.ends[id.0 as usize] = end_s;
    }
}
