//! `--sweep`: the same replay with every combination of some settings, on all cores, as one table.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bftrainer_core::replay::Admission;
use clap::ValueEnum;

use super::run::{Outcome, Policy, ReplayError, Setup};

/// Most combinations of one sweep.
const MAX_SETTINGS: usize = 10_000;

/// A setting and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    name: String,
    values: Vec<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Horizon(f64),
    MaxTrainers(usize),
    Nodes(usize),
    Policy(Policy),
}

impl Axis {
    /// Reads `horizon=10,30`, `max-trainers=10,30`, `nodes=1024,4734` or `policy=paper,bftrainer`.
    ///
    /// # Errors
    /// A sentence when it is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, values) = text
            .split_once('=')
            .ok_or("expected a setting and its values, such as horizon=10,30")?;
        let count = |text: &str| {
            let number = text.parse::<usize>();
            number.map_err(|_| format!("`{text}` is not a whole number"))
        };
        let value = |text: &str| match name {
            "horizon" => {
                let number = text
                    .parse::<f64>()
                    .ok()
                    .filter(|s| *s >= 0.0 && s.is_finite());
                let problem = || format!("`{text}` is not a number of seconds from 0 on");
                number.map(Value::Horizon).ok_or_else(problem)
            }
            "max-trainers" => count(text).map(Value::MaxTrainers),
            "nodes" => count(text).map(Value::Nodes),
            "policy" => Policy::from_str(text, false).map(Value::Policy),
            _ => Err(format!(
                "`{name}` can't be swept; horizon, max-trainers, nodes and policy can"
            )),
        };
        Ok(Axis {
            name: name.to_owned(),
            values: values.split(',').map(value).collect::<Result<_, _>>()?,
        })
    }
}

/// All combinations of `axes` on top of `setup`.
///
/// # Errors
/// When there are too many.
pub fn settings(setup: &Setup, axes: &[Axis]) -> Result<Vec<Setup>, ReplayError> {
    let mut setups = vec![setup.clone()];
    for axis in axes {
        if setups.len().saturating_mul(axis.values.len()) > MAX_SETTINGS {
            let problem = format!("--sweep: more than {MAX_SETTINGS} combinations");
            return Err(ReplayError::Options(problem));
        }
        setups = setups
            .iter()
            .flat_map(|setup| axis.values.iter().map(|value| value.applied(setup)))
            .collect();
    }
    Ok(setups)
}

impl Value {
    fn applied(self, setup: &Setup) -> Setup {
        let mut setup = setup.clone();
        match self {
            Value::Horizon(horizon_s) => setup.horizon_s = horizon_s,
            Value::MaxTrainers(most) => setup.admission = Admission::AtMost(most),
            Value::Nodes(nodes) => setup.source.choice.first = Some(nodes),
            Value::Policy(policy) => setup.policy = policy,
        }
        setup
    }
}

/// Runs `replay` for each of `setups`, as many at once as there are cores; in their order.
///
/// # Errors
/// The first that failed.
pub fn run_all(
    setups: &[Setup],
    replay: impl Fn(&Setup) -> Result<Outcome, ReplayError> + Sync,
) -> Result<Vec<Outcome>, ReplayError> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Result<Outcome, ReplayError>>>> =
        setups.iter().map(|_| Mutex::new(None)).collect();
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(setups.len()) {
            scope.spawn(|| {
                while let Some((setup, slot)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    setups.get(index).zip(outcomes.get(index))
                } {
                    let outcome = replay(setup);
                    if let Ok(mut slot) = slot.lock() {
                        *slot = Some(outcome);
                    }
                }
            });
        }
    });
    outcomes
        .into_iter()
        .filter_map(|slot| slot.into_inner().ok().flatten())
        .collect()
}

/// One row for each replay.
pub fn table(setups: &[Setup], outcomes: &[Outcome]) -> String {
    let mut lines = vec![format!(
        "{:<12} {:>7} {:>9} {:>9} {:>12} {:>8} {:>10} {:>11} {:>9} {:>8}",
        "policy",
        "nodes",
        "trainers",
        "horizon",
        "samples",
        "U",
        "overshoot",
        "preemption",
        "rescaling",
        "seconds"
    )];
    for (setup, outcome) in setups.iter().zip(outcomes) {
        let tally = &outcome.tally;
        let percent = |samples: f64| 100.0 * samples / tally.gross_samples.max(1.0);
        let trainers = match setup.admission {
            Admission::AtMost(most) => most.to_string(),
            Admission::Open(_) => "open".to_owned(),
        };
        let efficiency = outcome.efficiency();
        lines.push(format!(
            "{:<12} {:>7} {:>9} {:>9} {:>12.4e} {:>8} {:>9.2}% {:>10.2}% {:>8.2}% {:>8.2}",
            setup.policy.name(),
            outcome.nodes,
            trainers,
            setup.horizon_s,
            tally.samples,
            efficiency.map_or_else(|| "-".to_owned(), |u| format!("{u:.4}")),
            percent(tally.overshoot_samples),
            percent(tally.preemption_samples),
            percent(tally.rescale_samples),
            outcome.seconds,
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_a_setting_and_its_values() {
        let axis = Axis::parse("horizon=10,30").unwrap();
        assert_eq!(axis.values, [Value::Horizon(10.0), Value::Horizon(30.0)]);
        assert!(Axis::parse("policy=paper,equal-share").is_ok());
        for text in [
            "horizon",
            "horizon=",
            "horizon=-1",
            "colour=1",
            "policy=best",
        ] {
            assert!(Axis::parse(text).is_err(), "{text}");
        }
    }
}
