//! Which nodes: those that came together, and neighbours, go to one trainer, as they will leave
//! together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use super::decide::Holdings;
use super::pose::Round;
use crate::allocation::Share;
use crate::node::NodeId;
use crate::pool::Phase;
use crate::trainer::TrainerId;

/// What a node is sorted by: those that joined together, then neighbours.
type NodeKey = (u64, u32);

/// Which nodes change hands.
#[derive(Default)]
pub(super) struct Moves {
    pub released: Vec<NodeId>,
    pub given: Vec<(TrainerId, NodeId)>,
    /// Why it can't be done.
    pub short: Option<Shortage>,
}

/// Too few nodes of a group are left that a trainer does not keep off.
pub(super) struct Shortage {
    pub trainer: TrainerId,
    pub group: usize,
    /// The most of these that it can have.
    pub most: u32,
    /// Whether it would leave nodes of another group for them.
    pub would_move: bool,
}

/// A trainer that gets more nodes of one group.
struct Growing<'h> {
    trainer: TrainerId,
    group: usize,
    /// What it has of that group already.
    kept: Vec<NodeId>,
    /// Whether it leaves nodes of another group.
    moves: bool,
    wanted: usize,
    kept_off: Option<&'h BTreeSet<NodeId>>,
}

impl Engine {
    fn key(&self, node: NodeId) -> NodeKey {
        let join_event = self.pool.get(node).map_or(u64::MAX, |node| node.join_event);
        (join_event, self.names.rank(node))
    }

    /// The `count` of a trainer's `nodes` that it misses least: those where it has no
    /// worker, those on which it does not run, those that are expected back, then the highest keys.
    fn to_release(
        &self,
        now_s: f64,
        trainer: TrainerId,
        mut nodes: Vec<NodeId>,
        count: usize,
    ) -> Vec<NodeId> {
        nodes.sort_by_cached_key(|node| {
            (
                self.pool[*node].keeps_worker_of(trainer),
                self.is_settled(*node, trainer),
                !self.is_short(*node, now_s),
                Reverse(self.key(*node)),
            )
        });
        nodes.truncate(count);
        nodes
    }

    /// What each trainer releases, in the order of the round's trainers.
    pub(super) fn releases(
        &self,
        now_s: f64,
        holdings: &Holdings,
        round: &Round,
    ) -> Vec<Vec<NodeId>> {
        let shares = round.shares();
        let releases =
            shares.map(|(id, to)| self.released(now_s, round, id, holdings.held(id), to));
        releases.collect()
    }

    /// What a trainer with `held` nodes releases when its share becomes `to`: all nodes of other
    /// groups, and what is too much.
    fn released(
        &self,
        now_s: f64,
        round: &Round,
        trainer: TrainerId,
        held: &[NodeId],
        to: Share,
    ) -> Vec<NodeId> {
        if round.groups.all.len() == 1 && held.len() <= to.nodes as usize {
            return Vec::new();
        }
        let is_of_share =
            |node: &&NodeId| to.nodes > 0 && self.group_of(round, **node) == Some(to.class);
        let (of_share, mut released): (Vec<NodeId>, Vec<NodeId>) =
            held.iter().partition(is_of_share);
        let too_many = of_share.len().saturating_sub(to.nodes as usize);
        if too_many > 0 {
            released.extend(self.to_release(now_s, trainer, of_share, too_many));
        }
        released
    }

    /// Shrinking trainers have `released` nodes; then the free nodes, sorted by key, go
    /// to the growing ones: first to those that keep off most of them, then in the
    /// order of the median key that each holds.
    pub(super) fn moves(
        &self,
        holdings: &Holdings,
        round: &Round,
        released: Vec<Vec<NodeId>>,
    ) -> Moves {
        let mut moves = Moves::default();
        let mut growing = Vec::new();
        for ((trainer, to), released) in round.shares().zip(released) {
            let held = holdings.held(trainer);
            if held.len() - released.len() < to.nodes as usize {
                let kept = held.iter().copied().filter(|node| !released.contains(node));
                let kept: Vec<NodeId> = kept.collect();
                growing.push(Growing {
                    trainer,
                    group: to.class,
                    wanted: to.nodes as usize - kept.len(),
                    moves: kept.is_empty() && !held.is_empty(),
                    kept,
                    kept_off: holdings.kept_off.get(&trainer),
                });
            }
            moves.released.extend(released);
        }
        let mut free: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        for node in holdings.free.iter().chain(&moves.released) {
            if let Some(group) = self.group_of(round, *node) {
                free.entry(group).or_default().push(*node);
            }
        }
        for nodes in free.values_mut() {
            nodes.sort_by_cached_key(|node| self.key(*node));
        }
        // Trainers without nodes come last.
        growing.sort_by_cached_key(|growing| {
            let free = free.get(&growing.group).map_or(&[][..], Vec::as_slice);
            let kept_off = growing.kept_off.map_or(0, |nodes| {
                free.iter().filter(|node| nodes.contains(node)).count()
            });
            let median = self.median_key(&growing.kept);
            (Reverse(kept_off), median.is_none(), median)
        });
        for growing in growing {
            let free = free.entry(growing.group).or_default();
            self.serve(&growing, free, &mut moves);
            if moves.short.is_some() {
                break;
            }
        }
        moves
    }

    /// Gives a growing trainer the first of the free nodes that it does not keep off.
    fn serve(&self, growing: &Growing, free: &mut Vec<NodeId>, moves: &mut Moves) {
        let kept_off = growing.kept_off;
        let may_have = |node: &NodeId| kept_off.is_none_or(|nodes| !nodes.contains(node));
        let mut left = growing.wanted;
        free.retain(|node| {
            let is_given = left > 0 && may_have(node);
            if is_given {
                moves.given.push((growing.trainer, *node));
                left -= 1;
            }
            !is_given
        });
        if left > 0 {
            moves.short = Some(Shortage {
                trainer: growing.trainer,
                group: growing.group,
                most: (growing.kept.len() + growing.wanted - left) as u32,
                would_move: growing.moves,
            });
        }
    }

    fn group_of(&self, round: &Round, node: NodeId) -> Option<usize> {
        round.groups.of(self.class_of(node))
    }

    fn median_key(&self, nodes: &[NodeId]) -> Option<NodeKey> {
        let mut keys: Vec<NodeKey> = nodes.iter().map(|node| self.key(*node)).collect();
        keys.sort_unstable();
        keys.get(keys.len() / 2).copied()
    }

    pub(super) fn assign(&mut self, moves: &Moves) {
        let released = moves.released.iter().map(|node| (node, None));
        let given = moves.given.iter();
        let given = given.map(|(trainer, node)| (node, Some(*trainer)));
        for (node, assigned) in released.chain(given) {
            self.pool.update(*node, |it| it.assigned = assigned);
        }
    }

    /// Whether `trainer`'s worker on `node` runs or could run ranks.
    pub(super) fn is_settled(&self, node: NodeId, trainer: TrainerId) -> bool {
        self.pool
            .get(node)
            .and_then(|node| node.worker_of(trainer))
            .is_some_and(|worker| {
                matches!(worker.phase, Phase::Member | Phase::Ready | Phase::Found)
            })
    }
}
