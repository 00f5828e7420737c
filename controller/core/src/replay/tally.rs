//! What a replay adds up: node-time, samples, losses, and how long trainers stayed.

/// Sums over a replay. Node-time is in node-seconds, losses are in samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Length of the replayed span, seconds.
    pub span_s: f64,
    /// Node-time in the pool.
    pub idle_node_s: f64,
    /// Node-time in the pool that the admitted trainers' maxima could cover.
    pub usable_node_s: f64,
    /// Node-time held by trainers.
    pub used_node_s: f64,
    /// Samples gained, net of all losses.
    pub samples: f64,
    /// Samples that the held nodes would have given without any loss.
    pub gross_samples: f64,
    /// Lost on nodes kept after completion.
    pub overshoot_samples: f64,
    /// Lost when nodes were taken away.
    pub preemption_samples: f64,
    /// Lost when trainers grew or shrank.
    pub rescale_samples: f64,
    /// Trainers that were admitted.
    pub admitted: u64,
    /// Trainers that were rescaled, each time.
    pub rescales: u64,
    /// Trainers that lost nodes, each time.
    pub preemptions: u64,
    /// Decisions taken.
    pub decisions: u64,
    /// What the admitted trainers held, by their real curves, in the objective's unit; 0 unless
    /// decisions are compared with the best.
    pub value: f64,
    /// The most that the same trainers could have had on the nodes of the pool, for nothing.
    pub best_value: f64,
    /// Trainers that are done.
    pub finished: Vec<Finished>,
}

/// A trainer that is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Its name.
    pub name: String,
    /// Submitted, epoch seconds.
    pub submit_s: f64,
    /// Admitted, epoch seconds.
    pub admitted_s: f64,
    /// Done, epoch seconds.
    pub done_s: f64,
    /// Samples.
    pub samples: f64,
    /// Mean speed from admission to the end over the speed on one node.
    pub speedup: f64,
}

/// Mean and quantiles of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Smallest.
    pub min: f64,
    /// Twentieth of the way up.
    pub p5: f64,
    /// Mean.
    pub mean: f64,
    /// Middle.
    pub median: f64,
    /// Twentieth of the way down.
    pub p95: f64,
    /// Largest.
    pub max: f64,
}

impl Distribution {
    /// The distribution of `values`; `None` when there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        let at = |share: f64| values[(share * last as f64).round() as usize];
        Some(Distribution {
            min: values[0],
            p5: at(0.05),
            mean: values.iter().fold(0.0, |sum, value| sum + value) / values.len() as f64,
            median: at(0.5),
            p95: at(0.95),
            max: values[last],
        })
    }
}

impl Tally {
    /// Adds an interval during which nothing changed.
    pub(super) fn pass(&mut self, seconds: f64, pool: u64, could_use: u64, used: u64) {
        self.span_s += seconds;
        self.idle_node_s += seconds * pool as f64;
        self.usable_node_s += seconds * pool.min(could_use) as f64;
        self.used_node_s += seconds * used as f64;
    }

    /// Seconds from admission to the end of the trainers that are done, if any is.
    pub fn residence_s(&self) -> Option<Distribution> {
        Distribution::of(
            self.finished
                .iter()
                .map(|trainer| trainer.done_s - trainer.admitted_s),
        )
    }

    /// Mean speed-ups over one node of the trainers that are done, if any is.
    pub fn speedup(&self) -> Option<Distribution> {
        Distribution::of(self.finished.iter().map(|trainer| trainer.speedup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_members_of_the_sample() {
        let ages = Distribution::of((0..=100).map(f64::from)).unwrap();
        assert_eq!((ages.min, ages.p5, ages.median), (0.0, 5.0, 50.0));
        assert_eq!((ages.mean, ages.p95, ages.max), (50.0, 95.0, 100.0));
        assert_eq!(Distribution::of([]), None);
    }
}
