//! The part of a log that is replayed: from a time on, with the nodes idle then, for so many
//! states or until a time.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bftrainer_core::node::NodeId;
use bftrainer_core::replay::PoolEvent;

use super::{Events, NodeChoice, TraceError};

/// Which part of a log is replayed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// From when, epoch seconds; `None`: from the log's first entry on.
    pub from_s: Option<f64>,
    /// Number of states, the first one included.
    pub states: Option<u64>,
    /// Until when, epoch seconds.
    pub until_s: Option<f64>,
}

/// A part of a log: the nodes idle at its beginning and a stream of events.
pub struct Trace {
    /// When it begins, epoch seconds.
    pub start_s: f64,
    /// Nodes that are idle then, with the epoch seconds of their planned ends where known.
    pub idle: Vec<(NodeId, Option<f64>)>,
    /// Names of the nodes known then, by number.
    pub names: Vec<String>,
    window: Window,
    events: Box<dyn Events>,
    ahead: Option<PoolEvent>,
    states: u64,
}

impl Trace {
    pub(super) fn new(
        path: PathBuf,
        mut events: Box<dyn Events>,
        choice: &NodeChoice,
        window: &Window,
    ) -> Result<Self, TraceError> {
        let listed = choice.list.iter().flatten();
        let mut names: Vec<String> = listed
            .take(choice.first.unwrap_or(usize::MAX))
            .cloned()
            .collect();
        let mut ahead = events.next().transpose()?;
        let Some(first_s) = events.first_s() else {
            return Err(TraceError::file(&path, "no entry; is the file complete?"));
        };
        let start_s = window.from_s.unwrap_or(first_s);
        let mut idle: BTreeMap<NodeId, Option<f64>> = BTreeMap::new();
        while let Some(event) = ahead.take_if(|event| event.time_s <= start_s) {
            names.extend(event.new_names);
            for node in event.left {
                idle.remove(&node);
            }
            idle.extend(event.joined);
            idle.extend(event.ends);
            ahead = events.next().transpose()?;
        }
        if ahead.is_none() && window.from_s.is_some() && idle.is_empty() {
            let problem = format!("nothing happens after {start_s}, where the replay begins");
            return Err(TraceError::file(&path, problem));
        }
        Ok(Trace {
            start_s,
            idle: idle.into_iter().collect(),
            names,
            window: *window,
            events,
            ahead,
            states: 1,
        })
    }

    /// Part of the log that is behind, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.events.share()
    }
}

impl Iterator for Trace {
    type Item = Result<PoolEvent, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.window.states.is_some_and(|most| self.states >= most) {
            return None;
        }
        let event = match self.ahead.take() {
            Some(event) => event,
            None => match self.events.next()? {
                Ok(event) => event,
                Err(error) => return Some(Err(error)),
            },
        };
        if self
            .window
            .until_s
            .is_some_and(|until_s| event.time_s > until_s)
        {
            self.window.states = Some(0);
            return None;
        }
        self.states += 1;
        Some(Ok(event))
    }
}
