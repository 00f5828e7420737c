//! `--sweep`: the same replay with every combination of some settings, on all cores, as one table.

use std::fmt;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bftrainer_core::replay::Admission;
use clap::ValueEnum;

use super::args::Args;
use super::run::{Outcome, Policy, ReplayError, Setup};

/// Most combinations of one sweep.
const MAX_COMBINATIONS: usize = 10_000;

/// A setting and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    name: String,
    values: Vec<Value>,
}

/// A setting's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
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
            "policy" => Policy::from_str(text, false)
                .map(Value::Policy)
                .map_err(|_| format!("`{text}` is not bftrainer, paper or equal-share")),
            _ => Err(format!(
                "`{name}` can't be swept; horizon, max-trainers, nodes and policy can"
            )),
        };
        Ok(Axis {
            name: name.to_owned(),
            values: values.split(',').map(value).collect::<Result<_, _>>()?,
        })
    }

    /// The setting's name on the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its values are numbers.
    pub fn is_numeric(&self) -> bool {
        self.values.iter().all(|value| value.number().is_some())
    }
}

impl Value {
    /// What it is as a number, if it is one.
    pub fn number(self) -> Option<f64> {
        match self {
            Value::Horizon(horizon_s) => Some(horizon_s),
            Value::MaxTrainers(count) | Value::Nodes(count) => Some(count as f64),
            Value::Policy(_) => None,
        }
    }

    fn apply(self, args: &mut Args) {
        match self {
            Value::Horizon(horizon_s) => args.horizon_s = horizon_s,
            Value::MaxTrainers(most) => args.max_trainers = Some(most),
            Value::Nodes(nodes) => args.source.nodes = Some(nodes),
            Value::Policy(policy) => args.policy = policy,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Horizon(horizon_s) => write!(f, "{horizon_s}"),
            Value::MaxTrainers(count) | Value::Nodes(count) => write!(f, "{count}"),
            Value::Policy(policy) => f.write_str(policy.name()),
        }
    }
}

/// All combinations of the axes' values, each with one value for each axis, in the order of the
/// axes.
///
/// # Errors
/// When a setting is given twice, or there are too many combinations.
pub fn combinations(axes: &[Axis]) -> Result<Vec<Vec<Value>>, ReplayError> {
    let mut combinations = vec![Vec::new()];
    for (index, axis) in axes.iter().enumerate() {
        let name = &axis.name;
        if axes[..index].iter().any(|other| other.name == *name) {
            let problem = format!("--sweep {name} is given twice; write all values after one");
            return Err(ReplayError::Options(problem));
        }
        if combinations.len().saturating_mul(axis.values.len()) > MAX_COMBINATIONS {
            let problem = format!("--sweep: more than {MAX_COMBINATIONS} combinations");
            return Err(ReplayError::Options(problem));
        }
        let longer = |shorter: &Vec<Value>| {
            let shorter = shorter.clone();
            let values = axis.values.iter();
            values.map(move |value| [shorter.as_slice(), &[*value]].concat())
        };
        combinations = combinations.iter().flat_map(longer).collect();
    }
    Ok(combinations)
}

/// What is to be replayed for each of `combinations`; the other options are as in `args`.
///
/// # Errors
/// As from [`Args::setup`].
pub fn setups(args: &Args, combinations: &[Vec<Value>]) -> Result<Vec<Setup>, ReplayError> {
    let setup = |combination: &Vec<Value>| {
        let mut args = args.clone();
        for value in combination {
            value.apply(&mut args);
        }
        args.setup()
    };
    combinations.iter().map(setup).collect()
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
                    if outcome.is_err() {
                        // Nothing comes of the sweep: the rest need not be run.
                        next.store(setups.len(), Ordering::Relaxed);
                    }
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

/// Names of the table's columns and their widths in characters.
pub const COLUMNS: [(&str, usize); 10] = [
    ("policy", 12),
    ("nodes", 7),
    ("trainers", 9),
    ("horizon", 9),
    ("samples", 12),
    ("U", 8),
    ("overshoot", 10),
    ("preemption", 11),
    ("rescaling", 9),
    ("seconds", 8),
];

/// The cells of a replay's row.
pub fn row(setup: &Setup, outcome: &Outcome) -> [String; COLUMNS.len()] {
    let tally = &outcome.tally;
    let percent = |samples: f64| {
        let percent = 100.0 * samples / tally.gross_samples.max(1.0);
        format!("{percent:.2}%")
    };
    let trainers = match setup.admission {
        Admission::AtMost(most) => most.to_string(),
        Admission::Open(_) => "open".to_owned(),
    };
    let efficiency = outcome.efficiency();
    [
        setup.policy.name().to_owned(),
        outcome.nodes.to_string(),
        trainers,
        setup.horizon_s.to_string(),
        format!("{:.4e}", tally.samples),
        efficiency.map_or_else(|| "-".to_owned(), |u| format!("{u:.4}")),
        percent(tally.overshoot_samples),
        percent(tally.preemption_samples),
        percent(tally.rescale_samples),
        format!("{:.2}", outcome.seconds),
    ]
}

/// One line for each replay, below a header.
pub fn table(setups: &[Setup], outcomes: &[Outcome]) -> String {
    let rows = setups.iter().zip(outcomes);
    let rows = rows.map(|(setup, outcome)| row(setup, outcome));
    let header = COLUMNS.map(|(name, _)| name.to_owned());
    let lines = std::iter::once(header).chain(rows).map(|cells| {
        let cells = cells.iter().zip(COLUMNS).enumerate();
        let padded = cells.map(|(column, (cell, (_, width)))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

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
    #[test]
    fn the_last_axis_turns_fastest_and_none_comes_twice() {
        let axes = ["policy=paper,bftrainer", "horizon=10,30"];
        let axes = axes.map(|text| Axis::parse(text).unwrap());
        let combinations = combinations(&axes).unwrap();
        let texts = combinations.iter().map(|values| {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            values.join(" ")
        });
        let expected = ["paper 10", "paper 30", "bftrainer 10", "bftrainer 30"];
        assert_eq!(texts.collect::<Vec<_>>(), expected);
        let [policy, horizon] = axes;
        let error = super::combinations(&[horizon.clone(), policy, horizon]).unwrap_err();
        assert!(error.to_string().contains("--sweep horizon is given twice"));
    }

    #[test]
    fn a_policy_that_is_swept_has_its_own_admission() {
        let line = "replay log --trainers t --sweep policy=bftrainer,paper";
        let with = |more: &str| {
            let words = line
                .split(' ')
                .chain(more.split(' '))
                .filter(|word| !word.is_empty());
            let args = Command::try_parse_from(words).unwrap().args;
            let combinations = combinations(&args.sweep).unwrap();
            let setups = setups(&args, &combinations).unwrap();
            setups
                .iter()
                .map(|setup| setup.admission)
                .collect::<Vec<_>>()
        };
        let at_most = Admission::AtMost;
        assert_eq!(with(""), [Admission::Open(30), at_most(30)]);
        assert_eq!(with("--max-trainers 10"), [at_most(10), at_most(10)]);
        assert_eq!(with("--sweep max-trainers=7"), [at_most(7), at_most(7)]);
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }
}
