//! What was learned of trainers' programs: handed to the store, and shown.

use bftrainer_core::learning::{Profile, lone_key};
use bftrainer_core::trainer::TrainerId;
use serde_json::{Map, Value, json};

use super::brain::Brain;
use crate::store::Record;

impl Brain {
    /// Hands what was learned lately to the store.
    pub(super) fn keep_learned(&mut self, now_s: f64) {
        let since_s = std::mem::replace(&mut self.learned_kept_at_s, now_s);
        for (program, profile) in self.engine.learning().profiles() {
            if profile.updated_s >= since_s && profile.updated_s > 0.0 {
                self.store.keep(Record::Learned {
                    program: program.clone(),
                    profile: profile.clone(),
                });
            }
        }
    }

    /// A trainer has gone: what is known of it alone, under its job number, goes too.
    pub(super) fn forget_learned(&mut self, trainer: TrainerId) {
        self.store.keep(Record::Forget {
            program: lone_key(trainer),
        });
    }

    /// How a trainer scales and what its rescales cost, as decisions take it to be.
    pub(super) fn learned_fields(&self, trainer: TrainerId) -> Map<String, Value> {
        let profile = self.engine.learning().profile(trainer);
        let (up_s, down_s) = self.engine.rescale_costs_s(trainer);
        let measured: Vec<Value> = profile
            .into_iter()
            .flat_map(Profile::rates)
            .map(|(nodes, rate)| json!([nodes, rate.samples_per_s, rate.seconds]))
            .collect();
        let curve: Vec<(u32, f64)> = self
            .engine
            .curve(trainer)
            .map(|curve| curve.clone().into())
            .unwrap_or_default();
        let fields = json!({
            "curve": curve,
            "measured": measured,
            "up_s": up_s,
            "down_s": down_s,
            "redone_samples": profile.and_then(Profile::redone),
            "profiled_at": self.engine.plan(trainer).and_then(|plan| plan.most_nodes()),
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}
