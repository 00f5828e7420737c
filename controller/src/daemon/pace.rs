//! How fast a trainer has been lately, pauses for rescaling included: what tells when it will
//! be done. Pure.

use std::collections::VecDeque;

/// The mean is over this time at most, seconds.
const WINDOW_S: f64 = 300.0;

/// Reports that follow each other sooner are not kept, seconds.
const STEP_S: f64 = 5.0;

/// Reports of the last minutes.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Epoch seconds and cumulative samples, oldest first, at least [`STEP_S`] apart.
    marks: VecDeque<(f64, u64)>,
    newest: Option<(f64, u64)>,
}

impl Pace {
    /// A progress report of `samples` cumulative samples.
    pub fn report(&mut self, now_s: f64, samples: u64) {
        // Work is redone after a rollback, or the clock was set back: both begin anew.
        let goes_on = |(time_s, before): (f64, u64)| time_s <= now_s && before <= samples;
        if !self.newest.is_none_or(goes_on) {
            self.marks.clear();
        }
        self.newest = Some((now_s, samples));
        self.marks.retain(|(time_s, _)| now_s - time_s <= WINDOW_S);
        if self
            .marks
            .back()
            .is_none_or(|(time_s, _)| now_s - time_s >= STEP_S)
        {
            self.marks.push_back((now_s, samples));
        }
    }

    /// Samples per second over the last minutes; `None` before there are two reports at least
    /// [`STEP_S`] apart.
    pub fn samples_per_s(&self) -> Option<f64> {
        let (first_s, first) = *self.marks.front()?;
        let (last_s, last) = self.newest?;
        let seconds = last_s - first_s;
        (seconds >= STEP_S).then(|| (last - first) as f64 / seconds)
    }

    /// Seconds from `now_s` until `total` samples are done, if it goes on so.
    pub fn time_left_s(&self, now_s: f64, total: u64) -> Option<f64> {
        let rate = self.samples_per_s().filter(|rate| *rate > 0.0)?;
        let (last_s, last) = self.newest?;
        let left_s = total.saturating_sub(last) as f64 / rate;
        Some((left_s - (now_s - last_s)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(reports: &[(f64, u64)]) -> Pace {
        let mut pace = Pace::default();
        for (time_s, samples) in reports {
            pace.report(*time_s, *samples);
        }
        pace
    }

    #[test]
    fn the_mean_of_the_last_minutes_counts_and_tells_the_time_left() {
        let pace = reported(&[(0.0, 0), (4.0, 40), (10.0, 200), (20.0, 200), (25.0, 250)]);
        assert_eq!(pace.samples_per_s(), Some(10.0));
        assert_eq!(pace.time_left_s(25.0, 1250), Some(100.0));
        assert_eq!(pace.time_left_s(35.0, 1250), Some(90.0));
        assert_eq!(pace.time_left_s(25.0, 100), Some(0.0));
        let long: Vec<(f64, u64)> = (0..10_000).map(|t| (f64::from(t), 3 * t as u64)).collect();
        let pace = reported(&long);
        assert_eq!(pace.samples_per_s(), Some(3.0));
        assert!(pace.marks.len() <= (WINDOW_S / STEP_S) as usize + 1);
    }

    #[test]
    fn a_rollback_a_long_pause_and_a_clock_set_back_begin_anew() {
        assert_eq!(reported(&[(0.0, 0), (2.0, 9)]).samples_per_s(), None);
        for reports in [
            [(0.0, 500), (10.0, 900), (20.0, 600)],
            [(0.0, 0), (10.0, 100), (1000.0, 100)],
            [(50.0, 0), (60.0, 100), (20.0, 100)],
        ] {
            let mut pace = reported(&reports);
            assert_eq!(pace.samples_per_s(), None, "{reports:?}");
            let (last_s, last) = reports[2];
            pace.report(last_s + 10.0, last + 20);
            assert_eq!(pace.samples_per_s(), Some(2.0), "{reports:?}");
        }
    }

    #[test]
    fn who_makes_no_progress_has_no_end_in_sight() {
        let pace = reported(&[(0.0, 7), (10.0, 7)]);
        assert_eq!(
            (pace.samples_per_s(), pace.time_left_s(10.0, 9)),
            (Some(0.0), None)
        );
    }
}
