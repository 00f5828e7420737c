//! Nodes that are left alone for a while: by one trainer whose program or task
//! failed there, or by all when it is the node's own fault or a trainer of another
//! owner failed there, too.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::forced::Forced;
use super::{Engine, EngineConfig};
use crate::node::NodeId;
use crate::trainer::{Failure, TrainerId};

/// A node that is not used for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Until when, epoch seconds.
    pub until_s: f64,
    /// How often in a row.
    pub times: u32,
    /// In words.
    pub reason: String,
}

impl Quarantine {
    fn lasts(&self, now_s: f64) -> bool {
        now_s < self.until_s
    }

    /// Not all programs report progress: a node that was good for long is forgiven, too.
    fn is_forgiven(&self, now_s: f64, config: &EngineConfig) -> bool {
        now_s >= self.until_s + config.quarantine_max_s
    }

    /// The quarantine that follows on `earlier` ones, twice as long as the last.
    fn after(earlier: Option<&Self>, now_s: f64, reason: String, config: &EngineConfig) -> Self {
        let times = earlier
            .filter(|quarantine| !quarantine.is_forgiven(now_s, config))
            .map_or(0, |quarantine| quarantine.times);
        Quarantine {
            until_s: now_s + config.quarantine_length_s(times),
            times: times.saturating_add(1),
            reason,
        }
    }
}

impl EngineConfig {
    /// How long the quarantine after `earlier` ones lasts, seconds.
    pub(super) fn quarantine_length_s(&self, earlier: u32) -> f64 {
        let length_s = self.quarantine_s * f64::from(2u32.saturating_pow(earlier));
        length_s.min(self.quarantine_max_s)
    }
}

/// One trainer keeps off a node where its program or its task has failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Avoidance {
    /// How long, and why.
    pub quarantine: Quarantine,
    /// Whether nobody has made progress on the node since.
    pub speaks_against_node: bool,
}

/// What speaks against nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeFaults {
    /// The nodes' own faults.
    pub nodes: BTreeMap<NodeId, Quarantine>,
    /// Failures of programs, by node and trainer.
    pub programs: BTreeMap<NodeId, BTreeMap<TrainerId, Avoidance>>,
}

impl Engine {
    /// Why nobody uses `node` at `now_s`: for its own fault, or for the failures of
    /// two owners' trainers there.
    pub fn quarantine_of(&self, node: NodeId, now_s: f64) -> Option<&Quarantine> {
        let own = self.faults.nodes.get(&node);
        own.filter(|quarantine| quarantine.lasts(now_s))
            .or_else(|| self.shared_quarantine(node, now_s))
    }

    fn shared_quarantine(&self, node: NodeId, now_s: f64) -> Option<&Quarantine> {
        let against = || {
            let avoidances = self.faults.programs.get(&node).into_iter().flatten();
            avoidances.filter(|(_, avoidance)| {
                let quarantine = &avoidance.quarantine;
                avoidance.speaks_against_node && !quarantine.is_forgiven(now_s, &self.config)
            })
        };
        let longest = against()
            .map(|(_, avoidance)| &avoidance.quarantine)
            .max_by(|a, b| a.until_s.total_cmp(&b.until_s))?;
        // The same mistake may stand in all of one owner's trainers, and those that are gone
        // can't tell.
        let owners: BTreeSet<u32> = against()
            .filter_map(|(trainer, _)| self.trainers.get(trainer))
            .map(|known| known.info.owner_uid)
            .collect();
        (owners.len() > 1 && longest.lasts(now_s)).then_some(longest)
    }

    pub(super) fn is_quarantined(&self, node: NodeId, now_s: f64) -> bool {
        self.quarantine_of(node, now_s).is_some()
    }

    /// Why `trainer` keeps off `node` at `now_s`: its program has failed there.
    pub fn avoidance_of(&self, trainer: TrainerId, node: NodeId, now_s: f64) -> Option<&Avoidance> {
        let avoidance = self.faults.programs.get(&node)?.get(&trainer)?;
        avoidance.quarantine.lasts(now_s).then_some(avoidance)
    }

    /// The trainers that keep off `node` at `now_s`, and why.
    pub fn avoided_by(
        &self,
        node: NodeId,
        now_s: f64,
    ) -> impl Iterator<Item = (TrainerId, &Avoidance)> {
        let avoidances = self.faults.programs.get(&node).into_iter().flatten();
        avoidances
            .filter(move |(_, avoidance)| avoidance.quarantine.lasts(now_s))
            .map(|(trainer, avoidance)| (*trainer, avoidance))
    }

    /// Which nodes `trainer` can't have at `now_s` as something failed there, in words.
    pub fn left_alone(&self, trainer: TrainerId, now_s: f64) -> Option<String> {
        let mut avoided: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        let mut quarantined = 0;
        for node in self.pool.ids() {
            if self.is_quarantined(node, now_s) {
                quarantined += 1;
            } else if let Some(avoidance) = self.avoidance_of(trainer, node, now_s) {
                let reason = avoidance.quarantine.reason.as_str();
                avoided.entry(reason).or_default().push(node);
            }
        }
        let avoided = avoided.into_iter();
        let sentences = avoided.map(|(reason, nodes)| {
            let why = Forced::Avoided(reason.to_owned());
            why.sentence(&nodes, &self.names)
        });
        let mut parts: Vec<String> = sentences.collect();
        match quarantined {
            0 => {}
            1 => parts.push("1 node is in quarantine".to_owned()),
            many => parts.push(format!("{many} nodes are in quarantine")),
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// What speaks, or spoke, against nodes.
    pub fn faults(&self) -> &NodeFaults {
        &self.faults
    }

    /// Takes over what an earlier engine knew against nodes.
    pub fn remember_faults(&mut self, faults: NodeFaults) {
        self.decision_due = true;
        self.faults = faults;
    }

    /// Nobody uses the node for a while.
    pub(super) fn quarantine(&mut self, now_s: f64, node: NodeId, reason: String) {
        self.decision_due = true;
        let earlier = self.faults.nodes.get(&node);
        let quarantine = Quarantine::after(earlier, now_s, reason, &self.config);
        self.faults.nodes.insert(node, quarantine);
    }

    /// `trainer` keeps off `node` for a while.
    pub(super) fn avoid(&mut self, now_s: f64, trainer: TrainerId, node: NodeId, reason: &str) {
        self.decision_due = true;
        let config = &self.config;
        let avoidances = self.faults.programs.entry(node).or_default();
        avoidances.retain(|_, avoidance| !avoidance.quarantine.is_forgiven(now_s, config));
        let earlier = avoidances
            .get(&trainer)
            .map(|avoidance| &avoidance.quarantine);
        let quarantine = Quarantine::after(earlier, now_s, reason.to_owned(), config);
        let avoidance = Avoidance {
            quarantine,
            speaks_against_node: true,
        };
        avoidances.insert(trainer, avoidance);
    }

    /// Takes back what a trainer's failures brought on their nodes.
    pub(super) fn pardon_nodes_of(&mut self, trainer: TrainerId, failures: &[Failure]) {
        for failure in failures.iter().filter(|failure| failure.brought_avoidance) {
            let Some(avoidances) = self.faults.programs.get_mut(&failure.node) else {
                continue;
            };
            if let Some(avoidance) = avoidances.get_mut(&trainer) {
                self.decision_due = true;
                avoidance.quarantine.times = avoidance.quarantine.times.saturating_sub(1);
                avoidance.quarantine.until_s = 0.0;
                if avoidance.quarantine.times == 0 {
                    avoidances.remove(&trainer);
                }
            }
            if avoidances.is_empty() {
                self.faults.programs.remove(&failure.node);
            }
        }
    }

    /// Nodes that take part in progress are good.
    pub(super) fn trust(&mut self, trainer: TrainerId, nodes: &[NodeId]) {
        for node in nodes {
            self.decision_due |= self.faults.nodes.remove(node).is_some();
            let Some(avoidances) = self.faults.programs.get_mut(node) else {
                continue;
            };
            self.decision_due = true;
            avoidances.remove(&trainer);
            for avoidance in avoidances.values_mut() {
                avoidance.speaks_against_node = false;
            }
            if avoidances.is_empty() {
                self.faults.programs.remove(node);
            }
        }
    }

    /// When a node may be used again, by all or by one trainer, or is forgiven, epoch
    /// seconds.
    pub(super) fn fault_ends_s(&self, node: NodeId) -> impl Iterator<Item = f64> {
        let own = self.faults.nodes.get(&node);
        let programs = self.faults.programs.get(&node).into_iter().flatten();
        let programs = programs.map(|(_, avoidance)| &avoidance.quarantine);
        own.into_iter()
            .chain(programs)
            .flat_map(|it| [it.until_s, it.until_s + self.config.quarantine_max_s])
    }

    /// The nodes among `usable` that trainers keep off, by trainer: nodes that they have
    /// excluded, and those where they have failed.
    pub(super) fn kept_off(
        &self,
        now_s: f64,
        usable: impl Iterator<Item = NodeId>,
    ) -> BTreeMap<TrainerId, BTreeSet<NodeId>> {
        let mut kept_off: BTreeMap<TrainerId, BTreeSet<NodeId>> = BTreeMap::new();
        let trainers = self.trainers.values().map(|known| &known.info);
        let excluding: Vec<_> = trainers
            .filter(|info| !info.terms.excluded.is_empty())
            .collect();
        if excluding.is_empty() && self.faults.programs.is_empty() {
            return kept_off;
        }
        for node in usable {
            let excluding = excluding
                .iter()
                .filter(|info| info.terms.excluded.contains(&node));
            let excluding = excluding.map(|info| info.id);
            let avoiding = self.avoided_by(node, now_s).map(|(trainer, _)| trainer);
            for trainer in excluding.chain(avoiding) {
                kept_off.entry(trainer).or_default().insert(node);
            }
        }
        kept_off
    }
}
