//! What makes a job a trainer: the sbatch options to set, and the options of the
//! user's that would be overridden or would break it, each refused with a
//! sentence. Pure: the options come through a trait, sbatch's own or a test's.

use bftrainer::spec::Spec;

/// Longest job comment that slurmctld takes, in bytes.
const MAX_COMMENT_BYTES: usize = 1024;

/// sbatch's options as far as they are needed here, under their long names.
pub trait Options {
    /// The option's value if the user set it: on the command line, in an
    /// `#SBATCH` line or through an environment variable such as
    /// `SBATCH_PARTITION`.
    fn get(&self, name: &str) -> Option<String>;
}

/// What the cluster decides.
pub struct Site<'a> {
    /// The partition that holds the trainers.
    pub partition: &'a str,
    /// slurm.conf's MaxArraySize, if known.
    pub max_array_size: Option<u32>,
}

/// Options that a trainer can't have, and why.
const REFUSED: [(&str, &str); 6] = [
    ("nodelist", CHOOSES_NODES),
    ("nodefile", CHOOSES_NODES),
    (
        "begin",
        "the controller sets the begin times (--dependency works)",
    ),
    (
        "time-min",
        "the controller sets time limits to fit the idle time of each node",
    ),
    ("container", RUNS_SCRIPT),
    ("container-id", RUNS_SCRIPT),
];

const CHOOSES_NODES: &str = "the controller chooses the nodes (--exclude and --constraint work)";
const RUNS_SCRIPT: &str = "the agent runs the script; start containers inside it";

/// The options to set, in order, or the sentence that refuses the job.
pub fn plan(
    spec: &Spec,
    site: &Site,
    options: &dyn Options,
) -> Result<Vec<(&'static str, String)>, String> {
    check_size(spec, site)?;
    for (name, reason) in REFUSED {
        if options.get(name).is_some() {
            return Err(format!("--{name} can't be used with --bftrainer: {reason}"));
        }
    }
    check_requeue(options)?;
    check_sharing(options)?;
    check_tasks(options)?;

    let comment = spec.to_comment();
    let array = array(spec);
    let same_spec = |text: &str| Spec::from_comment(text) == Some(Ok(spec.clone()));
    agree(options, "array", "SBATCH_ARRAY_INX", &array, |given| {
        given == array
    })?;
    agree(
        options,
        "partition",
        "SBATCH_PARTITION",
        site.partition,
        |given| given == site.partition,
    )?;
    agree(options, "nodes", "", "1", |given| {
        given == "1" || given == "1-1"
    })?;
    agree(options, "comment", "", &comment, same_spec)?;

    let mut settings = vec![
        ("array", array),
        ("hold", String::new()),
        ("comment", comment),
        ("partition", site.partition.to_owned()),
        ("nodes", "1".to_owned()),
        ("exclusive", "exclusive".to_owned()),
        ("requeue", String::new()),
    ];
    if options.get("open-mode").is_none() {
        settings.push(("open-mode", "append".to_owned()));
    }
    Ok(settings)
}

/// The sbatch line that does the same with plain options.
pub fn plain_line(spec: &Spec, partition: &str) -> String {
    format!(
        "sbatch --array={} --hold --comment={} -p {partition} -N1 --exclusive --requeue \
         --open-mode=append SCRIPT",
        array(spec),
        spec.to_comment()
    )
}

fn array(spec: &Spec) -> String {
    format!("0-{}", spec.max_nodes.saturating_sub(1))
}

fn check_size(spec: &Spec, site: &Site) -> Result<(), String> {
    if let Some(most) = site.max_array_size.filter(|most| spec.max_nodes > *most) {
        return Err(format!(
            "--bftrainer: nodes={}-{}: this cluster's MaxArraySize allows at most {most} nodes",
            spec.min_nodes, spec.max_nodes
        ));
    }
    let bytes = spec.to_comment().len();
    if bytes > MAX_COMMENT_BYTES {
        return Err(format!(
            "--bftrainer: the specification takes {bytes} bytes in the job's comment, where \
             Slurm allows {MAX_COMMENT_BYTES}: give fewer points or digits in curve="
        ));
    }
    Ok(())
}

/// `--no-requeue` and `--requeue` share one value: the last one counts.
fn check_requeue(options: &dyn Options) -> Result<(), String> {
    if options.get("no-requeue").as_deref() == Some("no-requeue") {
        return Err(format!(
            "--no-requeue{} can't be used with --bftrainer: a task that gives its node back is \
             requeued",
            from_environment("SBATCH_NO_REQUEUE")
        ));
    }
    Ok(())
}

/// `--exclusive` and `--oversubscribe` share one value: the last one counts.
fn check_sharing(options: &dyn Options) -> Result<(), String> {
    for name in ["exclusive", "oversubscribe"] {
        if let Some(value) = options.get(name).filter(|value| value != "exclusive") {
            return Err(format!(
                "--{name} ({value}){} can't be used with --bftrainer: each task has its node \
                 for itself",
                from_environment("SBATCH_EXCLUSIVE")
            ));
        }
    }
    Ok(())
}

/// `-n` alone may spread over nodes; with `-N1` or per node its meaning is clear.
fn check_tasks(options: &dyn Options) -> Result<(), String> {
    let Some(tasks) = options.get("ntasks").filter(|tasks| tasks != "1") else {
        return Ok(());
    };
    if options.get("nodes").is_some() || options.get("ntasks-per-node").is_some() {
        return Ok(());
    }
    Err(format!(
        "--ntasks={tasks} without -N1 can't be used with --bftrainer: if {tasks} tasks on each \
         node are meant, write --ntasks-per-node={tasks}"
    ))
}

/// Refuses a user's value of an option that tagging sets to `ours`.
fn agree(
    options: &dyn Options,
    name: &str,
    variable: &str,
    ours: &str,
    agrees: impl FnOnce(&str) -> bool,
) -> Result<(), String> {
    match options.get(name) {
        Some(given) if !agrees(&given) => Err(format!(
            "--{name}={}{} can't be used with --bftrainer, which sets --{name}={ours}: leave it \
             out",
            given.escape_debug(),
            from_environment(variable)
        )),
        _ => Ok(()),
    }
}

/// Where a value came from, when the user may not know that it was set.
fn from_environment(variable: &str) -> String {
    if !variable.is_empty() && std::env::var_os(variable).is_some() {
        format!(" (see the environment variable {variable})")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Fake(BTreeMap<&'static str, String>);

    impl Options for Fake {
        fn get(&self, name: &str) -> Option<String> {
            self.0.get(name).cloned()
        }
    }

    const SITE: Site = Site {
        partition: "bftrainer",
        max_array_size: Some(1001),
    };

    fn plan_with(
        spec: &str,
        given: &[(&'static str, &str)],
    ) -> Result<Vec<(&'static str, String)>, String> {
        let given = given
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        plan(&spec.parse().unwrap(), &SITE, &Fake(given.collect()))
    }

    #[test]
    fn a_bare_specification_becomes_a_held_array() {
        let settings = plan_with("nodes=2-16,samples=90000", &[]).unwrap();
        let shown: Vec<String> = settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            shown,
            [
                "array=0-15",
                "hold=",
                "comment=bftrainer:nodes=2-16,samples=90000",
                "partition=bftrainer",
                "nodes=1",
                "exclusive=exclusive",
                "requeue=",
                "open-mode=append",
            ]
        );
    }

    #[test]
    fn what_the_user_wrote_and_agrees_is_accepted() {
        let agreeing = [
            ("array", "0-15"),
            ("partition", "bftrainer"),
            ("nodes", "1"),
            ("comment", "bftrainer:nodes=16"),
            ("hold", "set"),
            ("requeue", "requeue"),
            ("no-requeue", "requeue"),
            ("exclusive", "exclusive"),
            ("ntasks", "8"),
            ("time", "01:00:00"),
            ("dependency", "afterok:1"),
        ];
        assert!(plan_with("nodes=1-16", &agreeing).is_ok());
    }

    #[test]
    fn each_conflict_is_refused_by_its_name() {
        for (name, value) in [
            ("array", "0-15%4"),
            ("array", "1-16"),
            ("partition", "batch"),
            ("partition", "batch,bftrainer"),
            ("nodes", "2"),
            ("nodes", "1-4"),
            ("comment", "my run"),
            ("comment", "bftrainer:nodes=1-8"),
            ("no-requeue", "no-requeue"),
            ("exclusive", "user"),
            ("oversubscribe", "oversubscribe"),
            ("nodelist", "n1"),
            ("nodefile", "hosts"),
            ("begin", "2026-01-01T00:00:00"),
            ("time-min", "00:05:00"),
            ("container", "/images/a"),
            ("ntasks", "8"),
        ] {
            let refusal = plan_with("nodes=1-16", &[(name, value)]).unwrap_err();
            assert!(refusal.contains(&format!("--{name}")), "{name}: {refusal}");
            assert!(!refusal.contains('\n'));
        }
    }

    #[test]
    fn tasks_per_node_say_what_ntasks_leaves_open() {
        assert!(plan_with("nodes=4", &[("ntasks", "1")]).is_ok());
        assert!(plan_with("nodes=4", &[("ntasks", "8"), ("nodes", "1")]).is_ok());
        assert!(plan_with("nodes=4", &[("ntasks-per-node", "8")]).is_ok());
        assert!(plan_with("nodes=4", &[("ntasks", "8"), ("ntasks-per-node", "8")]).is_ok());
    }

    #[test]
    fn a_users_open_mode_is_kept() {
        let settings = plan_with("nodes=4", &[("open-mode", "t")]).unwrap();
        assert!(settings.iter().all(|(name, _)| *name != "open-mode"));
    }

    #[test]
    fn an_array_beyond_the_clusters_size_is_refused() {
        assert!(plan_with("nodes=1-1001", &[]).is_ok());
        let refusal = plan_with("nodes=1-1002", &[]).unwrap_err();
        assert!(refusal.contains("at most 1001 nodes"), "{refusal}");
    }

    #[test]
    fn a_comment_that_slurmctld_would_refuse_is_refused_here() {
        let points: Vec<String> = (1..=64)
            .map(|nodes| format!("{nodes}:{nodes}23456.78901234567"))
            .collect();
        let refusal = plan_with(&format!("nodes=64,curve={}", points.join("/")), &[]).unwrap_err();
        assert!(refusal.contains("1024"), "{refusal}");
    }

    #[test]
    fn the_plain_line_does_the_same() {
        assert_eq!(
            plain_line(&"nodes=1-16".parse().unwrap(), "bftrainer"),
            "sbatch --array=0-15 --hold --comment=bftrainer:nodes=1-16 -p bftrainer -N1 \
             --exclusive --requeue --open-mode=append SCRIPT"
        );
    }
}
