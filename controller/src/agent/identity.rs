//! Which trainer, task and node this process is, from Slurm's environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// One run of one task of a trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The trainer: the array's job id.
    pub array_job_id: u32,
    /// The task in the array.
    pub array_task_id: u32,
    /// The task's own job id.
    pub job_id: u32,
    /// How often Slurm has restarted the task.
    pub restart_count: u32,
    /// Slurm's name of the node.
    pub node: String,
    /// Where the job was submitted; the control folder lies here.
    pub submit_dir: PathBuf,
}

/// Why there is no identity.
#[derive(Debug, Error, PartialEq)]
pub enum IdentityError {
    /// A variable is missing.
    #[error(
        "{0} is not set: the worker agent runs inside a task of a trainer only; submit the \
         script with sbatch --bftrainer=nodes=MIN-MAX"
    )]
    Outside(&'static str),
    /// A variable holds nonsense.
    #[error("{0}={1} is not a number")]
    NoNumber(&'static str, String),
}

impl Identity {
    /// The identity in this process's environment.
    pub fn from_env() -> Result<Self, IdentityError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The identity in the environment that `variable` looks up.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, IdentityError> {
        let text = |name: &'static str| {
            variable(name)
                .map(|value| value.to_string_lossy().into_owned())
                .filter(|value| !value.is_empty())
                .ok_or(IdentityError::Outside(name))
        };
        let number = |name| parse::<u32>(name, text(name)?);
        let restart_count = match text("SLURM_RESTART_COUNT") {
            Ok(count) => parse("SLURM_RESTART_COUNT", count)?,
            Err(_) => 0,
        };
        let submit_dir = match variable("SLURM_SUBMIT_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => std::env::current_dir().unwrap_or_else(|_| PathBuf::from(".")),
        };
        Ok(Identity {
            array_job_id: number("SLURM_ARRAY_JOB_ID")?,
            array_task_id: number("SLURM_ARRAY_TASK_ID")?,
            job_id: number("SLURM_JOB_ID")?,
            restart_count,
            node: text("SLURMD_NODENAME")?,
            submit_dir,
        })
    }

    /// The task as Slurm writes it, `A_k`.
    pub fn task(&self) -> String {
        format!("{}_{}", self.array_job_id, self.array_task_id)
    }
}

fn parse<T: FromStr>(name: &'static str, value: String) -> Result<T, IdentityError> {
    value
        .trim()
        .parse()
        .map_err(|_| IdentityError::NoNumber(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(change: &[(&str, Option<&str>)]) -> impl Fn(&str) -> Option<OsString> {
        let mut all = std::collections::HashMap::new();
        for (name, value) in [
            ("SLURM_ARRAY_JOB_ID", "40"),
            ("SLURM_ARRAY_TASK_ID", "3"),
            ("SLURM_JOB_ID", "44"),
            ("SLURM_RESTART_COUNT", "2"),
            ("SLURMD_NODENAME", "n7"),
            ("SLURM_SUBMIT_DIR", "/home/u"),
        ] {
            all.insert(name.to_owned(), OsString::from(value));
        }
        for (name, value) in change {
            match value {
                Some(value) => all.insert((*name).to_owned(), OsString::from(value)),
                None => all.remove(*name),
            };
        }
        move |name| all.get(name).cloned()
    }

    #[test]
    fn a_task_knows_its_trainer_node_and_restarts() {
        let identity = Identity::from_variables(variables(&[])).unwrap();
        assert_eq!(identity.task(), "40_3");
        assert_eq!((identity.job_id, identity.restart_count), (44, 2));
        assert_eq!(identity.node, "n7");
        let first = Identity::from_variables(variables(&[("SLURM_RESTART_COUNT", None)])).unwrap();
        assert_eq!(first.restart_count, 0);
    }

    #[test]
    fn outside_of_an_array_task_a_sentence_says_what_to_do() {
        let error = Identity::from_variables(variables(&[("SLURM_ARRAY_JOB_ID", None)]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("SLURM_ARRAY_JOB_ID") && error.contains("sbatch --bftrainer"));
        assert!(Identity::from_variables(variables(&[("SLURM_JOB_ID", Some("x"))])).is_err());
    }
}
