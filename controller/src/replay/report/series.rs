//! What a report shows over time, in bounded memory: when there are too many points, each two
//! neighbours become one.

use bftrainer_core::replay::Step;
use serde::Serialize;

/// Most points of a chart; more than a screen shows.
const MAX_POINTS: usize = 4000;

/// Values over time, each the mean from its time to the next.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    time_s: Vec<f64>,
    pool: Vec<f64>,
    used: Vec<f64>,
    rate_per_s: Vec<f64>,
    trainers: Vec<f64>,
    running: Vec<f64>,
    /// Steps that make a point.
    #[serde(skip)]
    stride: usize,
    /// Steps in the last point.
    #[serde(skip)]
    steps: usize,
}

impl Series {
    /// Appends what holds from a step on.
    pub fn push(&mut self, step: &Step) {
        let values = [
            step.pool as f64,
            step.used as f64,
            step.rate_per_s,
            step.trainers as f64,
            step.running as f64,
        ];
        if self.steps < self.stride && !self.time_s.is_empty() {
            self.steps += 1;
            let share = 1.0 / self.steps as f64;
            for (column, value) in self.columns().into_iter().zip(values) {
                if let Some(mean) = column.last_mut() {
                    *mean += share * (value - *mean);
                }
            }
            return;
        }
        if self.time_s.len() == MAX_POINTS {
            self.halve();
        }
        self.stride = self.stride.max(1);
        self.steps = 1;
        self.time_s.push(step.time_s);
        for (column, value) in self.columns().into_iter().zip(values) {
            column.push(value);
        }
    }

    fn columns(&mut self) -> [&mut Vec<f64>; 5] {
        [
            &mut self.pool,
            &mut self.used,
            &mut self.rate_per_s,
            &mut self.trainers,
            &mut self.running,
        ]
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
        for event in 0..100_000 {
            series.push(&Step {
                time_s: f64::from(event),
                pool: (event % 2) as usize * 10,
                ..Step::default()
            });
        }
        assert!(series.time_s.len() <= MAX_POINTS && series.time_s.len() > MAX_POINTS / 4);
        assert_eq!(series.pool.len(), series.time_s.len());
        assert!(
            series
                .pool
                .iter()
                .take(1000)
                .all(|pool| (pool - 5.0).abs() < 1e-9)
        );
    }
}
