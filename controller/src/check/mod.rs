//! `bftrainer check`, and bftrainerd's check at its start: whether the
//! configuration and the live site let trainers run at no cost to other jobs.
//! Looks and says; changes nothing.

mod accounting;
mod host;
mod partition;
mod plugin;
mod plugstack;
mod preemption;
mod scheduling;
mod sizes;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Config;
use crate::service;
use crate::slurm::{PartitionRecord, Site, Slurm, SlurmError};

/// Between two attempts to check the site at the daemon's start.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Trainers can't run, or would cost other jobs something: bftrainerd does not start.
    Error,
    /// Something works worse than it could, or can't be judged.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What it is about: a setting, a partition, a file.
    pub item: String,
    /// How it is.
    pub finding: String,
    /// What that means for users.
    pub means: String,
    /// The line to write, or what to do; empty where there is nothing to do.
    pub remedy: String,
    /// Whether it may be otherwise in a moment, though nobody mends it.
    pub may_pass: bool,
}

impl Finding {
    /// As an object whose keys are the column names.
    pub fn row(&self) -> Value {
        json!({
            "severity": self.severity.word(),
            "item": self.item,
            "finding": self.finding,
            "means": self.means,
            "remedy": self.remedy,
        })
    }

    /// As one sentence.
    pub fn sentence(&self) -> String {
        let remedy = match self.remedy.as_str() {
            "" => String::new(),
            remedy => format!("; {remedy}"),
        };
        format!("{}: {}: {}{remedy}", self.item, self.finding, self.means)
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        severity: Severity,
        item: impl Into<String>,
        finding: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding {
            severity,
            item: item.into(),
            finding: finding.into(),
            means: means.into(),
            remedy: remedy.into(),
            may_pass: false,
        });
    }

    /// Says of the last finding whether it may pass by itself.
    fn last_may_pass(&mut self, may_pass: bool) {
        if let Some(last) = self.0.last_mut() {
            last.may_pass = may_pass;
        }
    }

    /// The worst first, else in the order in which they were found.
    fn into_sorted(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.severity);
        self.0
    }
}

/// The site beside the configuration that is to be used on it.
pub(crate) struct Subject<'a> {
    pub config: &'a Config,
    pub site: &'a Site,
    /// Our partition.
    pub ours: &'a PartitionRecord,
}

impl Subject<'_> {
    /// The other partitions that have nodes of ours.
    pub fn neighbours(&self) -> impl Iterator<Item = &PartitionRecord> {
        self.site.partitions.iter().filter(|partition| {
            partition.name != self.ours.name
                && partition.nodes.iter().any(|n| self.ours.nodes.contains(n))
        })
    }
}

/// Checks this host and the live site; the worst findings come first.
///
/// # Errors
/// slurmctld does not answer: what it would have told is not known.
pub fn check(config: &Config) -> Result<Vec<Finding>, SlurmError> {
    let site = Slurm::new().site()?;
    let mut findings = Findings::default();
    judge_site(config, &site, &mut findings);
    plugin::check(config, &site, &mut findings);
    host::check(config, &site, &mut findings);
    Ok(findings.into_sorted())
}

/// Judges what slurmctld says: pure.
fn judge_site(config: &Config, site: &Site, findings: &mut Findings) {
    let ours = site.partitions.iter().find(|p| p.name == config.partition);
    let Some(ours) = ours else {
        let known: Vec<&str> = site.partitions.iter().map(|p| p.name.as_str()).collect();
        findings.add(
            Severity::Error,
            format!("partition {}", config.partition),
            format!("Slurm has none of this name, but {}", known.join(", ")),
            "no trainer can be submitted",
            format!(
                "add it to slurm.conf: PartitionName={} Nodes=ALL PriorityTier=1 \
                 PreemptMode=REQUEUE GraceTime=0 OverSubscribe=NO MaxTime=UNLIMITED State=UP; \
                 or correct `partition` in bftrainer.toml",
                config.partition
            ),
        );
        return;
    };
    let subject = Subject { config, site, ours };
    preemption::check(&subject, findings);
    partition::check(&subject, findings);
    sizes::check(&subject, findings);
    scheduling::check(&subject, findings);
    accounting::check(&subject, findings);
}

/// A finding that slurmctld does not answer.
pub fn unanswered(error: &SlurmError) -> Finding {
    Finding {
        severity: Severity::Error,
        item: "slurmctld".to_owned(),
        finding: format!("does not answer: {error}"),
        means: "nothing of the site can be checked; bftrainerd waits for it".to_owned(),
        remedy: "start slurmctld, or set SLURM_CONF to the file that names it".to_owned(),
        may_pass: true,
    }
}

/// libslurm ends the process when it finds no slurm.conf: say so before.
pub fn missing_slurm_conf() -> Option<Finding> {
    let path = std::env::var_os("SLURM_CONF")?;
    let error = std::fs::File::open(Path::new(&path)).err()?;
    Some(Finding {
        severity: Severity::Error,
        item: "SLURM_CONF".to_owned(),
        finding: format!("{}: {error}", Path::new(&path).display()),
        means: "no command of Slurm or ours works here".to_owned(),
        remedy: "set SLURM_CONF to the site's slurm.conf, or unset it".to_owned(),
        may_pass: false,
    })
}

/// The error to wait for: it may pass by itself, as all other errors may.
fn passing(findings: &[Finding]) -> Option<&Finding> {
    let mut errors = findings.iter().filter(|f| f.severity == Severity::Error);
    let first = errors.next()?;
    (first.may_pass && errors.all(|f| f.may_pass)).then_some(first)
}

/// Checks at the daemon's start, once slurmctld and the resolver answer, for which it waits.
/// Warnings and errors go to the log; false when there are errors.
pub fn passes_at_start(config: &Config) -> bool {
    let mut pause = Duration::from_secs(1);
    let findings = loop {
        let (problem, status) = match check(config) {
            Ok(findings) => match passing(&findings) {
                Some(finding) => (finding.sentence(), "waiting for the resolver"),
                None => break findings,
            },
            Err(error) => (
                format!("slurmctld can't be asked: {error}"),
                "waiting for slurmctld",
            ),
        };
        log::warn!("{problem}; asked again in {pause:?}");
        service::waiting(status);
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    for finding in &findings {
        match finding.severity {
            Severity::Error => log::error!("{}", finding.sentence()),
            Severity::Warning => log::warn!("{}", finding.sentence()),
            Severity::Note => log::debug!("{}", finding.sentence()),
        }
    }
    !findings.iter().any(|f| f.severity == Severity::Error)
}

#[cfg(test)]
mod tests;
