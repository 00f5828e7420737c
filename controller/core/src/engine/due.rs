//! When a decision is due: as soon as something on which it depends has changed, and
//! at the times at which that changes by itself. Not while workers merely carry the
//! last one out: halfway there, a restart that is under way looks like no cost.

use super::{Engine, Event};

impl Engine {
    /// Decides if that is due and brings every trainer a step nearer to the decision.
    pub(super) fn decide_and_drive(&mut self, now_s: f64) {
        let change_s = self.facts_change_s;
        let is_due = self.decision_due || change_s.is_some_and(|time_s| now_s >= time_s);
        if is_due {
            // While free nodes are in doubt a decision about them stays due.
            self.decision_due = self.pool_in_doubt;
            self.decide(now_s);
        }
        self.drive(now_s);
        if is_due {
            self.facts_change_s = self.next_change_s(now_s);
        }
        if let Some(time_s) = self.facts_change_s {
            self.wake_at(time_s);
        }
    }

    /// When what decisions depend on changes next though nothing happens, epoch seconds.
    fn next_change_s(&self, now_s: f64) -> Option<f64> {
        let nodes = self.pool.iter().flat_map(|(id, node)| {
            let released_s = self.fault_ends_s(id);
            self.unusable_at_s(node).into_iter().chain(released_s)
        });
        let trainers = self.trainers.values().map(|it| it.resume_at_s);
        let plans = self.learning.next_plan_end_s();
        let ahead = nodes.chain(trainers).chain(plans);
        ahead.filter(|time_s| now_s < *time_s).reduce(f64::min)
    }
}

/// Whether an event by itself changes something on which decisions depend. The others
/// tell how far one has been carried out; what they reveal besides, like a failure, sets
/// `decision_due` where it is dealt with.
pub(super) fn bears_on_decisions(event: &Event) -> bool {
    match event {
        Event::Pool {
            joined,
            left,
            hole_ends,
        } => !(joined.is_empty() && left.is_empty() && hole_ends.is_empty()),
        Event::TrainerArrived(_)
        | Event::TrainerChanged(_)
        | Event::TrainerGone { .. }
        | Event::NodeClass { .. }
        | Event::WorkerFound { .. }
        | Event::PlaceFailed { .. } => true,
        Event::PoolDoubted
        | Event::PoolSeen
        | Event::TrainerMode { .. }
        | Event::WorkerReady { .. }
        | Event::WorkerStarted { .. }
        | Event::WorkerStopped { .. }
        | Event::WorkerLost { .. }
        | Event::WorkerGone { .. }
        | Event::Progress { .. }
        | Event::Finished { .. }
        | Event::Timer => false,
    }
}
