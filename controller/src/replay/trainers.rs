//! Trainers' files: the JSON list of recorded trainers, and a short TOML form for a site that has
//! none.

use std::path::{Path, PathBuf};

use bftrainer_core::curve::{Curve, CurveError};
use bftrainer_core::replay::TrainerSpec;
use serde::Deserialize;
use thiserror::Error;

/// Most trainers that a file may describe.
const MAX_TRAINERS: usize = 1_000_000;

/// Why a trainers' file can't be used.
#[derive(Debug, Error)]
pub enum TrainersError {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not of the expected form; the message has line and column.
    #[error("{}: {problem}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// Where and what.
        problem: String,
    },
    /// A trainer makes no sense.
    #[error("{}: trainer {name}: {problem}", path.display())]
    Trainer {
        /// The file.
        path: PathBuf,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonTrainer {
    name: String,
    submit: f64,
    min_nodes: u32,
    max_nodes: u32,
    scale_up_cost_s: f64,
    scale_down_cost_s: f64,
    total_samples: f64,
    curve: Vec<JsonPoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonPoint {
    nodes: u32,
    throughput: f64,
    #[serde(default)]
    objective: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlFile {
    trainer: Vec<TomlTrainer>,
}

/// One or many trainers alike. `submit_s` counts from the beginning of the replay; of `count`
/// trainers each follows the one before by `every_s`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlTrainer {
    name: String,
    #[serde(default = "one")]
    count: usize,
    #[serde(default = "one_node")]
    min: u32,
    max: u32,
    samples: f64,
    #[serde(default = "default_up_s")]
    up_s: f64,
    #[serde(default = "default_down_s")]
    down_s: f64,
    #[serde(default)]
    submit_s: f64,
    #[serde(default)]
    every_s: f64,
    curve: Vec<(u32, f64)>,
}

fn one() -> usize {
    1
}

fn one_node() -> u32 {
    1
}

fn default_up_s() -> f64 {
    20.0
}

fn default_down_s() -> f64 {
    10.0
}

/// Reads the trainers in the file at `path`: TOML when its name ends in `.toml`, else JSON. Times
/// in a TOML file count from `start_s`, epoch seconds.
///
/// # Errors
/// [`TrainersError`] names the file, and the place or the trainer.
pub fn read(path: &Path, start_s: f64) -> Result<Vec<TrainerSpec>, TrainersError> {
    let text = std::fs::read_to_string(path).map_err(|source| TrainersError::Io {
        path: path.to_owned(),
        source,
    })?;
    from_text(path, &text, start_s)
}

/// As [`read`], with the file's text in memory.
///
/// # Errors
/// As from [`read`].
pub fn from_text(path: &Path, text: &str, start_s: f64) -> Result<Vec<TrainerSpec>, TrainersError> {
    let specs = if path
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        from_toml(path, text, start_s)?
    } else {
        from_json(path, text)?
    };
    if specs.is_empty() {
        return Err(form(path, "it has no trainer"));
    }
    Ok(specs)
}

fn form(path: &Path, problem: impl ToString) -> TrainersError {
    TrainersError::Form {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

fn from_json(path: &Path, text: &str) -> Result<Vec<TrainerSpec>, TrainersError> {
    let trainers: Vec<JsonTrainer> = serde_json::from_str(text).map_err(|e| form(path, e))?;
    let specs = trainers.into_iter().map(|trainer| {
        let throughput: Vec<(u32, f64)> = points(&trainer.curve, |point| point.throughput);
        let objective: Vec<(u32, f64)> = points(&trainer.curve, |point| {
            point.objective.unwrap_or(point.throughput)
        });
        let spec = Curve::new(&throughput).and_then(|throughput| {
            Ok(TrainerSpec {
                name: trainer.name.clone(),
                submit_s: trainer.submit,
                min_nodes: trainer.min_nodes,
                max_nodes: trainer.max_nodes,
                up_s: trainer.scale_up_cost_s,
                down_s: trainer.scale_down_cost_s,
                samples: trainer.total_samples,
                throughput,
                objective: Curve::objective(&objective)?,
            })
        });
        checked(path, &trainer.name, spec)
    });
    specs.collect()
}

fn points(curve: &[JsonPoint], value: impl Fn(&JsonPoint) -> f64) -> Vec<(u32, f64)> {
    curve
        .iter()
        .map(|point| (point.nodes, value(point)))
        .collect()
}

fn from_toml(path: &Path, text: &str, start_s: f64) -> Result<Vec<TrainerSpec>, TrainersError> {
    let file: TomlFile = toml::from_str(text).map_err(|e| form(path, e))?;
    let mut specs = Vec::new();
    for trainer in file.trainer {
        if trainer.count > MAX_TRAINERS - specs.len() {
            return Err(form(path, format!("more than {MAX_TRAINERS} trainers")));
        }
        let spec = Curve::new(&trainer.curve).map(|curve| TrainerSpec {
            name: trainer.name.clone(),
            submit_s: start_s + trainer.submit_s,
            min_nodes: trainer.min,
            max_nodes: trainer.max,
            up_s: trainer.up_s,
            down_s: trainer.down_s,
            samples: trainer.samples,
            throughput: curve.clone(),
            objective: curve,
        });
        let spec = checked(path, &trainer.name, spec)?;
        let every_s = checked_time(path, &trainer.name, "every_s", trainer.every_s)?;
        specs.extend((0..trainer.count).map(|index| TrainerSpec {
            submit_s: spec.submit_s + every_s * index as f64,
            ..spec.clone()
        }));
    }
    Ok(specs)
}

fn checked(
    path: &Path,
    name: &str,
    spec: Result<TrainerSpec, CurveError>,
) -> Result<TrainerSpec, TrainersError> {
    let wrong = |problem: String| TrainersError::Trainer {
        path: path.to_owned(),
        name: name.to_owned(),
        problem,
    };
    let spec = spec.map_err(|error| wrong(error.to_string()))?;
    if spec.min_nodes == 0 || spec.min_nodes > spec.max_nodes {
        return Err(wrong(format!(
            "min {} and max {} must be 1 <= min <= max",
            spec.min_nodes, spec.max_nodes
        )));
    }
    if !(spec.samples > 0.0 && spec.samples.is_finite()) {
        let problem = format!("{} samples; it needs a positive number", spec.samples);
        return Err(wrong(problem));
    }
    checked_time(path, name, "scale-up cost", spec.up_s)?;
    checked_time(path, name, "scale-down cost", spec.down_s)?;
    if !spec.submit_s.is_finite() {
        return Err(wrong("the submit time is not a number".to_owned()));
    }
    Ok(spec)
}

fn checked_time(path: &Path, name: &str, what: &str, time_s: f64) -> Result<f64, TrainersError> {
    if time_s >= 0.0 && time_s.is_finite() {
        return Ok(time_s);
    }
    Err(TrainersError::Trainer {
        path: path.to_owned(),
        name: name.to_owned(),
        problem: format!("{what} {time_s} is not a number of seconds from 0 on"),
    })
}
