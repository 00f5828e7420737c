//! What speaks against nodes, between the engine, which numbers nodes, and the
//! store, which names them.

use bftrainer_core::engine::{Avoidance, Engine, NodeFaults};

use super::brain::Brain;
use crate::store::{NodeFault, Record};

/// Tells a new engine what an earlier daemon knew.
pub(super) fn restore(engine: &mut Engine, kept: Vec<NodeFault>) {
    let mut faults = NodeFaults::default();
    for fault in kept {
        let node = engine.names.intern(&fault.node);
        match fault.trainer {
            None => {
                faults.nodes.insert(node, fault.quarantine);
            }
            Some(trainer) => {
                let avoidance = Avoidance {
                    quarantine: fault.quarantine,
                    speaks_against_node: fault.speaks_against_node,
                };
                let by_trainer = faults.programs.entry(node).or_default();
                by_trainer.insert(trainer, avoidance);
            }
        }
    }
    engine.remember_faults(faults);
}

impl Brain {
    /// Hands what speaks against nodes to the store when it has changed.
    pub(super) fn keep_node_faults(&mut self) {
        let faults = self.engine.faults();
        if *faults == self.kept_faults {
            return;
        }
        let name = |node| self.engine.names.name(node).to_owned();
        let of_nodes = faults.nodes.iter().map(|(node, quarantine)| NodeFault {
            node: name(*node),
            trainer: None,
            quarantine: quarantine.clone(),
            speaks_against_node: true,
        });
        let by_trainer = faults.programs.iter().flat_map(|(node, avoidances)| {
            avoidances.iter().map(|(trainer, avoidance)| NodeFault {
                node: name(*node),
                trainer: Some(*trainer),
                quarantine: avoidance.quarantine.clone(),
                speaks_against_node: avoidance.speaks_against_node,
            })
        });
        let record = Record::NodeFaults(of_nodes.chain(by_trainer).collect());
        self.kept_faults = faults.clone();
        self.store.keep(record);
    }
}

#[cfg(test)]
mod tests {
    use bftrainer_core::engine::{EngineConfig, Quarantine};
    use bftrainer_core::trainer::TrainerId;

    use super::*;

    #[test]
    fn a_new_engine_leaves_alone_what_the_old_one_did() {
        let fault = |node: &str, trainer: Option<u32>| NodeFault {
            node: node.to_owned(),
            trainer: trainer.map(TrainerId),
            quarantine: Quarantine {
                until_s: 100.0,
                times: 1,
                reason: "it failed".to_owned(),
            },
            speaks_against_node: true,
        };
        let mut engine = Engine::new(EngineConfig::default());
        let kept = vec![fault("n1", None), fault("n2", Some(7))];
        restore(&mut engine, kept);
        let [n1, n2] = ["n1", "n2"].map(|name| engine.names.intern(name));
        assert!(engine.quarantine_of(n1, 99.0).is_some());
        assert!(engine.quarantine_of(n1, 100.0).is_none());
        assert!(engine.quarantine_of(n2, 99.0).is_none());
        assert!(engine.avoidance_of(TrainerId(7), n2, 99.0).is_some());
    }
}
