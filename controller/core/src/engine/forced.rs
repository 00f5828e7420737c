//! Nodes that a trainer loses whatever they are worth to it, and the words for that.

use std::collections::BTreeMap;

use super::{Decision, Engine};
use crate::node::{NodeId, NodeNames};
use crate::trainer::TrainerId;

/// Why a trainer loses a node whatever it is worth.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Forced {
    Left,
    /// Its task was requeued, most likely for a regular job.
    Taken,
    ExpectedBack,
    Quarantined,
    /// Its program failed there, as these words say.
    Avoided(String),
    /// The site lets it have no such nodes.
    Unfit,
}

impl Engine {
    pub(super) fn note_forced_loss(&mut self, trainer: TrainerId, node: NodeId, why: Forced) {
        self.forced.push((trainer, why, node));
    }

    /// Makes one decision of all nodes that a trainer lost for the same reason since the
    /// last call.
    pub(super) fn tell_forced_losses(&mut self, now_s: f64) {
        let mut losses: BTreeMap<TrainerId, BTreeMap<Forced, Vec<NodeId>>> = BTreeMap::new();
        for (trainer, why, node) in self.forced.drain(..) {
            let reasons = losses.entry(trainer).or_default();
            reasons.entry(why).or_default().push(node);
        }
        for (trainer, reasons) in losses {
            let lost_nodes: usize = reasons.values().map(Vec::len).sum();
            let mut from_nodes = (self.pool.assigned_to(trainer).len() + lost_nodes) as u32;
            for (why, nodes) in reasons {
                let to_nodes = from_nodes - nodes.len() as u32;
                let sentence = why.sentence(&nodes, &self.names);
                self.decisions.push(Decision {
                    time_s: now_s,
                    trainer,
                    from_nodes,
                    to_nodes,
                    reason: format!("T{trainer}: {from_nodes} -> {to_nodes} nodes: {sentence}"),
                });
                from_nodes = to_nodes;
            }
        }
    }
}

impl Forced {
    /// "n1, n2, n3, n4 and 3 more left the pool".
    pub(super) fn sentence(&self, nodes: &[NodeId], names: &NodeNames) -> String {
        let subject = names.list(nodes);
        let is = if nodes.len() == 1 { "is" } else { "are" };
        match self {
            Forced::Left => format!("{subject} left the pool"),
            Forced::Taken => {
                let was = if nodes.len() == 1 { "was" } else { "were" };
                format!("{subject} {was} taken by Slurm")
            }
            Forced::ExpectedBack => format!("{subject} {is} expected back"),
            Forced::Quarantined => format!("{subject} {is} in quarantine"),
            Forced::Avoided(reason) => {
                format!("{subject} {is} avoided after a failure there ({reason})")
            }
            Forced::Unfit => format!("{subject} {is} not what it asks for"),
        }
    }
}
