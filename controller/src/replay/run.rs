//! One replay: a log, trainers and a policy in, the sums out.

use std::path::PathBuf;
use std::time::Instant;

use bftrainer_core::replay::{
    Admission, Dedicated, Latency, Objective, PoolEvent, Published, PublishedPolicy, Queue,
    Simulation, SimulationConfig, Step, Tally, TrainerSpec, Unknown, dedicated_samples,
};
use thiserror::Error;

use super::trainers::TrainersError;
use crate::trace::{self, Source, TraceError};

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The live engine
    Bftrainer,
    /// The paper's, as its authors' replayer has it, faults included
    Paper,
    /// The same for everybody: the heuristic that the paper compares with
    EqualShare,
}

impl Policy {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Bftrainer => "bftrainer",
            Policy::Paper => "paper",
            Policy::EqualShare => "equal-share",
        }
    }
}

/// What is to be replayed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The log.
    pub source: Source,
    /// Who decides.
    pub policy: Policy,
    /// Seconds over which a decision must pay.
    pub horizon_s: f64,
    /// What is maximised.
    pub objective: Objective,
    /// How many trainers at once.
    pub admission: Admission,
    /// Whether the list of trainers starts again when it runs out.
    pub repeat: bool,
    /// How the cluster differs from the ideal one.
    pub latency: Latency,
    /// Curves that the engine is not told.
    pub unknown: Option<Unknown>,
    /// Whether decisions are compared with the best.
    pub judge: bool,
    /// Whether the bound is computed that efficiency needs.
    pub efficiency: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The sums.
    pub tally: Tally,
    /// When the replay began, epoch seconds.
    pub start_s: f64,
    /// Nodes that the log names, or that were chosen.
    pub nodes: usize,
    /// Events of the log.
    pub events: u64,
    /// Samples that the same trainers would gain on as many dedicated nodes as were idle on
    /// average, for nothing.
    pub dedicated_samples: Option<f64>,
    /// How long the replay took, seconds; the bound not included.
    pub seconds: f64,
}

impl Outcome {
    /// Samples gained over samples on dedicated nodes.
    pub fn efficiency(&self) -> Option<f64> {
        let dedicated = self.dedicated_samples.filter(|samples| *samples > 0.0)?;
        Some(self.tally.samples / dedicated)
    }

    /// What the trainers held over the best that they could have; none unless it was asked for.
    pub fn decision_value(&self) -> Option<f64> {
        let best = Some(self.tally.best_value).filter(|value| *value > 0.0)?;
        Some(self.tally.value / best)
    }

    /// Nodes in the pool on average.
    pub fn mean_pool(&self) -> f64 {
        if self.tally.span_s > 0.0 {
            self.tally.idle_node_s / self.tally.span_s
        } else {
            0.0
        }
    }
}

/// Why a replay can't be made.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The log.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trainers' file.
    #[error(transparent)]
    Trainers(#[from] TrainersError),
    /// A combination of options that makes no sense.
    #[error("{0}")]
    Options(String),
    /// A file that can't be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Who is told what happens during a replay.
pub trait Observer {
    /// After each event of the log.
    ///
    /// # Errors
    /// What the observer can't go on with ends the replay.
    fn step(&mut self, step: &Step, replay: &Replay) -> Result<(), ReplayError>;

    /// Now and then: the part of the log that is behind, from 0 to 1.
    fn progress(&mut self, _share: f64) {}
}

/// Events between two words about progress.
const EVENTS_A_WORD: u64 = 64;

/// Nobody.
impl Observer for () {
    fn step(&mut self, _: &Step, _: &Replay) -> Result<(), ReplayError> {
        Ok(())
    }
}

/// A replay under way.
pub enum Replay {
    /// Of the authors' policies.
    Published(Box<Published>),
    /// Of the live engine.
    Simulation(Box<Simulation>),
}

impl Replay {
    fn new(setup: &Setup, queue: Queue, trace: &trace::Trace) -> Result<Self, ReplayError> {
        let policy = match setup.policy {
            Policy::Bftrainer => {
                let config = SimulationConfig {
                    horizon_s: setup.horizon_s,
                    objective: setup.objective,
                    admission: setup.admission,
                    latency: setup.latency,
                    unknown: setup.unknown,
                    judge: setup.judge,
                };
                let (start_s, names, idle) = (trace.start_s, &trace.names, &trace.idle);
                let simulation = Simulation::new(config, queue, start_s, names, idle);
                return Ok(Replay::Simulation(Box::new(simulation)));
            }
            Policy::Paper => PublishedPolicy::Optimal {
                horizon_s: setup.horizon_s,
                objective: setup.objective,
            },
            Policy::EqualShare => PublishedPolicy::EqualShare,
        };
        let name = setup.policy.name();
        if setup.unknown.is_some() {
            let problem = format!("--policy {name} does not learn; leave out --learn");
            return Err(ReplayError::Options(problem));
        }
        if setup.judge {
            let problem = format!("--policy {name} is not judged; leave out --judge");
            return Err(ReplayError::Options(problem));
        }
        let Admission::AtMost(most) = setup.admission else {
            let problem = format!("--policy {name} has no open admission; give --max-trainers");
            return Err(ReplayError::Options(problem));
        };
        if setup.latency != Latency::default() {
            let problem = format!("--policy {name} knows no start or save times; leave them out");
            return Err(ReplayError::Options(problem));
        }
        let idle: Vec<_> = trace.idle.iter().map(|(node, _)| *node).collect();
        let published = Published::new(policy, most, queue, trace.start_s, &idle);
        Ok(Replay::Published(Box::new(published)))
    }

    fn step(&mut self, event: &PoolEvent) -> Step {
        match self {
            Replay::Published(replay) => replay.step(event),
            Replay::Simulation(replay) => replay.step(event),
        }
    }

    /// What has been added up so far.
    pub fn tally(&self) -> &Tally {
        match self {
            Replay::Published(replay) => replay.tally(),
            Replay::Simulation(replay) => replay.tally(),
        }
    }

    /// Number (in the order of admission, or as good as) and nodes of each trainer that runs.
    pub fn allocation(&self) -> Box<dyn Iterator<Item = (u64, usize)> + '_> {
        match self {
            Replay::Published(replay) => Box::new(replay.allocation()),
            Replay::Simulation(replay) => Box::new(replay.allocation()),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Replay::Published(replay) => replay.is_done(),
            Replay::Simulation(replay) => replay.is_done(),
        }
    }
}

/// Replays `setup` with the trainers that `read_trainers` gives for the time at which the replay
/// begins (epoch seconds).
///
/// # Errors
/// [`ReplayError`] from the log, the trainers, the options or the observer.
pub fn run(
    setup: &Setup,
    read_trainers: impl FnOnce(f64) -> Result<Vec<TrainerSpec>, TrainersError>,
    observer: &mut dyn Observer,
) -> Result<Outcome, ReplayError> {
    let began = Instant::now();
    let mut trace = trace::open(&setup.source)?;
    let start_s = trace.start_s;
    let mut nodes = trace.names.len();
    let queue = Queue::new(read_trainers(start_s)?, setup.repeat);
    let mut replay = Replay::new(setup, queue.clone(), &trace)?;
    let mut events = 0;
    while let Some(event) = trace.next() {
        let event = event?;
        nodes += event.new_names.len();
        events += 1;
        let step = replay.step(&event);
        observer.step(&step, &replay)?;
        if events % EVENTS_A_WORD == 0 {
            observer.progress(trace.share());
        }
        if replay.is_done() {
            break;
        }
    }
    let mut outcome = Outcome {
        tally: replay.tally().clone(),
        start_s,
        nodes,
        events,
        dedicated_samples: None,
        seconds: began.elapsed().as_secs_f64(),
    };
    if setup.efficiency && outcome.tally.span_s > 0.0 {
        let dedicated = Dedicated {
            queue,
            admission: setup.admission,
            objective: setup.objective,
            start_s,
            span_s: outcome.tally.span_s,
        };
        let samples = dedicated_samples(&dedicated, outcome.mean_pool());
        outcome.dedicated_samples = Some(samples);
    }
    Ok(outcome)
}
