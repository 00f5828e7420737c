//! What administrators have ordered: pause, drain, nodes to be left alone. Kept
//! in the state directory, so that a restart of the daemon forgets none of it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file's name in the state directory.
const FILE: &str = "orders.json";

/// What is done with the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Idle nodes are given to trainers.
    #[default]
    Running,
    /// Trainers share what they have; no idle node is taken.
    Paused,
    /// All nodes are given back; trainers stay in the queue.
    Drained,
}

/// The orders in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// What is done with the pool.
    pub mode: Mode,
    /// Nodes that are left alone, and why.
    pub excluded: BTreeMap<String, String>,
    #[serde(skip)]
    path: PathBuf,
}

impl Orders {
    /// The orders kept in `state_dir`; none when there are none or they can't be read.
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                log::error!(
                    "{}: {error}: no pause, drain or excluded node is in force; order it again",
                    path.display()
                );
                Orders::default()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    log::error!("{}: {error}", path.display());
                }
                Orders::default()
            }
        };
        Orders { path, ..kept }
    }

    /// Keeps the orders for the next start.
    pub fn keep(&self) -> io::Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &self.path)
    }

    /// Whether a node may be in the pool; `in_use` when a trainer has it already.
    pub fn allow(&self, node: &str, in_use: bool) -> bool {
        let by_mode = match self.mode {
            Mode::Running => true,
            Mode::Paused => in_use,
            Mode::Drained => false,
        };
        by_mode && !self.excluded.contains_key(node)
    }

    /// Why trainers wait, when an order is the reason.
    pub fn reason(&self) -> Option<&'static str> {
        match self.mode {
            Mode::Running => None,
            Mode::Paused => Some("paused by the administrator"),
            Mode::Drained => Some("drained by the administrator"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_outlive_the_daemon_and_a_damaged_file_means_none() {
        let folder = tempfile::tempdir().unwrap();
        let mut orders = Orders::load(folder.path());
        assert!(orders.allow("n1", false));
        orders.mode = Mode::Paused;
        orders.excluded.insert("n1".to_owned(), "fan".to_owned());
        orders.keep().unwrap();
        let orders = Orders::load(folder.path());
        assert!(!orders.allow("n1", true));
        assert!(orders.allow("n2", true) && !orders.allow("n2", false));
        std::fs::write(folder.path().join(FILE), "{\"mode\": 7}").unwrap();
        assert!(Orders::load(folder.path()).allow("n1", false));
    }
}
