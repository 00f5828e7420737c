//! Whether our partition takes one-node tasks that have a node for themselves.

use super::Severity::{Error, Note, Warning};
use super::{Findings, Subject};

pub(super) fn check(subject: &Subject<'_>, findings: &mut Findings) {
    nodes(subject, findings);
    sharing(subject, findings);
    limits(subject, findings);
}

fn nodes(subject: &Subject<'_>, findings: &mut Findings) {
    let ours = subject.ours;
    let name = &ours.name;
    if ours.nodes.is_empty() {
        findings.add(
            Error,
            format!("partition {name}: Nodes"),
            "none",
            "there is nothing to train on",
            format!("PartitionName={name} Nodes=ALL"),
        );
    }
    if !ours.is_up {
        findings.add(
            Warning,
            format!("partition {name}: State"),
            "not UP",
            "trainers wait, or can't be submitted",
            format!("scontrol update PartitionName={name} State=UP"),
        );
    }
    if ours.min_nodes > 1 {
        findings.add(
            Error,
            format!("partition {name}: MinNodes"),
            ours.min_nodes.to_string(),
            "a trainer's one-node tasks never start",
            format!("PartitionName={name} ... MinNodes=1"),
        );
    }
    let excluded = &subject.config.exclude_nodes;
    for list in excluded {
        let Some(hosts) = crate::slurm::hosts(list) else {
            findings.add(
                Error,
                "bftrainer.toml: exclude_nodes",
                format!("\"{list}\" is no host list"),
                "nodes that were meant to be left alone would be harvested",
                "exclude_nodes = [...]: host lists, as \"n[1-4,7]\"",
            );
            continue;
        };
        let unknown: Vec<String> = hosts
            .into_iter()
            .filter(|node| !ours.nodes.contains(node))
            .collect();
        if !unknown.is_empty() {
            findings.add(
                Warning,
                "bftrainer.toml: exclude_nodes",
                format!("\"{list}\": not in partition {name}: {}", unknown.join(",")),
                "a node that was meant to be left alone may be written otherwise in Slurm",
                "exclude_nodes = [...]: names as sinfo -N shows them",
            );
        }
    }
}

fn sharing(subject: &Subject<'_>, findings: &mut Findings) {
    let name = &subject.ours.name;
    let item = format!("partition {name}: OverSubscribe");
    let remedy = format!("PartitionName={name} ... OverSubscribe=NO");
    if subject.ours.forces_sharing {
        let means =
            "other jobs would run beside a trainer on its node, although it asks for all of it";
        findings.add(Error, item, "FORCE", means, remedy);
    } else if subject.ours.shares_nodes {
        let means = "plain jobs in this partition may share a node that trainers could have whole";
        findings.add(Warning, item, "YES", means, remedy);
    }
    for other in subject.neighbours().filter(|other| other.forces_sharing) {
        findings.add(
            Warning,
            format!("partition {}: OverSubscribe", other.name),
            "FORCE",
            "how its jobs share nodes with trainers is not tested",
            format!("PartitionName={} ... OverSubscribe=NO", other.name),
        );
    }
}

fn limits(subject: &Subject<'_>, findings: &mut Findings) {
    let ours = subject.ours;
    let name = &ours.name;
    let lease_min = (subject.config.engine.lease_s / 60.0).ceil() as u32;
    if let Some(minutes) = ours.max_time.filter(|minutes| *minutes < lease_min) {
        findings.add(
            Warning,
            format!("partition {name}: MaxTime"),
            format!("{minutes} minutes, less than lease_s ({lease_min} minutes)"),
            "every worker leaves its node that early, and its trainer rescales",
            format!("PartitionName={name} ... MaxTime=UNLIMITED"),
        );
    }
    // Without DefaultTime, MaxTime is what a job gets.
    if let Some(minutes) = ours.default_time.unwrap_or(ours.max_time) {
        let is_short = minutes < lease_min.min(10);
        findings.add(
            if is_short { Warning } else { Note },
            format!("partition {name}: DefaultTime"),
            format!("{minutes} minutes"),
            "a trainer submitted without -t has its workers on one node for that long at most, \
             and rescales when they move",
            format!("PartitionName={name} ... DefaultTime=UNLIMITED MaxTime=UNLIMITED"),
        );
    }
}
