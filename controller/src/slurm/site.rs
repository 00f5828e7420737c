//! The site's configuration as slurmctld has it in force: what `bftrainer check`
//! judges. Loaded at the start and on demand, never in the loop.

use std::path::PathBuf;
use std::ptr;

use bftrainer::sys;

use super::{Slurm, SlurmError, check, records, text};

/// A whole time limit in minutes; `None` is unlimited.
pub type Minutes = Option<u32>;

/// What matters of slurm.conf.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteConf {
    /// Path of slurm.conf.
    pub slurm_conf: PathBuf,
    /// slurmctld's version, as "22.05.8".
    pub version: String,
    /// SlurmUser.
    pub slurm_user: String,
    /// SlurmUser's uid.
    pub slurm_user_uid: u32,
    /// PreemptType.
    pub preempt_type: String,
    /// PreemptMode, slurm.h's PREEMPT_MODE_ bits.
    pub preempt_mode: u32,
    /// PreemptExemptTime, seconds; 0 when unset.
    pub preempt_exempt_s: u32,
    /// KillWait, seconds.
    pub kill_wait_s: u32,
    /// Whether PrologFlags has Alloc.
    pub prolog_at_allocation: bool,
    /// MaxArraySize.
    pub max_array_size: u32,
    /// MaxJobCount.
    pub max_job_count: u32,
    /// MinJobAge, seconds.
    pub min_job_age_s: u32,
    /// JobRequeue.
    pub job_requeue: bool,
    /// PriorityType.
    pub priority_type: String,
    /// PriorityWeightFairshare.
    pub fair_share_weight: u32,
    /// AccountingStorageType.
    pub accounting_type: String,
    /// AccountingStorageEnforce, bits (see [`ENFORCE_LIMITS`]).
    pub accounting_enforce: u32,
    /// SchedulerType.
    pub scheduler_type: String,
    /// SchedulerParameters.
    pub scheduler_parameters: String,
    /// SelectType.
    pub select_type: String,
    /// Whether there is a SuspendProgram.
    pub can_suspend: bool,
    /// Whether nodes are powered down when idle for SuspendTime.
    pub suspends: bool,
    /// SuspendExcParts.
    pub suspend_except: Vec<String>,
    /// The file that lists SPANK plugins.
    pub plugstack: PathBuf,
    /// PluginDir.
    pub plugin_dirs: Vec<PathBuf>,
}

/// The bit of "limits" in AccountingStorageEnforce (Slurm's
/// src/interfaces/accounting_storage.h, ACCOUNTING_ENFORCE_LIMITS).
pub const ENFORCE_LIMITS: u32 = 0x2;

/// A partition.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionRecord {
    /// Its name.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// PriorityTier.
    pub priority_tier: u32,
    /// PreemptMode; `None` when the cluster's holds.
    pub preempt_mode: Option<u32>,
    /// GraceTime, seconds.
    pub grace_s: u32,
    /// OverSubscribe=YES or FORCE.
    pub shares_nodes: bool,
    /// OverSubscribe=FORCE: jobs can't have a node for themselves.
    pub forces_sharing: bool,
    /// DefaultTime; `None` when there is none.
    pub default_time: Option<Minutes>,
    /// MaxTime.
    pub max_time: Minutes,
    /// MinNodes.
    pub min_nodes: u32,
    /// Its QOS; empty when it has none.
    pub qos: String,
    /// Whether it has a SuspendTime of its own, after which its nodes are powered down.
    pub suspends: bool,
    /// State=UP.
    pub is_up: bool,
}

/// slurmctld's view of the site.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// slurm.conf.
    pub conf: SiteConf,
    /// All partitions.
    pub partitions: Vec<PartitionRecord>,
    /// All nodes: name and address.
    pub nodes: Vec<(String, String)>,
    /// slurmctld's clock when it answered, epoch seconds.
    pub slurmctld_time_s: i64,
}

impl Slurm {
    /// Asks slurmctld for all that can be checked.
    pub fn site(&mut self) -> Result<Site, SlurmError> {
        let conf = self.site_conf()?;
        let (partitions, slurmctld_time_s) = self.partitions()?;
        self.forget();
        let nodes = self.load_nodes()?.unwrap_or_default();
        self.forget();
        Ok(Site {
            conf,
            partitions,
            nodes: nodes.into_iter().map(|n| (n.name, n.address)).collect(),
            slurmctld_time_s,
        })
    }

    fn site_conf(&self) -> Result<SiteConf, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        check(unsafe { sys::slurm_load_ctl_conf(0, &mut message) })?;
        // SAFETY: the call succeeded, so `message` points to a valid record.
        let site = conf_record(unsafe { &*message });
        // SAFETY: `message` came from slurm_load_ctl_conf.
        unsafe { sys::slurm_free_ctl_conf(message) };
        Ok(site)
    }

    /// All partitions, and slurmctld's clock, which it puts into the answer.
    fn partitions(&self) -> Result<(Vec<PartitionRecord>, i64), SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        check(unsafe { sys::slurm_load_partitions(0, &mut message, sys::BFT_SHOW_ALL) })?;
        // SAFETY: the call succeeded, so the array holds record_count records.
        let loaded = unsafe {
            let found = records((*message).partition_array, (*message).record_count);
            (
                found.iter().map(partition_record).collect(),
                (*message).last_update,
            )
        };
        // SAFETY: `message` came from slurm_load_partitions.
        unsafe { sys::slurm_free_partition_info_msg(message) };
        Ok(loaded)
    }
}

fn conf_record(conf: &sys::slurm_conf_t) -> SiteConf {
    let words = |list: String| {
        let words = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    SiteConf {
        slurm_conf: text::owned(conf.slurm_conf).into(),
        version: text::owned(conf.version),
        slurm_user: text::owned(conf.slurm_user_name),
        slurm_user_uid: conf.slurm_user_id,
        preempt_type: text::owned(conf.preempt_type),
        preempt_mode: u32::from(conf.preempt_mode),
        preempt_exempt_s: match conf.preempt_exempt_time {
            sys::INFINITE | sys::NO_VAL => 0,
            seconds => seconds,
        },
        kill_wait_s: u32::from(conf.kill_wait),
        prolog_at_allocation: u32::from(conf.prolog_flags) & sys::PROLOG_FLAG_ALLOC != 0,
        max_array_size: conf.max_array_sz,
        max_job_count: conf.max_job_cnt,
        min_job_age_s: conf.min_job_age,
        job_requeue: conf.job_requeue != 0,
        priority_type: text::owned(conf.priority_type),
        fair_share_weight: conf.priority_weight_fs,
        accounting_type: text::owned(conf.accounting_storage_type),
        accounting_enforce: u32::from(conf.accounting_storage_enforce),
        scheduler_type: text::owned(conf.schedtype),
        scheduler_parameters: text::owned(conf.sched_params),
        select_type: text::owned(conf.select_type),
        can_suspend: !conf.suspend_program.is_null(),
        suspends: is_suspend_time(conf.suspend_time),
        suspend_except: words(text::owned(conf.suspend_exc_parts)),
        plugstack: plugstack(
            &text::owned(conf.plugstack),
            std::env::var_os("SLURM_CONF")
                .map_or_else(|| text::owned(conf.slurm_conf).into(), PathBuf::from),
        ),
        plugin_dirs: std::env::split_paths(&text::owned(conf.plugindir)).collect(),
    }
}

/// Unless PlugStackConfig names it, it is beside slurm.conf (slurm.conf(5)).
fn plugstack(configured: &str, slurm_conf: PathBuf) -> PathBuf {
    if configured.is_empty() {
        slurm_conf.with_file_name("plugstack.conf")
    } else {
        configured.into()
    }
}

/// Whether idle nodes are powered down after so many seconds (slurm.conf(5), SuspendTime).
fn is_suspend_time(time_s: u32) -> bool {
    !matches!(time_s, sys::INFINITE | sys::NO_VAL | 0)
}

fn partition_record(partition: &sys::partition_info_t) -> PartitionRecord {
    let limit = |minutes: u32| (minutes != sys::INFINITE).then_some(minutes);
    let preempt_mode = u32::from(partition.preempt_mode);
    let up = sys::BFT_PARTITION_UP;
    PartitionRecord {
        name: text::owned(partition.name),
        nodes: text::hosts(&text::owned(partition.nodes)),
        priority_tier: u32::from(partition.priority_tier),
        preempt_mode: (preempt_mode != sys::NO_VAL16).then_some(preempt_mode),
        grace_s: if partition.grace_time == sys::NO_VAL {
            0
        } else {
            partition.grace_time
        },
        // 0 is EXCLUSIVE, 1 NO; beyond are YES and FORCE (partition_info_t).
        shares_nodes: partition.max_share & !sys::BFT_SHARED_FORCE > 1,
        forces_sharing: partition.max_share & sys::BFT_SHARED_FORCE != 0,
        default_time: (partition.default_time != sys::NO_VAL)
            .then(|| limit(partition.default_time)),
        max_time: limit(partition.max_time),
        min_nodes: partition.min_nodes,
        qos: text::owned(partition.qos_char),
        suspends: is_suspend_time(partition.suspend_time),
        is_up: partition.state_up & up == up,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn plugins_are_listed_beside_slurm_conf_unless_another_file_is_named() {
        let beside = |configured| super::plugstack(configured, "/etc/slurm/slurm.conf".into());
        assert_eq!(beside(""), *"/etc/slurm/plugstack.conf");
        assert_eq!(beside("/opt/plugins.conf"), *"/opt/plugins.conf");
    }
}
