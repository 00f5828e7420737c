//! The JSON of allocation instances and answers. What is not named here is left alone, so that an
//! instance may carry notes and known results.

use std::collections::{BTreeMap, HashMap};

use bftrainer_core::allocation::{
    Cap, Infeasible, MAX_SPEED, NodeClass, Problem, ProblemError, Share, Solution, TrainerDemand,
};
use bftrainer_core::curve::{Curve, CurveError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// One allocation to decide.
#[derive(Debug, Deserialize)]
pub struct Instance {
    /// Comes back in the answer.
    #[serde(default)]
    pub id: Value,
    pool: Option<u32>,
    classes: Option<Vec<NodeClass>>,
    tfwd: f64,
    trainers: Vec<Trainer>,
    #[serde(default)]
    caps: Vec<Cap>,
}

#[derive(Debug, Deserialize)]
struct Trainer {
    current: u32,
    min: u32,
    max: u32,
    scale_up_cost_s: f64,
    scale_down_cost_s: f64,
    curve: Vec<(u32, f64)>,
    #[serde(default)]
    class: Option<String>,
    #[serde(default)]
    speed: BTreeMap<String, Option<f64>>,
    #[serde(default = "one")]
    weight: f64,
}

fn one() -> f64 {
    1.0
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// Not the JSON of an instance.
    #[error("column {column}: {message}")]
    Json {
        /// Where, in bytes from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// Not UTF-8.
    #[error("byte {0} is not UTF-8")]
    NotUtf8(usize),
    /// Longer than a line may be.
    #[error("longer than {0} bytes")]
    TooLong(usize),
    /// Neither or both of pool and classes.
    #[error("give either \"pool\" (nodes that are alike) or \"classes\"")]
    PoolOrClasses,
    /// A class twice.
    #[error("class \"{0}\" is there twice")]
    ClassTwice(String),
    /// A trainer names a class that is not there.
    #[error("trainer {trainer}: there is no class \"{class}\"")]
    UnknownClass {
        /// Index of the trainer.
        trainer: usize,
        /// The name.
        class: String,
    },
    /// Nodes held in no class.
    #[error("trainer {0} holds nodes: its \"class\" says of which class they are")]
    NoClass(usize),
    /// A speed that is no factor.
    #[error("trainer {trainer}: speed {speed} is not a number from 0 to {MAX_SPEED}")]
    BadSpeed {
        /// Index of the trainer.
        trainer: usize,
        /// The factor.
        speed: f64,
    },
    /// A weight that is none.
    #[error("trainer {trainer}: weight {weight} is not a number from 0 on")]
    BadWeight {
        /// Index of the trainer.
        trainer: usize,
        /// The weight.
        weight: f64,
    },
    /// A curve that is none.
    #[error("trainer {trainer}: {error}")]
    Curve {
        /// Index of the trainer.
        trainer: usize,
        /// What is wrong.
        error: CurveError,
    },
    /// A problem that can't be posed.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// No allocation is allowed.
    #[error("infeasible: the half-pool bound allows no allocation")]
    Infeasible,
    /// The half-pool bound is for interchangeable nodes.
    #[error("the half-pool bound is defined for \"pool\" without \"caps\" only")]
    HalfPool,
    /// Too much for the dynamic program.
    #[error("classes and caps are beyond the solver dp; use --solver auto or milp")]
    NotUniform,
    /// A solver's answer that is not allowed.
    #[error("the solver's answer is not allowed: {0}")]
    Answer(#[from] Infeasible),
}

impl InstanceError {
    /// The position within the line; serde's "line 1" would only confuse.
    fn json(error: &serde_json::Error) -> Self {
        let message = error.to_string();
        let end = message.rfind(" at line ").unwrap_or(message.len());
        Self::Json {
            column: error.column(),
            message: message[..end].to_owned(),
        }
    }
}

impl Instance {
    /// Parses a line.
    pub fn parse(line: &[u8]) -> Result<Self, InstanceError> {
        let text = std::str::from_utf8(line)
            .map_err(|error| InstanceError::NotUtf8(error.valid_up_to() + 1))?;
        serde_json::from_str(text).map_err(|error| InstanceError::json(&error))
    }

    /// The id of a line that is no instance, if it has one.
    pub fn id_of(line: &[u8]) -> Value {
        match serde_json::from_slice(line) {
            Ok(Value::Object(mut fields)) => fields.remove("id").unwrap_or_default(),
            _ => Value::Null,
        }
    }

    /// Whether its answer names classes.
    pub fn has_classes(&self) -> bool {
        self.classes.is_some()
    }

    /// The problem that it states, validated.
    pub fn problem(&self) -> Result<Problem, InstanceError> {
        let names = self.class_names()?;
        let trainers = self.trainers.iter().enumerate();
        let trainers: Result<Vec<_>, _> = trainers
            .map(|(j, trainer)| trainer.demand(j, names.as_ref()))
            .collect();
        let problem = match (self.pool, &self.classes) {
            (Some(pool), None) => Problem::new(pool, self.tfwd, trainers?),
            (None, Some(classes)) => Problem::with_classes(classes.clone(), self.tfwd, trainers?),
            _ => return Err(InstanceError::PoolOrClasses),
        };
        let problem = problem.with_caps(self.caps.clone());
        problem.validate()?;
        Ok(problem)
    }

    /// Index of each class by its name; `None` when the nodes are alike.
    fn class_names(&self) -> Result<Option<HashMap<&str, usize>>, InstanceError> {
        let Some(classes) = &self.classes else {
            return Ok(None);
        };
        let mut names = HashMap::new();
        for (index, class) in classes.iter().enumerate() {
            if names.insert(class.name.as_str(), index).is_some() {
                return Err(InstanceError::ClassTwice(class.name.clone()));
            }
        }
        Ok(Some(names))
    }
}

impl Trainer {
    fn demand(
        &self,
        trainer: usize,
        names: Option<&HashMap<&str, usize>>,
    ) -> Result<TrainerDemand, InstanceError> {
        let weight = self.weight;
        if !(weight >= 0.0 && weight.is_finite()) {
            return Err(InstanceError::BadWeight { trainer, weight });
        }
        let curve = Curve::objective(&self.curve)
            .map_err(|error| InstanceError::Curve { trainer, error })?;
        let objective = if weight == 1.0 {
            curve
        } else {
            curve.scaled(weight)
        };
        let index_of = |class: &str| {
            let unknown = || InstanceError::UnknownClass {
                trainer,
                class: class.to_owned(),
            };
            names
                .and_then(|names| names.get(class).copied())
                .ok_or_else(unknown)
        };
        let mut current = Share::from(self.current);
        if let Some(class) = &self.class {
            current = Share::new(index_of(class)?, self.current);
        } else if names.is_some() && self.current > 0 {
            return Err(InstanceError::NoClass(trainer));
        }
        let mut demand = TrainerDemand::new(current, self.min, self.max, objective)
            .with_costs(self.scale_up_cost_s, self.scale_down_cost_s);
        if let Some(names) = names {
            // A class that is missing, null or 0 is not allowed.
            let mut speeds = vec![0.0; names.len()];
            for (class, &speed) in &self.speed {
                let (class, speed) = (index_of(class)?, speed.unwrap_or(0.0));
                if !(0.0..=MAX_SPEED).contains(&speed) {
                    return Err(InstanceError::BadSpeed { trainer, speed });
                }
                speeds[class] = speed;
            }
            demand = demand.with_speeds(speeds);
        } else if let Some(class) = self.speed.keys().next() {
            index_of(class)?;
        }
        Ok(demand)
    }
}

/// The answer to an instance, as it is written.
#[derive(Debug, Serialize)]
pub struct Answer {
    id: Value,
    objective: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    found: Option<Found>,
}

#[derive(Debug, Serialize)]
struct Found {
    allocation: Vec<Allocated>,
    solver: bftrainer_core::allocation::Solver,
    optimal: bool,
    /// Null when nothing is known.
    gap: Option<f64>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Allocated {
    Nodes(u32),
    OfClass { class: Option<String>, nodes: u32 },
}

impl Answer {
    /// What was found; with classes named if the instance names them.
    pub fn found(instance: &Instance, solution: &Solution) -> Self {
        let named = |share: &Share| match &instance.classes {
            None => Allocated::Nodes(share.nodes),
            Some(classes) => Allocated::OfClass {
                class: match share.nodes {
                    0 => None,
                    _ => classes.get(share.class).map(|class| class.name.clone()),
                },
                nodes: share.nodes,
            },
        };
        Self {
            id: instance.id.clone(),
            objective: Some(solution.objective),
            error: None,
            found: Some(Found {
                allocation: solution.shares.iter().map(named).collect(),
                solver: solution.solver,
                optimal: solution.optimal,
                gap: Some(solution.gap).filter(|gap| gap.is_finite()),
                seconds: solution.seconds,
            }),
        }
    }

    /// Why there is none.
    pub fn failed(id: Value, error: String) -> Self {
        Self {
            id,
            objective: None,
            error: Some(error),
            found: None,
        }
    }
}
