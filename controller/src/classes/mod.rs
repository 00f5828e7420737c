//! Which nodes are alike, and on which of them a trainer's tasks can run: what a node has against
//! what a task asks for, as slurmctld would say. Pure: the records come from `slurm`.

mod constraint;
mod gres;

use std::collections::BTreeSet;

use constraint::Constraint;
use gres::Gres;

/// What a node has that tasks may ask for. Nodes that have the same are of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTraits {
    /// Active features.
    pub features: BTreeSet<String>,
    /// Generic resources.
    pub gres: Gres,
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mb: u64,
    /// Temporary disk space, MiB.
    pub tmp_disk_mb: u32,
}

/// What one task asks of its node, as it stands in its job record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRequest {
    /// `--constraint`; empty for none.
    pub constraint: String,
    /// Lists of TRES that the one node must have.
    pub tres: Vec<String>,
    /// A list of TRES that each of `tasks` needs.
    pub tres_per_task: String,
    /// Slurm tasks (`--ntasks`) on the node.
    pub tasks: u32,
    /// CPUs that each of them needs.
    pub cpus_per_task: u32,
    /// Fewest CPUs of the node (`--mincpus`).
    pub min_cpus: u32,
    /// Memory in all.
    pub memory: Memory,
    /// Temporary disk space, MiB.
    pub tmp_disk_mb: u32,
    /// Nodes that it may not run on.
    pub excluded: Vec<String>,
}

/// Memory that is asked for, MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In all.
    Node(u64),
    /// For each CPU that is asked for.
    Cpu(u64),
}

/// A [`NodeRequest`] that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    constraint: Option<Constraint>,
    gres: Gres,
    cpus: u32,
    memory_mb: u64,
    tmp_disk_mb: u32,
}

impl Default for Memory {
    fn default() -> Self {
        Self::Node(0)
    }
}

impl NodeTraits {
    /// From Slurm's lists of features and generic resources.
    pub fn new(features: &str, gres: &str, cpus: u32, memory_mb: u64, tmp_disk_mb: u32) -> Self {
        let features = features.split(',').map(str::trim);
        let features = features.filter(|feature| !matches!(*feature, "" | "(null)"));
        Self {
            features: features.map(str::to_owned).collect(),
            gres: Gres::parse(gres),
            cpus,
            memory_mb,
            tmp_disk_mb,
        }
    }

    /// What to call nodes like this, shorter names first: their features, else their generic
    /// resources; more of what they have where that would not tell them apart.
    pub fn names(&self) -> [String; 3] {
        let features: Vec<&str> = self.features.iter().map(String::as_str).collect();
        let gres = self.gres.to_string();
        let parts = [features.join(","), gres];
        let given: Vec<&str> = parts.iter().map(String::as_str).collect();
        let given: Vec<&str> = given.into_iter().filter(|part| !part.is_empty()).collect();
        let size = format!(
            "{}cpus,{}M,{}M-tmp",
            self.cpus, self.memory_mb, self.tmp_disk_mb
        );
        let shortest = given.first().copied().unwrap_or("plain").to_owned();
        let both = match given.is_empty() {
            true => shortest.clone(),
            false => given.join(","),
        };
        let all = format!("{both},{size}");
        [shortest, both, all]
    }
}

impl Requirement {
    /// Understands what is asked for.
    ///
    /// # Errors
    /// A sentence about a constraint that is about several nodes or makes no sense.
    pub fn new(request: &NodeRequest) -> Result<Self, String> {
        let constraint = match &request.constraint[..] {
            "" => None,
            constraint => Some(Constraint::parse(constraint)?),
        };
        let tasks = request.tasks.max(1);
        let per_task = Gres::parse(&request.tres_per_task).times(u64::from(tasks));
        let cpus = tasks.saturating_mul(request.cpus_per_task);
        let cpus = cpus.max(request.min_cpus).max(1);
        Ok(Self {
            constraint,
            gres: request
                .tres
                .iter()
                .map(|list| Gres::parse(list))
                .fold(per_task, Gres::larger),
            cpus,
            memory_mb: match request.memory {
                Memory::Node(memory_mb) => memory_mb,
                Memory::Cpu(memory_mb) => memory_mb.saturating_mul(u64::from(cpus)),
            },
            tmp_disk_mb: request.tmp_disk_mb,
        })
    }

    /// Whether every node will do.
    pub fn is_none(&self) -> bool {
        self.constraint.is_none()
            && self.gres == Gres::default()
            && self.cpus <= 1
            && self.memory_mb == 0
            && self.tmp_disk_mb == 0
    }

    /// Whether a task can run on nodes like this.
    pub fn allows(&self, node: &NodeTraits) -> bool {
        let constraint = self.constraint.as_ref();
        constraint.is_none_or(|constraint| constraint.allows(&node.features))
            && node.gres.covers(&self.gres)
            && node.cpus >= self.cpus
            && node.memory_mb >= self.memory_mb
            && node.tmp_disk_mb >= self.tmp_disk_mb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeTraits {
        NodeTraits::new("h100,nvlink", "gpu:h100:4(S:0-1)", 64, 256_000, 1000)
    }

    fn allows(request: NodeRequest) -> bool {
        let requirement = Requirement::new(&request).unwrap();
        assert!(!requirement.is_none());
        requirement.allows(&node())
    }

    #[test]
    fn who_asks_for_nothing_may_use_every_node() {
        let request = NodeRequest {
            tasks: 1,
            cpus_per_task: 1,
            min_cpus: 1,
            ..NodeRequest::default()
        };
        let requirement = Requirement::new(&request).unwrap();
        assert!(requirement.is_none());
        assert!(requirement.allows(&NodeTraits::new("", "(null)", 1, 1, 0)));
    }

    #[test]
    fn features_must_be_active() {
        let constraint = |constraint: &str| {
            allows(NodeRequest {
                constraint: constraint.to_owned(),
                ..NodeRequest::default()
            })
        };
        assert!(constraint("h100"));
        assert!(constraint("a100|h100&nvlink"));
        assert!(!constraint("a100"));
    }

    #[test]
    fn generic_resources_count_for_the_node_or_for_each_of_its_tasks() {
        let tres = |per_node: &str, per_task: &str, tasks| {
            allows(NodeRequest {
                tres: vec![per_node.to_owned(), String::new()],
                tres_per_task: per_task.to_owned(),
                tasks,
                ..NodeRequest::default()
            })
        };
        assert!(tres("gres:gpu:4", "", 1));
        assert!(!tres("gres:gpu:5", "", 1));
        assert!(!tres("gres:gpu:a100:1", "", 1));
        assert!(tres("", "gres:gpu:1", 4));
        assert!(!tres("", "gres:gpu:1", 5));
        assert!(tres("gres:gpu:h100:4", "gres:gpu:1", 4));
    }

    #[test]
    fn cpus_memory_and_disk_must_be_there() {
        let cpus = |tasks, cpus_per_task, min_cpus| {
            allows(NodeRequest {
                tasks,
                cpus_per_task,
                min_cpus,
                ..NodeRequest::default()
            })
        };
        assert!(cpus(2, 32, 0));
        assert!(!cpus(3, 32, 0));
        assert!(!cpus(1, 1, 65));
        let memory = |memory, tmp_disk_mb| {
            allows(NodeRequest {
                tasks: 32,
                cpus_per_task: 2,
                memory,
                tmp_disk_mb,
                ..NodeRequest::default()
            })
        };
        assert!(memory(Memory::Node(256_000), 1000));
        assert!(!memory(Memory::Node(256_001), 0));
        assert!(!memory(Memory::Node(0), 1001));
        assert!(memory(Memory::Cpu(4000), 0));
        assert!(!memory(Memory::Cpu(4001), 0));
    }

    #[test]
    fn classes_have_names_that_people_know() {
        assert_eq!(
            node().names(),
            [
                "h100,nvlink",
                "h100,nvlink,gpu:h100:4",
                "h100,nvlink,gpu:h100:4,64cpus,256000M,1000M-tmp"
            ]
        );
        assert_eq!(NodeTraits::new("", "gpu:2", 8, 9, 0).names()[0], "gpu:2");
        assert_eq!(NodeTraits::new("", "", 8, 9, 0).names()[0], "plain");
    }
}
