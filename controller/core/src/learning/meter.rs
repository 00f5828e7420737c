//! From progress reports to throughput: one trainer's reports in one generation, cut into
//! windows that touch, so that jitter of the reports cancels out between them.

use serde::{Deserialize, Serialize};

/// The first seconds after a generation's first report don't count: caches fill, code is
/// compiled, the first batches are prefetched.
pub const WARM_UP_S: f64 = 3.0;

/// A window is at least so long, seconds.
pub const WINDOW_S: f64 = 5.0;

/// The cumulative samples at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    time_s: f64,
    samples: u64,
}

/// A stretch of time in which samples only grew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Mean throughput.
    pub samples_per_s: f64,
    /// How long it was.
    pub length_s: f64,
}

/// Measures one generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meter {
    /// The first report since the generation began or samples last decreased.
    first: Option<Report>,
    /// Where the open window begins.
    begin: Option<Report>,
    last: Option<Report>,
}

impl Meter {
    /// Takes a report in; the window that it closes.
    pub fn report(&mut self, time_s: f64, samples: u64) -> Option<Window> {
        let report = Report { time_s, samples };
        let goes_back = |last: Report| samples < last.samples || time_s < last.time_s;
        if self.last.is_some_and(goes_back) {
            // A rollback, or a clock that was set back: nothing before can be compared.
            *self = Meter::default();
        }
        self.last = Some(report);
        let Some(first) = self.first else {
            self.first = Some(report);
            return None;
        };
        match self.begin {
            // A report without growth is not the end of a step.
            None if samples > first.samples && time_s >= first.time_s + WARM_UP_S => {
                self.begin = Some(report);
                None
            }
            Some(begin) if time_s >= begin.time_s + WINDOW_S && samples > begin.samples => {
                self.begin = Some(report);
                window(begin, report)
            }
            _ => None,
        }
    }

    /// The generation ends: what the open window holds, if it is not too short to tell.
    pub fn close(&mut self) -> Option<Window> {
        let (begin, last) = (self.begin?, self.last?);
        *self = Meter::default();
        window(begin, last).filter(|window| window.length_s >= WINDOW_S / 2.0)
    }
}

fn window(begin: Report, end: Report) -> Option<Window> {
    let length_s = end.time_s - begin.time_s;
    let samples = end.samples.saturating_sub(begin.samples);
    (length_s > 0.0 && samples > 0).then(|| Window {
        samples_per_s: samples as f64 / length_s,
        length_s,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Mean throughput over all windows, weighted by their lengths, and the seconds in all.
    fn mean(windows: &[Window]) -> (f64, f64) {
        let seconds = windows.iter().map(|window| window.length_s).sum::<f64>();
        let samples: f64 = windows.iter().map(|w| w.samples_per_s * w.length_s).sum();
        (samples / seconds, seconds)
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut meter = Meter::default();
        let mut windows = Vec::new();
        // For three seconds a tenth of the later throughput of 100 samples per second.
        for tick in 0..300 {
            let time_s = f64::from(tick) * 0.1;
            let samples = time_s.min(3.0) * 10.0 + (time_s - 3.0).max(0.0) * 100.0;
            windows.extend(meter.report(time_s, samples as u64));
        }
        windows.extend(meter.close());
        let (rate, seconds) = mean(&windows);
        assert!((rate - 100.0).abs() < 1.0, "{rate}");
        assert!(seconds > 20.0);
    }

    #[test]
    fn a_program_that_reports_once_a_minute_is_measured_from_step_to_step() {
        let mut meter = Meter::default();
        assert_eq!(meter.report(0.0, 600), None);
        assert_eq!(meter.report(80.0, 1200), None);
        let window = meter.report(140.0, 1800);
        assert_eq!(window.unwrap().samples_per_s, 10.0);
    }

    #[test]
    fn a_decrease_is_no_throughput() {
        let mut meter = Meter::default();
        meter.report(0.0, 0);
        meter.report(4.0, 400);
        assert_eq!(meter.report(10.0, 300), None);
        assert_eq!(meter.close(), None);
    }

    #[test]
    fn a_repeated_or_late_report_never_ends_a_window() {
        let mut meter = Meter::default();
        meter.report(0.0, 0);
        meter.report(4.0, 400);
        assert_eq!(meter.report(12.0, 400), None);
        assert_eq!(meter.report(11.0, 500), None);
        assert_eq!(meter.close(), None);
    }

    proptest! {
        /// 0.2-2 s between reports, each up to 0.5 s late, a rollback now and then.
        #[test]
        fn jitter_and_rollbacks_hardly_matter(
            rate in 5.0f64..1e6,
            steps in proptest::collection::vec((0.2f64..2.0, 0.0f64..0.5, 0u32..200), 200..400),
        ) {
            let (mut meter, mut windows) = (Meter::default(), Vec::new());
            let (mut time_s, mut samples, mut said_s) = (0.0, 0.0, 0.0f64);
            for (gap_s, late_s, dice) in steps {
                time_s += gap_s;
                samples += rate * gap_s;
                if dice == 0 {
                    samples = (samples - rate * 20.0).max(0.0);
                }
                said_s = said_s.max(time_s + late_s);
                windows.extend(meter.report(said_s, samples as u64));
            }
            windows.extend(meter.close());
            let (measured, seconds) = mean(&windows);
            prop_assert!(seconds > 20.0);
            prop_assert!((measured / rate - 1.0).abs() < 0.06, "{} of {}", measured, rate);
        }
    }
}
