//! What a report shows over time, in bounded memory: when there are too many points, each two
//! neighbours become one.

use bftrainer_core::replay::Step;
use serde::Serialize;

use crate::lanes::Lanes;

/// Most points of a chart; more than a screen shows.
const MAX_POINTS: usize = 4000;

/// Values over time, each the mean from its time to the next.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    time_s: Vec<f64>,
    pool: Vec<f64>,
    rate_per_s: Vec<f64>,
    trainers: Vec<f64>,
    running: Vec<f64>,
    /// Nodes by lane.
    lanes: Vec<Vec<f64>>,
    /// Whose each lane is.
    #[serde(skip)]
    places: Lanes,
    /// Steps that make a point.
    #[serde(skip)]
    stride: usize,
    /// Steps in the last point.
    #[serde(skip)]
    steps: usize,
}

impl Series {
    /// Appends what holds from a step on; `allocation` has number and nodes of each trainer that
    /// runs.
    pub fn push(&mut self, step: &Step, allocation: impl Iterator<Item = (u64, usize)>) {
        let mut values = vec![
            step.pool as f64,
            step.rate_per_s,
            step.trainers as f64,
            step.running as f64,
        ];
        values.extend(self.by_lane(&allocation.collect::<Vec<_>>()));
        let is_new_point = self.steps >= self.stride || self.time_s.is_empty();
        if is_new_point {
            if self.time_s.len() == MAX_POINTS {
                self.halve();
            }
            self.stride = self.stride.max(1);
            self.steps = 0;
            self.time_s.push(step.time_s);
        }
        self.steps += 1;
        let (points, share) = (self.time_s.len(), 1.0 / self.steps as f64);
        for (column, value) in self.columns().zip(values) {
            // A lane that was opened just now had no nodes before.
            column.resize(points, 0.0);
            if let Some(mean) = column.last_mut() {
                *mean += share * (value - *mean);
            }
        }
    }

    /// Nodes of each lane.
    fn by_lane(&mut self, allocation: &[(u64, usize)]) -> Vec<f64> {
        let running: Vec<u64> = allocation.iter().map(|(number, _)| *number).collect();
        let lanes = self.places.of(&running);
        self.lanes.resize_with(self.places.opened(), Vec::new);
        let mut nodes = vec![0.0; self.lanes.len()];
        for (lane, (_, held)) in lanes.into_iter().zip(allocation) {
            nodes[lane] += *held as f64;
        }
        nodes
    }

    fn columns(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        let sums = [
            &mut self.pool,
            &mut self.rate_per_s,
            &mut self.trainers,
            &mut self.running,
        ];
        sums.into_iter().chain(&mut self.lanes)
    }

    fn halve(&mut self) {
        self.stride *= 2;
        self.time_s = self.time_s.iter().copied().step_by(2).collect();
        for column in self.columns() {
            *column = column
                .chunks(2)
                .map(|pair| pair.iter().sum::<f64>() / pair.len() as f64)
                .collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_make_few_points_with_the_same_mean() {
        let mut series = Series::default();
        for event in 0..100_000u32 {
            let step = Step {
                time_s: f64::from(event),
                pool: (event % 2) as usize * 10,
                ..Step::default()
            };
            series.push(&step, std::iter::once((u64::from(event / 9), 3)));
        }
        assert!(series.time_s.len() <= MAX_POINTS && series.time_s.len() > MAX_POINTS / 4);
        assert_eq!(series.pool.len(), series.time_s.len());
        assert_eq!(series.lanes.len(), 1);
        let means = series.pool.iter().zip(&series.lanes[0]).take(1000);
        for (pool, nodes) in means {
            assert!((pool - 5.0).abs() < 1e-9 && (nodes - 3.0).abs() < 1e-9);
        }
    }

    #[test]
    fn trainers_are_summed_up_by_lane() {
        let mut series = Series::default();
        let mut push = |allocation: &[(u64, usize)]| {
            series.push(&Step::default(), allocation.iter().copied());
        };
        push(&[(1, 2), (2, 3)]);
        push(&[(2, 4), (3, 5)]);
        let many: Vec<(u64, usize)> = (2..102).map(|number| (number, 1)).collect();
        push(&many);
        assert_eq!(series.lanes[0], [2.0, 5.0, 1.0]);
        assert_eq!(series.lanes[1], [3.0, 4.0, 1.0]);
        assert_eq!(series.lanes.len(), crate::lanes::MOST);
        let last = series.lanes.iter().map(|lane| lane[2]);
        assert_eq!(last.sum::<f64>(), 100.0);
    }
}
