//! From assigned nodes to running ranks: each trainer takes the steps that are possible now.
//! `roster` says how its nodes stand, `generations` starts and stops ranks, `workers` takes in
//! what agents say of themselves, `deadlines` is about those of whom nothing is heard.

use super::roster::Roster;
use super::{Action, Engine};
use crate::node::NodeId;
use crate::pool::{Phase, Worker};
use crate::trainer::TrainerId;

impl Engine {
    /// Brings every trainer a step nearer to what was decided.
    pub(super) fn drive(&mut self, now_s: f64) {
        for (trainer, nodes) in self.restless() {
            let roster = self.roster(now_s, trainer, nodes);
            self.drive_generation(now_s, trainer, &roster);
            self.dismiss(now_s, trainer, &roster);
            self.place(now_s, trainer, &roster.nodes);
        }
    }

    /// Sends home workers that are not wanted and run nothing.
    fn dismiss(&mut self, now_s: f64, trainer: TrainerId, roster: &Roster) {
        if let Some(until_s) = roster.adopts_until_s {
            self.wake_at(until_s);
        }
        let nodes = roster.nodes.iter();
        for id in nodes.filter(|id| !roster.is_assigned(**id)) {
            let phase = self.pool[*id].worker_of(trainer).map(|worker| worker.phase);
            let may_confirm = || {
                let run = self.run(trainer);
                run.is_some_and(|run| run.members.contains(id))
            };
            let is_dismissed = match phase {
                Some(Phase::Placed | Phase::Ready) => true,
                Some(Phase::Found) => roster.adopts_until_s.is_none() && !may_confirm(),
                _ => false,
            };
            if is_dismissed {
                self.set_phase(now_s, *id, trainer, Phase::Leaving);
                let reason = "the node goes to others or is expected back";
                self.send_home(trainer, *id, reason);
            }
        }
    }

    /// Places workers on assigned nodes; a trainer's first one alone.
    fn place(&mut self, now_s: f64, trainer: TrainerId, nodes: &[NodeId]) {
        let Some(known) = self.trainers.get(&trainer) else {
            return;
        };
        let time_s = known.resume_at_s.max(known.restart_at_s);
        if now_s < time_s {
            self.wake_at(time_s);
            return;
        }
        if self.pool_in_doubt {
            return;
        }
        let is_awaited = |id: &NodeId| {
            let worker = self.pool[*id].worker_of(trainer);
            worker.is_some_and(|worker| matches!(worker.phase, Phase::Placed | Phase::Found))
        };
        let most = match known.greeted {
            true => usize::MAX,
            false if nodes.iter().any(is_awaited) => 0,
            false => 1,
        };
        let stay_s = known
            .info
            .max_stay_s
            .unwrap_or(f64::INFINITY)
            .min(self.config.lease_s);
        let mut vacant: Vec<(NodeId, f64)> = nodes
            .iter()
            .map(|id| (*id, &self.pool[*id]))
            .filter(|(_, node)| node.assigned == Some(trainer) && node.worker.is_none())
            .map(|(id, node)| (id, self.room_s(node, now_s).min(stay_s)))
            .collect();
        // The first one goes where it may stay longest.
        vacant.sort_by(|(_, a_s), (_, b_s)| b_s.total_cmp(a_s));
        vacant.truncate(most);
        for (node, limit_s) in vacant {
            let worker = Worker {
                trainer,
                phase: Phase::Placed,
                since_s: now_s,
            };
            self.pool.update(node, |it| it.worker = Some(worker));
            self.actions.push(Action::Place {
                trainer,
                node,
                limit_s,
            });
        }
    }

    pub(super) fn set_phase(&mut self, now_s: f64, node: NodeId, trainer: TrainerId, phase: Phase) {
        self.pool.update(node, |it| {
            if let Some(worker) = it.worker_of_mut(trainer) {
                worker.phase = phase;
                worker.since_s = now_s;
            }
        });
    }
}
