//! `bftrainer replay`: what a site would have gained, from its own log. No Slurm needed.
//!
//! `run` does one replay, `trainers` reads who is to be trained, `output` shows what came of it.

mod args;
mod output;
mod report;
mod run;
mod steps;
mod sweep;
mod trainers;

use std::process::ExitCode;

pub use args::Args;
pub use run::{Observer, Outcome, Policy, Replay, ReplayError, Setup, run};
pub use steps::StepLog;
pub use trainers::{TrainersError, from_text as trainers_from_text, read as read_trainers};

use bftrainer_core::replay::Step;
use indicatif::ProgressBar;

/// Writes the step log and keeps what the report shows.
struct Watch {
    series: Option<report::Series>,
    steps: Option<(std::path::PathBuf, StepLog)>,
    /// Draws itself on a terminal only.
    bar: ProgressBar,
}

impl Observer for Watch {
    fn step(&mut self, step: &Step, replay: &Replay) -> Result<(), ReplayError> {
        if let Some(series) = &mut self.series {
            series.push(step, replay.allocation());
        }
        if let Some((path, log)) = &mut self.steps {
            log.write(step).map_err(|source| ReplayError::Write {
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn progress(&mut self, share: f64) {
        self.bar.set_position((share * BAR_STEPS as f64) as u64);
    }
}

/// Steps of the progress bar.
const BAR_STEPS: u64 = 1000;

/// Runs the command.
pub fn command(args: &Args) -> ExitCode {
    match replay(args) {
        Ok(text) => crate::stdout::print(&(text + "\n")),
        Err(error) => {
            eprintln!("bftrainer replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn replay(args: &Args) -> Result<String, ReplayError> {
    if !args.sweep.is_empty() {
        return sweep(args);
    }
    let setup = args.setup()?;
    let mut watch = Watch {
        series: args.report.as_ref().map(|_| report::Series::default()),
        steps: None,
        bar: ProgressBar::new(BAR_STEPS),
    };
    if let Some(path) = &args.steps {
        let log = StepLog::create(path).map_err(|source| ReplayError::Write {
            path: path.clone(),
            source,
        })?;
        watch.steps = Some((path.clone(), log));
    }
    let outcome = run(
        &setup,
        |start_s| read_trainers(&args.trainers, start_s),
        &mut watch,
    );
    watch.bar.finish_and_clear();
    let outcome = outcome?;
    if let Some((path, log)) = watch.steps {
        log.finish()
            .map_err(|source| ReplayError::Write { path, source })?;
    }
    if let (Some(path), Some(series)) = (&args.report, &watch.series) {
        report::write_replay(path, &setup, &outcome, series, args.power_w)?;
    }
    Ok(if args.json {
        output::json(&setup, &outcome, args.power_w).to_string()
    } else {
        output::text(&setup, &outcome, args.power_w)
    })
}

fn sweep(args: &Args) -> Result<String, ReplayError> {
    let combinations = sweep::combinations(&args.sweep)?;
    let setups = sweep::setups(args, &combinations)?;
    let outcomes = sweep::run_all(&setups, |setup| {
        run(
            setup,
            |start_s| read_trainers(&args.trainers, start_s),
            &mut (),
        )
    })?;
    if let Some(path) = &args.report {
        let curves = report::Curves::of(&args.sweep, &combinations, &outcomes);
        report::write_sweep(path, &setups, &outcomes, &curves)?;
    }
    if args.json {
        let all = setups.iter().zip(&outcomes);
        let values = all.map(|(setup, outcome)| output::json(setup, outcome, args.power_w));
        return Ok(serde_json::Value::Array(values.collect()).to_string());
    }
    Ok(sweep::table(&setups, &outcomes))
}
