//! Slurm through libslurm: the only place that calls it. One [`Slurm`] lives in
//! one thread, because its calls block up to Slurm's MessageTimeout.

mod job;
mod node;
mod site;
mod text;
mod update;

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr;

use bftrainer::sys;
use thiserror::Error;

pub use job::{BaseState, JobComments, JobRecord, JobSelection};
pub use node::{NodeBase, NodeRecord, ReservationRecord};
pub use site::{ENFORCE_LIMITS, Minutes, PartitionRecord, Site, SiteConf};
pub use update::{TaskName, TaskUpdate};

/// What went wrong in a call to slurmctld.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SlurmError {
    /// slurmctld answered with an error.
    #[error("Slurm error {code}: {text}")]
    Refused {
        /// Slurm's error number.
        code: u32,
        /// Slurm's text for it.
        text: String,
    },
    /// A text that can't be handed to Slurm.
    #[error("\"{0}\" holds a zero byte")]
    ZeroByte(String),
    /// A name that Slurm's configuration does not have.
    #[error("{0}")]
    NotFound(String),
}

impl SlurmError {
    /// Whether the job is to blame, which has ended, is ending or may not be
    /// changed, and not the node that was asked for.
    pub fn is_of_the_job(&self) -> bool {
        const CODES: [u32; 5] = [
            sys::ESLURM_ACCESS_DENIED,
            sys::ESLURM_ALREADY_DONE,
            sys::ESLURM_INVALID_JOB_ID,
            sys::ESLURM_JOB_FINISHED,
            sys::ESLURM_TRANSITION_STATE_NO_UPDATE,
        ];
        matches!(self, SlurmError::Refused { code, .. } if CODES.contains(code))
    }
}

/// Settings of the site's Slurm that matter to us.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmSettings {
    /// slurmctld's clock when it answered, epoch seconds.
    pub slurmctld_time_s: i64,
    /// SlurmUser's uid.
    pub slurm_user_uid: u32,
    /// KillWait, seconds.
    pub kill_wait_s: u16,
    /// bf_interval of SchedulerParameters, seconds.
    pub backfill_interval_s: u32,
    /// bf_resolution of SchedulerParameters, seconds.
    pub backfill_resolution_s: u32,
    /// Whether users see only their own jobs (PrivateData=jobs).
    pub private_jobs: bool,
    /// Whether users see no nodes (PrivateData=nodes).
    pub private_nodes: bool,
    /// slurmctld's version.
    pub version: String,
    /// Whether users see only their own usage (PrivateData=usage).
    pub private_usage: bool,
}

/// A connection to the site's Slurm. Answers that have not changed since the
/// last call are not sent again.
pub struct Slurm {
    nodes_as_of: i64,
    jobs_as_of: i64,
    /// libslurm keeps state per thread.
    not_send: PhantomData<*const ()>,
}

impl Default for Slurm {
    fn default() -> Self {
        Self::new()
    }
}

impl Slurm {
    /// Reads slurm.conf.
    pub fn new() -> Self {
        if std::env::var_os("SLURM_BITSTR_LEN").is_none() {
            // SAFETY: called before any other thread of this process reads or
            // writes the environment. Uncut array_task_str needs it.
            unsafe { std::env::set_var("SLURM_BITSTR_LEN", "0") };
        }
        // SAFETY: a null pointer asks for the default slurm.conf (slurm_init(3)).
        unsafe { sys::slurm_init(ptr::null()) };
        Slurm {
            nodes_as_of: 0,
            jobs_as_of: 0,
            not_send: PhantomData,
        }
    }

    /// Makes the next queries return everything.
    pub fn forget(&mut self) {
        self.nodes_as_of = 0;
        self.jobs_as_of = 0;
    }

    /// Asks slurmctld for its settings.
    pub fn settings(&self) -> Result<SlurmSettings, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        check(unsafe { sys::slurm_load_ctl_conf(0, &mut message) })?;
        // SAFETY: the call succeeded, so `message` points to a valid record.
        let conf = unsafe { &*message };
        let parameters = text::owned(conf.sched_params);
        let number = |name| text::option_value(&parameters, name).and_then(|v| v.parse().ok());
        let settings = SlurmSettings {
            slurmctld_time_s: conf.last_update,
            slurm_user_uid: conf.slurm_user_id,
            kill_wait_s: conf.kill_wait,
            backfill_interval_s: number("bf_interval").unwrap_or(30),
            backfill_resolution_s: number("bf_resolution").unwrap_or(60),
            private_jobs: u32::from(conf.private_data) & sys::BFT_PRIVATE_DATA_JOBS != 0,
            private_nodes: u32::from(conf.private_data) & sys::BFT_PRIVATE_DATA_NODES != 0,
            version: text::owned(conf.version),
            private_usage: u32::from(conf.private_data) & sys::BFT_PRIVATE_DATA_USAGE != 0,
        };
        // SAFETY: `message` came from slurm_load_ctl_conf.
        unsafe { sys::slurm_free_ctl_conf(message) };
        Ok(settings)
    }

    /// The node names of partition `name`, if there is such a one, and slurmctld's clock when it
    /// answered, epoch seconds.
    pub fn partition_nodes(&self, name: &str) -> Result<(Option<Vec<String>>, i64), SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        check(unsafe { sys::slurm_load_partitions(0, &mut message, sys::BFT_SHOW_ALL) })?;
        // SAFETY: the call succeeded, so the array holds record_count records.
        let (partitions, time_s) = unsafe {
            let found = records((*message).partition_array, (*message).record_count);
            (found, (*message).last_update)
        };
        let nodes = partitions
            .iter()
            .find(|partition| text::owned(partition.name) == name)
            .map(|partition| text::hosts(&text::owned(partition.nodes)));
        // SAFETY: `message` came from slurm_load_partitions.
        unsafe { sys::slurm_free_partition_info_msg(message) };
        Ok((nodes, time_s))
    }
}

/// Whether a job that waits for this reason waits for something of its own (a limit of its
/// user, account, QOS or partition, a dependency, licences), whatever the nodes do.
pub fn is_own_reason(reason: u32) -> bool {
    const OWN: [(u32, u32); 9] = [
        (sys::WAIT_DEPENDENCY, sys::WAIT_DEPENDENCY),
        (sys::WAIT_PART_NODE_LIMIT, sys::WAIT_PART_TIME_LIMIT),
        (sys::WAIT_LICENSES, sys::WAIT_LICENSES),
        (sys::WAIT_ASSOC_JOB_LIMIT, sys::WAIT_ASSOC_TIME_LIMIT),
        (sys::WAIT_QOS_JOB_LIMIT, sys::WAIT_QOS_TIME_LIMIT),
        (sys::WAIT_QOS, sys::WAIT_ACCOUNT),
        (sys::WAIT_QOS_GRP_CPU, sys::WAIT_ASSOC_MAX_SUB_JOB),
        (sys::WAIT_ASSOC_GRP_UNK, sys::WAIT_QOS_MAX_SUB_JOB_PER_ACCT),
        (sys::WAIT_ACCOUNT_POLICY, sys::WAIT_ACCOUNT_POLICY),
    ];
    OWN.iter()
        .any(|(first, last)| (*first..=*last).contains(&reason))
}

/// The value of `key=value` in a comma-separated list of options.
pub fn option_value<'a>(options: &'a str, key: &str) -> Option<&'a str> {
    text::option_value(options, key)
}

/// The host names of a host list such as `n[1-3,7]`; `None` when it is none.
pub fn hosts(list: &str) -> Option<Vec<String>> {
    text::host_list(list)
}

/// The records behind a pointer that a libslurm message holds.
///
/// # Safety
/// `first` must point to `count` valid records that outlive the result.
unsafe fn records<'a, T>(first: *const T, count: u32) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count as usize) }
}

/// Turns a libslurm return code into a result.
fn check(return_code: i32) -> Result<(), SlurmError> {
    if return_code == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0) as u32;
    let code = if return_code > 0 {
        return_code as u32
    } else {
        errno
    };
    Err(refused(code))
}

/// Whether nothing has changed since the last query.
fn unchanged(error: &SlurmError) -> bool {
    matches!(error, SlurmError::Refused { code, .. } if *code == sys::SLURM_NO_CHANGE_IN_DATA)
}

fn refused(code: u32) -> SlurmError {
    // SAFETY: slurm_strerror returns a string that lives for ever, for any number.
    let text = unsafe {
        let text = sys::slurm_strerror(code as i32);
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    SlurmError::Refused { code, text }
}
