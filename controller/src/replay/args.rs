//! The options of `bftrainer replay`.

use std::path::PathBuf;

use bftrainer_core::metric::{DEFAULT_EXPONENT, Metric};
use bftrainer_core::replay::{Admission, Guess, Latency, Learns, Objective, Unknown};
use clap::ValueEnum;

use super::run::{Policy, ReplayError, Setup};
use super::sweep::Axis;
use crate::trace::SourceArgs;

/// What is maximised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricName {
    /// Speed-up over one node to the power of --exponent
    Speedup,
    /// Samples per second
    Throughput,
    /// The objective in the trainers' file
    File,
}

/// Who is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdmissionName {
    /// As many as the pool can feed, and 30 at least
    Open,
}

/// Who learns from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LearnsName {
    /// Trainers with the same curve share what they learn
    Program,
    /// Each trainer learns for itself
    Trainer,
    /// Nobody learns: the guess stays
    Never,
}

/// A curve of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuessName {
    /// Amdahl's law, 98 % parallel
    Amdahl,
    /// Twice the nodes, twice the throughput
    Linear,
}

/// Replay a log of idle nodes
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(flatten)]
    pub source: SourceArgs,
    /// The trainers: JSON, or TOML when the name ends in .toml
    #[arg(long, value_name = "FILE")]
    pub trainers: PathBuf,
    /// Seconds over which a decision must pay
    #[arg(long = "horizon", value_name = "S", default_value_t = 60.0, value_parser = from_zero)]
    pub horizon_s: f64,
    /// What is maximised
    #[arg(long, value_enum, default_value_t = MetricName::Speedup)]
    pub metric: MetricName,
    /// Exponent of the speed-up
    #[arg(long, value_name = "A", default_value_t = DEFAULT_EXPONENT)]
    pub exponent: f64,
    /// Most trainers at once
    #[arg(long, value_name = "J", conflicts_with = "admission")]
    pub max_trainers: Option<usize>,
    /// Who is admitted; the default of --policy bftrainer is open, of the others 30 trainers
    #[arg(long, value_enum)]
    pub admission: Option<AdmissionName>,
    /// Who decides
    #[arg(long, value_enum, default_value_t = Policy::Bftrainer)]
    pub policy: Policy,
    /// Start the list of trainers again when it runs out
    #[arg(long)]
    pub repeat: bool,
    /// From a placement to its worker's hello, seconds
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = from_zero)]
    pub start_s: f64,
    /// Most placements per second; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = from_zero)]
    pub starts_per_s: f64,
    /// Between two checkpoints, seconds: what was done since the last one is lost on preemption
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = from_zero)]
    pub checkpoint_s: f64,
    /// For one checkpoint, seconds
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = from_zero)]
    pub save_s: f64,
    /// Don't tell the engine how the trainers scale: it learns from what they do where it puts them
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, default_missing_value = "program")]
    pub learn: Option<LearnsName>,
    /// With --learn: what every curve is taken to be at first
    #[arg(long, value_enum, default_value_t = GuessName::Amdahl, requires = "learn")]
    pub guess: GuessName,
    /// With --learn: standard deviation of a generation's throughput as it is seen, as a part of it
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = from_zero, requires = "learn")]
    pub noise: f64,
    /// Compare what trainers hold with the best for the same trainers and nodes, by their real
    /// curves and for nothing; takes longer
    #[arg(long)]
    pub judge: bool,
    /// Power of a node in use, watts: gives kWh
    #[arg(long = "power", value_name = "W", value_parser = from_zero)]
    pub power_w: Option<f64>,
    /// Leave out the efficiency, whose bound takes a while
    #[arg(long)]
    pub no_efficiency: bool,
    /// Replay with each of these values, all combinations in parallel; a SETTING is horizon,
    /// max-trainers, nodes or policy
    #[arg(long, value_name = "SETTING=A,B", value_parser = Axis::parse, conflicts_with = "steps")]
    pub sweep: Vec<Axis>,
    /// Write what each event did as CSV
    #[arg(long, value_name = "FILE")]
    pub steps: Option<PathBuf>,
    /// Write a report: one HTML file that needs no network; with --sweep it compares the
    /// combinations
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Parallel part of a trainer of which nothing is known.
const PARALLEL: f64 = 0.98;

/// Trainers that run at once in the paper's replays, and that are admitted in any case.
const TRAINERS: usize = 30;

impl Args {
    /// What is to be replayed.
    ///
    /// # Errors
    /// [`ReplayError`] when options don't fit together or the node list can't be read.
    pub fn setup(&self) -> Result<Setup, ReplayError> {
        let exponent = self.exponent;
        if !(exponent > 0.0 && exponent <= 1.0) {
            return Err(ReplayError::Options(format!(
                "--exponent {exponent}: expected a number above 0, at most 1, as {DEFAULT_EXPONENT}"
            )));
        }
        let metric = Metric::Speedup { exponent };
        Ok(Setup {
            source: self.source.source()?,
            policy: self.policy,
            horizon_s: self.horizon_s,
            objective: match self.metric {
                MetricName::Speedup => Objective::Metric(metric),
                MetricName::Throughput => Objective::Metric(Metric::Throughput),
                MetricName::File => Objective::File,
            },
            admission: self.admits(),
            repeat: self.repeat,
            latency: Latency {
                start_s: self.start_s,
                starts_per_s: self.starts_per_s,
                checkpoint_s: self.checkpoint_s,
                save_s: self.save_s,
            },
            unknown: self.unknown()?,
            judge: self.judge,
            efficiency: !self.no_efficiency,
        })
    }

    fn unknown(&self) -> Result<Option<Unknown>, ReplayError> {
        let Some(learns) = self.learn else {
            return Ok(None);
        };
        if self.metric == MetricName::File {
            let problem = "--learn needs a metric of the throughput, which is what is learned; \
                           leave out --metric file";
            return Err(ReplayError::Options(problem.to_owned()));
        }
        if self.noise > 0.5 {
            let problem = format!("--noise {}: expected a part from 0 to 0.5", self.noise);
            return Err(ReplayError::Options(problem));
        }
        Ok(Some(Unknown {
            learns: match learns {
                LearnsName::Program => Learns::Program,
                LearnsName::Trainer => Learns::Trainer,
                LearnsName::Never => Learns::Never,
            },
            guess: match self.guess {
                GuessName::Amdahl => Guess::Amdahl(PARALLEL),
                GuessName::Linear => Guess::Linear,
            },
            noise: self.noise,
        }))
    }

    fn admits(&self) -> Admission {
        match (self.max_trainers, self.admission, self.policy) {
            (Some(most), _, _) => Admission::AtMost(most),
            (None, Some(AdmissionName::Open), _) | (None, None, Policy::Bftrainer) => {
                Admission::Open(TRAINERS)
            }
            (None, None, _) => Admission::AtMost(TRAINERS),
        }
    }
}

fn from_zero(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    number
        .filter(|number| *number >= 0.0 && number.is_finite())
        .ok_or_else(|| format!("`{text}` is not a number from 0 on"))
}
