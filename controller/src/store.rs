//! What must outlive the daemon and Slurm does not keep: decisions with their
//! reasons, ended trainers, node-seconds harvested. A SQLite file in the state
//! directory, written by a thread of its own so that a slow disk delays nobody.

mod file;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use bftrainer_core::engine::{Decision, Quarantine};
use bftrainer_core::learning::Profile;
use bftrainer_core::trainer::TrainerId;
use nix::fcntl::Flock;
use thiserror::Error;

use self::file::{SCHEMA, Trouble, lock, open_checked, set_aside};
pub use self::read::harvest_since;
use self::write::Writer;
use crate::timeline::Point;

/// The file's name in the state directory.
const FILE: &str = "bftrainer.db";

/// Why there is no store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The state directory or the file can't be used.
    #[error("{path}: {error}; `state_dir` must be a directory that SlurmUser may write")]
    Unusable {
        /// What was tried.
        path: PathBuf,
        /// The system's or SQLite's words.
        error: String,
    },
    /// Another daemon has it.
    #[error("{path} is locked: another bftrainerd runs with this `state_dir`")]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The file was written by a later version.
    #[error(
        "{path} has version {found} of its tables, this bftrainerd knows {SCHEMA}: start the \
         version that wrote it, or move the file aside"
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
    },
}

/// Node-seconds harvested on one day.
#[derive(Clone, Debug, PartialEq)]
pub struct Harvest {
    /// Days since 1970.
    pub day: i64,
    /// Whose trainers.
    pub user: String,
    /// On which account.
    pub account: String,
    /// Node-seconds in which ranks ran.
    pub node_s: f64,
}

/// Something to be kept.
#[derive(Clone, Debug)]
pub enum Record {
    /// A decision.
    Decision(Decision),
    /// An ended trainer as it was shown last.
    Ended {
        /// Its array job id.
        array_job_id: u32,
        /// The row.
        row: serde_json::Value,
    },
    /// All that speaks against nodes; takes the place of what was kept before.
    NodeFaults(Vec<NodeFault>),
    /// Pool and allocation over half a minute.
    Timeline(Point),
    /// Node-seconds in which ranks ran.
    Harvest {
        /// Days since 1970.
        day: i64,
        /// The trainer's owner.
        user: String,
        /// The trainer's account.
        account: String,
        /// Node-seconds to be added.
        node_s: f64,
    },
    /// What was learned of a program.
    Learned {
        /// The program's key.
        program: String,
        /// What is known.
        profile: Profile,
    },
    /// What was learned of a program is worth nothing any more.
    Forget {
        /// The program's key.
        program: String,
    },
}

/// Why a node is left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFault {
    /// Its name.
    pub node: String,
    /// The trainer that keeps off it; `None`: all do.
    pub trainer: Option<TrainerId>,
    /// How long, and why.
    pub quarantine: Quarantine,
    /// Whether a trainer's failure says something of the node.
    pub speaks_against_node: bool,
}

/// What an earlier daemon has left.
#[derive(Debug, Default)]
pub struct Memory {
    /// The last decisions, oldest first.
    pub decisions: Vec<Decision>,
    /// The last ended trainers.
    pub ended: Vec<(u32, serde_json::Value)>,
    /// What was learned, by program.
    pub profiles: Vec<(String, Profile)>,
    /// What speaks against nodes.
    pub node_faults: Vec<NodeFault>,
    /// Pool and allocation of the last day, oldest first.
    pub timeline: Vec<Point>,
}

/// The open store. Dropping it writes what is left.
#[derive(Debug)]
pub struct Store {
    records: Option<Sender<Record>>,
    writer: Option<JoinHandle<()>>,
    /// Held as long as the store is open.
    _lock: Flock<File>,
}

impl Store {
    /// Opens the file in `state_dir` and reads the last `most` rows of each kind.
    /// A damaged file is set aside and begun anew, with a loud word in the log; while the disk
    /// is full nothing is read, and nothing kept until the file can be written.
    pub fn open(state_dir: &Path, most: u32) -> Result<(Self, Memory), StoreError> {
        let unusable = |path: &Path, error: String| StoreError::Unusable {
            path: path.to_path_buf(),
            error,
        };
        std::fs::create_dir_all(state_dir)
            .map_err(|error| unusable(state_dir, error.to_string()))?;
        let path = state_dir.join(FILE);
        let lock = lock(state_dir)?;
        let open = || {
            let connection = open_checked(&path)?;
            let memory = read::recall(&connection, most)?;
            Ok((connection, memory))
        };
        let mut opened = open();
        if let Err(Trouble::Damaged(error)) = &opened {
            set_aside(&path, error).map_err(|error| unusable(&path, error.to_string()))?;
            opened = open();
        }
        let (writer, memory) = match opened {
            Ok((connection, memory)) => (Writer::new(path, connection), memory),
            Err(Trouble::Disk(error)) => (Writer::without_file(path, &error), Memory::default()),
            Err(Trouble::TooNew(found)) => return Err(StoreError::TooNew { path, found }),
            Err(trouble) => return Err(unusable(&path, trouble.to_string())),
        };
        let (records, received) = channel();
        let writer = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.write_all(&received))
            .map_err(|error| unusable(state_dir, error.to_string()))?;
        let store = Store {
            records: Some(records),
            writer: Some(writer),
            _lock: lock,
        };
        Ok((store, memory))
    }

    /// Hands a record to the writing thread.
    pub fn keep(&self, record: Record) {
        if let Some(records) = &self.records {
            // A writer that has ended has said why.
            let _ = records.send(record);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.records = None;
        if let Some(writer) = self.writer.take() {
            // It only panics where it has already said so.
            let _ = writer.join();
        }
    }
}
