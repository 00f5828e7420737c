//! What is known of a program: its throughput per node count, what its rescales cost and
//! what its rollbacks lose. Old measurements fade as new ones come.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::meter::Window;

/// The memory of a node count, in seconds of measurement: what is older fades.
const MEMORY_S: f64 = 1800.0;

/// So long the recent throughput must differ before the program is held to have changed, seconds.
const DRIFT_S: f64 = 60.0;

/// By so much, as a part of what was measured before.
const DRIFT: f64 = 0.25;

/// What other node counts weigh after a drift: they still tell the shape, seconds.
const FADED_S: f64 = 3.0;

/// Node counts that are kept; of more, those that were measured least are forgotten.
const KEPT_COUNTS: usize = 128;

/// The memory of a cost, in measurements.
const MEMORY: f64 = 8.0;

/// The throughput on one node count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Mean throughput, samples per second.
    pub samples_per_s: f64,
    /// Seconds of measurement behind it.
    pub seconds: f64,
    /// Mean throughput of the last minute or so, samples per second.
    recent_per_s: f64,
    /// Since that differs by more than [`DRIFT`]: seconds, and samples in them.
    differing: (f64, f64),
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    value: f64,
    count: f64,
}

/// What is known of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// By node count.
    rates: BTreeMap<u32, Rate>,
    /// Seconds without progress when nodes join.
    up_s: Mean,
    /// Seconds without progress when nodes leave in order.
    down_s: Mean,
    /// Samples to be redone when nodes are lost.
    redone: Mean,
    /// Whether some trainer has been profiled, or is past the need for it.
    pub is_profiled: bool,
    /// When it was changed last, epoch seconds.
    pub updated_s: f64,
    /// Counts the changes.
    pub version: u64,
}

impl Rate {
    fn new(window: Window) -> Self {
        Rate {
            samples_per_s: window.samples_per_s,
            seconds: window.length_s.min(MEMORY_S),
            recent_per_s: window.samples_per_s,
            differing: (0.0, 0.0),
        }
    }

    /// Takes a window in; the ratio of new to old when the program has changed.
    fn add(&mut self, window: Window) -> Option<f64> {
        let part = (window.length_s / DRIFT_S).min(1.0);
        self.recent_per_s += (window.samples_per_s - self.recent_per_s) * part;
        if (self.recent_per_s / self.samples_per_s - 1.0).abs() > DRIFT {
            self.differing.0 += window.length_s;
            self.differing.1 += window.length_s * window.samples_per_s;
        } else {
            self.differing = (0.0, 0.0);
        }
        let (seconds, samples) = self.differing;
        if seconds >= DRIFT_S {
            let old_per_s = self.samples_per_s;
            *self = Rate::new(Window {
                samples_per_s: samples / seconds,
                length_s: seconds,
            });
            return Some(self.samples_per_s / old_per_s);
        }
        let seconds = (self.seconds + window.length_s).min(MEMORY_S);
        let part = (window.length_s / seconds).min(1.0);
        self.samples_per_s += (window.samples_per_s - self.samples_per_s) * part;
        self.seconds = seconds;
        None
    }
}

impl Mean {
    /// Takes a measurement in; one that is not finite and positive or zero is left out.
    pub fn add(&mut self, value: f64) {
        if value.is_finite() && value >= 0.0 {
            self.count = (self.count + 1.0).min(MEMORY);
            self.value += (value - self.value) / self.count;
        }
    }

    /// The mean; `None` before the first measurement.
    pub fn get(&self) -> Option<f64> {
        (self.count > 0.0).then_some(self.value)
    }
}

impl Profile {
    /// Takes in the throughput that was seen on `nodes` nodes until `now_s`.
    pub fn add_window(&mut self, now_s: f64, nodes: u32, window: Window) {
        self.touch(now_s);
        let Some(rate) = self.rates.get_mut(&nodes) else {
            self.rates.insert(nodes, Rate::new(window));
            self.forget_least_known();
            return;
        };
        if let Some(ratio) = rate.add(window) {
            // Most likely it changed on other counts alike: their shape is kept, barely.
            for (_, other) in self.rates.iter_mut().filter(|(count, _)| **count != nodes) {
                *other = Rate::new(Window {
                    samples_per_s: other.samples_per_s * ratio,
                    length_s: other.seconds.min(FADED_S),
                });
            }
        }
    }

    /// Takes in what a rescale cost: seconds from the order to stop to new samples.
    pub fn add_restart(&mut self, now_s: f64, grew: bool, seconds: f64) {
        self.touch(now_s);
        let cost = if grew {
            &mut self.up_s
        } else {
            &mut self.down_s
        };
        cost.add(seconds);
    }

    /// Takes in how many samples a rollback cost.
    pub fn add_redone(&mut self, now_s: f64, samples: u64) {
        self.touch(now_s);
        self.redone.add(samples as f64);
    }

    /// Throughput by node count.
    pub fn rates(&self) -> &BTreeMap<u32, Rate> {
        &self.rates
    }

    /// Throughput of a node at the smallest measured count.
    pub fn samples_per_node_s(&self) -> Option<f64> {
        let (nodes, rate) = self.rates.first_key_value()?;
        Some(rate.samples_per_s / f64::from(*nodes))
    }

    /// Whether throughput has been measured anywhere.
    pub fn is_measured(&self) -> bool {
        !self.rates.is_empty()
    }

    /// Seconds without progress when nodes join; a restart is a restart, so those of the
    /// other direction count while there are none of this.
    pub fn up_s(&self) -> Option<f64> {
        self.up_s.get().or(self.down_s.get())
    }

    /// Seconds without progress when nodes leave in order; as [`Profile::up_s`].
    pub fn down_s(&self) -> Option<f64> {
        self.down_s.get().or(self.up_s.get())
    }

    /// Samples that a loss of nodes costs.
    pub fn redone(&self) -> Option<f64> {
        self.redone.get()
    }

    fn touch(&mut self, now_s: f64) {
        self.updated_s = now_s;
        self.version += 1;
    }

    fn forget_least_known(&mut self) {
        if self.rates.len() > KEPT_COUNTS {
            let least = self
                .rates
                .iter()
                .min_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds));
            if let Some((&nodes, _)) = least {
                self.rates.remove(&nodes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(samples_per_s: f64) -> Window {
        Window {
            samples_per_s,
            length_s: 10.0,
        }
    }

    fn fed(rates: &[(u32, f64)]) -> Profile {
        let mut profile = Profile::default();
        for &(nodes, rate) in rates {
            profile.add_window(0.0, nodes, window(rate));
        }
        profile
    }

    #[test]
    fn the_throughput_of_a_count_is_the_mean_of_its_windows() {
        let profile = fed(&[(2, 100.0), (2, 110.0), (2, 90.0), (4, 180.0)]);
        assert!((profile.rates()[&2].samples_per_s - 100.0).abs() < 1e-9);
        assert_eq!(profile.rates()[&2].seconds, 30.0);
        assert_eq!(profile.rates()[&4].samples_per_s, 180.0);
    }

    #[test]
    fn a_lasting_change_is_followed_within_minutes_and_carried_to_the_other_counts() {
        let mut profile = fed(&[(1, 100.0), (8, 700.0)]);
        for _ in 0..1000 {
            profile.add_window(1.0, 8, window(700.0));
        }
        for _ in 0..20 {
            profile.add_window(2.0, 8, window(350.0));
        }
        let rates = profile.rates();
        assert!(
            (rates[&8].samples_per_s / 350.0 - 1.0).abs() < 0.1,
            "{rates:?}"
        );
        assert!(
            (rates[&1].samples_per_s / 50.0 - 1.0).abs() < 0.15,
            "{rates:?}"
        );
        assert!(rates[&1].seconds <= FADED_S);
    }

    #[test]
    fn one_bad_window_is_no_drift() {
        let mut profile = fed(&[(1, 100.0)]);
        for _ in 0..30 {
            profile.add_window(1.0, 1, window(100.0));
        }
        profile.add_window(2.0, 1, window(1.0));
        assert!(profile.rates()[&1].samples_per_s > 90.0);
    }

    #[test]
    fn a_slow_drift_is_followed_as_old_measurements_fade() {
        let mut profile = fed(&[(1, 100.0)]);
        for step in 0..2000 {
            profile.add_window(1.0, 1, window(100.0 + f64::from(step) * 0.01));
        }
        for _ in 0..1000 {
            profile.add_window(1.0, 1, window(120.0));
        }
        assert!((profile.rates()[&1].samples_per_s - 120.0).abs() < 1.0);
    }

    #[test]
    fn costs_are_means_that_forget_and_stand_in_for_each_other() {
        let mut profile = Profile::default();
        assert_eq!((profile.up_s(), profile.down_s()), (None, None));
        profile.add_restart(0.0, false, 4.0);
        assert_eq!((profile.up_s(), profile.down_s()), (Some(4.0), Some(4.0)));
        profile.add_restart(0.0, true, 10.0);
        assert_eq!((profile.up_s(), profile.down_s()), (Some(10.0), Some(4.0)));
        for _ in 0..100 {
            profile.add_restart(0.0, true, 2.0);
        }
        assert!((profile.up_s().unwrap() - 2.0).abs() < 0.1);
        profile.add_restart(0.0, true, f64::NAN);
        assert!(profile.up_s().unwrap().is_finite());
    }

    #[test]
    fn only_so_many_counts_are_kept() {
        let mut profile = Profile::default();
        for nodes in 1..=1000 {
            profile.add_window(0.0, nodes, window(f64::from(nodes)));
        }
        assert_eq!(profile.rates().len(), KEPT_COUNTS);
    }
}
