//! The environment of ranks, as docs/user.md lists it: `BFT_*` always, torch's
//! names where the agent deals out the ranks.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use bftrainer::wire::Start;

/// Torch's names that a rank of ours may get.
const OF_RANK: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
];

/// Names that must not be inherited when this generation does not set them.
const CLEARED: [&str; 2] = ["BFT_DEADLINE", "BFT_REPORT"];

/// All that the environment of one generation's ranks on one node depends on.
#[derive(Debug)]
pub struct Placement<'a> {
    /// The generation.
    pub start: &'a Start,
    /// The trainer.
    pub trainer_id: u32,
    /// Slurm's name of this node.
    pub node: &'a str,
    /// The specification's fewest nodes.
    pub min_nodes: u32,
    /// The specification's most nodes.
    pub max_nodes: u32,
    /// Seconds from SIGTERM to SIGKILL.
    pub grace_s: f64,
    /// Epoch seconds by which the node is expected back.
    pub deadline_s: Option<i64>,
    /// The control folder.
    pub control_dir: &'a Path,
    /// The folder for checkpoints.
    pub ckpt_dir: &'a Path,
    /// The agent's datagram socket.
    pub report: Option<&'a Path>,
    /// Ranks on each node; `None` when COMMAND deals them out itself.
    pub ranks_per_node: Option<u32>,
    /// COMMAND goes on through changes of membership.
    pub is_live: bool,
}

impl Placement<'_> {
    /// What to set for local rank `local`, in no order.
    pub fn variables(&self, local: u32) -> Vec<(&'static str, OsString)> {
        let start = self.start;
        let nodes = start.members.len();
        let address = |rank: usize| {
            let member = start.members.get(rank);
            OsString::from(member.map_or("", |member| member.address.as_str()))
        };
        let mode = if self.is_live { "live" } else { "restart" };
        let mut all: Vec<(&'static str, OsString)> = vec![
            ("BFT_TRAINER_ID", text(self.trainer_id)),
            ("BFT_NODE", self.node.into()),
            ("BFT_NODE_ADDR", address(start.node_rank as usize)),
            ("BFT_MODE", mode.into()),
            ("BFT_GENERATION", text(start.generation)),
            ("BFT_NUM_NODES", text(nodes)),
            ("BFT_NODE_RANK", text(start.node_rank)),
            ("BFT_MIN_NODES", text(self.min_nodes)),
            ("BFT_MAX_NODES", text(self.max_nodes)),
            ("BFT_HOSTFILE", self.control_dir.join("hostfile").into()),
            ("BFT_CONTROL_DIR", self.control_dir.into()),
            ("BFT_CKPT_DIR", self.ckpt_dir.into()),
            ("BFT_GRACE", text(self.grace_s)),
        ];
        if !self.is_live {
            all.push(("MASTER_ADDR", address(0)));
            all.push(("MASTER_PORT", text(start.master_port)));
        }
        if let Some(socket) = self.report {
            let mut address = OsString::from("unix://");
            address.push(socket);
            all.push(("BFT_REPORT", address));
        }
        if let Some(deadline_s) = self.deadline_s {
            all.push(("BFT_DEADLINE", text(deadline_s)));
        }
        if let Some(ranks) = self.ranks_per_node {
            let ranks = u64::from(ranks);
            all.extend([
                (
                    "RANK",
                    text(u64::from(start.node_rank) * ranks + u64::from(local)),
                ),
                ("WORLD_SIZE", text(nodes as u64 * ranks)),
                ("LOCAL_RANK", text(local)),
                ("LOCAL_WORLD_SIZE", text(ranks)),
                ("GROUP_RANK", text(start.node_rank)),
                ("GROUP_WORLD_SIZE", text(nodes)),
            ]);
        }
        all
    }
}

/// Whether a variable of the agent's own environment must not reach a rank: an
/// older generation's facts, another launcher's, and Slurm's copy of our option,
/// with which a nested sbatch would become a trainer.
pub fn is_cleared(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    OF_RANK.contains(&name) || CLEARED.contains(&name) || is_inherited_option(name)
}

/// Whether this is a variable in which Slurm hands on `--bftrainer`.
pub fn is_inherited_option(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("spank_option") && name.contains("bftrainer")
}

/// The number of GPUs that Slurm gave this task on this node.
pub fn allocated_gpus(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let counted = variable("SLURM_GPUS_ON_NODE").and_then(|text| text.trim().parse().ok());
    let listed = || {
        let list = variable("CUDA_VISIBLE_DEVICES")?;
        let devices = list.split(',').map(str::trim);
        u32::try_from(devices.filter(|device| !device.is_empty()).count()).ok()
    };
    counted.or_else(listed).filter(|gpus| *gpus > 0)
}

fn text(value: impl std::fmt::Display) -> OsString {
    value.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_from_slurm_else_from_cuda() {
        let only = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        assert_eq!(allocated_gpus(only("SLURM_GPUS_ON_NODE", "4")), Some(4));
        assert_eq!(allocated_gpus(only("CUDA_VISIBLE_DEVICES", "0,2")), Some(2));
        assert_eq!(allocated_gpus(only("CUDA_VISIBLE_DEVICES", "")), None);
        assert_eq!(allocated_gpus(only("SLURM_GPUS_ON_NODE", "0")), None);
        assert_eq!(allocated_gpus(|_| None), None);
    }

    #[test]
    fn slurms_copies_of_our_option_are_not_handed_on() {
        for name in [
            "_SLURM_SPANK_OPTION_bftrainer_bftrainer",
            "SPANK__SLURM_SPANK_OPTION_bftrainer_bftrainer",
            "RANK",
            "BFT_DEADLINE",
        ] {
            assert!(is_cleared(OsStr::new(name)), "{name}");
        }
        for name in [
            "PATH",
            "BFT_CONTROLLER",
            "_SLURM_SPANK_OPTION_pyxis_container",
        ] {
            assert!(!is_cleared(OsStr::new(name)), "{name}");
        }
    }
}
