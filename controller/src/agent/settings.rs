//! What the agent goes by besides its identity: where the controller is, who it
//! must be, and a few times.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::times;
use crate::net;
use crate::slurm_conf::{self, SlurmConf};

/// The controller's configuration when BFTRAINER_CONF names no other.
const DEFAULT_CONF: &str = "/etc/bftrainer/bftrainer.toml";

/// How long a task without a controller waits before it requeues itself.
const ORPHAN_WAIT: Duration = Duration::from_secs(60);

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` of the controller, or why it is not known.
    pub controller: Result<String, String>,
    /// The uid that the controller must prove, or why it is not known.
    pub controller_uid: Result<u32, String>,
    /// Munge's socket and the connection's time-outs.
    pub net: net::Settings,
    /// How long an idle task without a controller waits.
    pub orphan_wait: Duration,
}

impl Settings {
    /// From the environment that the plugin set, else the site's files.
    pub fn find() -> Self {
        Settings {
            controller: controller(),
            controller_uid: controller_uid(),
            net: net::Settings::new(slurm_conf::munge_socket()),
            orphan_wait: variable("BFT_ORPHAN_WAIT_S")
                .and_then(|text| text.parse().ok())
                .map_or(ORPHAN_WAIT, times::seconds),
        }
    }
}

fn controller() -> Result<String, String> {
    if let Some(address) = variable("BFT_CONTROLLER") {
        return Ok(address);
    }
    let path = variable("BFTRAINER_CONF").map_or(PathBuf::from(DEFAULT_CONF), PathBuf::from);
    controller_in(&path).ok_or_else(|| {
        format!(
            "the controller's address is not known: BFT_CONTROLLER is not set (the SPANK plugin \
             sets it) and {} has no line controller = \"HOST:PORT\"",
            path.display()
        )
    })
}

fn controller_in(path: &Path) -> Option<String> {
    let table: toml::Table = std::fs::read_to_string(path).ok()?.parse().ok()?;
    Some(table.get("controller")?.as_str()?.to_owned())
}

fn controller_uid() -> Result<u32, String> {
    if let Some(uid) = variable("BFT_CONTROLLER_UID") {
        return uid
            .parse()
            .map_err(|_| format!("BFT_CONTROLLER_UID={uid} is not a uid"));
    }
    let conf = SlurmConf::find();
    conf.slurm_uid().ok_or_else(|| {
        format!(
            "SlurmUser {} is not known on this host",
            conf.slurm_user.as_deref().unwrap_or("root")
        )
    })
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controllers_address_is_read_from_its_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bftrainer.toml");
        std::fs::write(&path, "controller = \"head:7878\"\n[other]\nx = 1\n").unwrap();
        assert_eq!(controller_in(&path), Some("head:7878".into()));
        std::fs::write(&path, "[other]\n").unwrap();
        assert_eq!(controller_in(&path), None);
    }
}
