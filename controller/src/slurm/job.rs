//! Jobs as slurmctld reports them, cut down to what matters to us.

use std::ptr;

use bftrainer::spec::COMMENT_PREFIX;
use bftrainer::sys;
use serde::{Deserialize, Serialize};

use super::{Slurm, SlurmError, check, records, text, unchanged};
use crate::classes::{Memory, NodeRequest};

/// Flags a job's memory as for each CPU (slurm.h; bindgen does not know so large a literal).
const MEM_PER_CPU: u64 = 1 << 63;

/// Slurm's 64-bit "not set" (slurm.h).
const NO_VAL64: u64 = u64::MAX - 1;

/// A job's base state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseState {
    /// Waits.
    Pending,
    /// Runs.
    Running,
    /// Suspended.
    Suspended,
    /// Ended with exit code 0.
    Complete,
    /// Cancelled by its user or an administrator.
    Cancelled,
    /// Ended otherwise: failed, timed out, node failed, preempted for good ...
    Failed,
}

/// A job, an array task, or the tasks of an array that were never touched.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// The job's own id.
    pub job_id: u32,
    /// The array's id; 0 for a job that is no array.
    pub array_job_id: u32,
    /// The array tasks that this record stands for.
    pub array_tasks: Vec<u32>,
    /// Base state.
    pub base: BaseState,
    /// Cleaning up after a run.
    pub completing: bool,
    /// Any other flag: configuring, requeued, signalling ...
    pub flagged: bool,
    /// Partition.
    pub partition: String,
    /// Name.
    pub name: String,
    /// The user's comment.
    pub comment: String,
    /// The administrator's comment.
    pub admin_comment: String,
    /// Owner.
    pub user_id: u32,
    /// Owner's name.
    pub user_name: String,
    /// Account.
    pub account: String,
    /// Its script and the script's arguments; empty for `--wrap`.
    pub command: String,
    /// Working directory.
    pub work_dir: String,
    /// Nodes that it runs on, or ran on last.
    pub nodes: Vec<String>,
    /// Nodes that backfill plans it for.
    pub planned_nodes: Vec<String>,
    /// Start, or planned start, epoch seconds; 0 when unknown.
    pub start_time_s: i64,
    /// End, epoch seconds; 0 when unknown.
    pub end_time_s: i64,
    /// Submission, epoch seconds.
    pub submit_time_s: i64,
    /// Time limit, minutes; `None` when unlimited.
    pub limit_min: Option<u32>,
    /// Priority; 0 is held.
    pub priority: u32,
    /// Why it waits, Slurm's number.
    pub wait_reason: u32,
    /// How often it was requeued.
    pub restart_count: u32,
    /// Whether Slurm may requeue it.
    pub requeue: bool,
    /// Whether it has whole nodes.
    pub exclusive: bool,
    /// Nodes that it asks for.
    pub node_count: u32,
    /// What it asks of its node.
    pub request: NodeRequest,
}

/// What makes a job a trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobComments {
    /// The comment, which the user may change.
    pub comment: String,
    /// The AdminComment, which the controller writes.
    pub admin_comment: String,
}

/// Which jobs are worth a record.
pub struct JobSelection<'a> {
    /// Every job of this partition.
    pub partition: &'a str,
    /// Jobs that have started since, epoch seconds.
    pub started_since_s: i64,
}

impl Slurm {
    /// The jobs of our partition, those that carry our comment elsewhere, those that
    /// have started lately, and the waiting ones that have nodes planned; `None` when nothing has changed.
    pub fn load_jobs(
        &mut self,
        selection: &JobSelection<'_>,
    ) -> Result<Option<Vec<JobRecord>>, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        let result = check(unsafe {
            sys::slurm_load_jobs(self.jobs_as_of, &mut message, sys::BFT_SHOW_ALL)
        });
        match result {
            Err(error) if unchanged(&error) => return Ok(None),
            other => other?,
        }
        // SAFETY: the call succeeded, so the array holds record_count records.
        let (jobs, as_of) = unsafe {
            let jobs = records((*message).job_array, (*message).record_count);
            let jobs = jobs
                .iter()
                .filter(|job| is_selected(job, selection))
                .map(job_record)
                .collect();
            (jobs, (*message).last_update)
        };
        // SAFETY: `message` came from slurm_load_jobs.
        unsafe { sys::slurm_free_job_info_msg(message) };
        self.jobs_as_of = as_of;
        Ok(Some(jobs))
    }
}

impl Slurm {
    /// The comments of the job with the id `job_id` of its own.
    pub fn job_comments(&self, job_id: u32) -> Result<JobComments, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        check(unsafe { sys::slurm_load_job(&mut message, job_id, sys::BFT_SHOW_ALL) })?;
        // SAFETY: the call succeeded, so the array holds record_count records.
        let jobs = unsafe { records((*message).job_array, (*message).record_count) };
        let found = jobs
            .iter()
            .find(|job| job.job_id == job_id)
            .map(|job| JobComments {
                comment: text::owned(job.comment),
                admin_comment: text::owned(job.admin_comment),
            });
        // SAFETY: `message` came from slurm_load_job.
        unsafe { sys::slurm_free_job_info_msg(message) };
        found.ok_or_else(|| SlurmError::NotFound(format!("slurmctld knows no job {job_id}")))
    }
}

fn is_selected(job: &sys::slurm_job_info_t, selection: &JobSelection<'_>) -> bool {
    let planned = job.job_state & sys::JOB_STATE_BASE == sys::JOB_PENDING
        && !job.sched_nodes.is_null()
        && job.start_time > 0;
    let started = job.job_state & sys::JOB_STATE_BASE != sys::JOB_PENDING
        && job.start_time >= selection.started_since_s;
    planned
        || started
        || text::owned(job.partition)
            .split(',')
            .any(|partition| partition == selection.partition)
        || text::owned(job.comment).starts_with(COMMENT_PREFIX)
}

fn job_record(job: &sys::slurm_job_info_t) -> JobRecord {
    let base = match job.job_state & sys::JOB_STATE_BASE {
        sys::JOB_PENDING => BaseState::Pending,
        sys::JOB_RUNNING => BaseState::Running,
        sys::JOB_SUSPENDED => BaseState::Suspended,
        sys::JOB_COMPLETE => BaseState::Complete,
        sys::JOB_CANCELLED => BaseState::Cancelled,
        _ => BaseState::Failed,
    };
    let flags = job.job_state & sys::JOB_STATE_FLAGS;
    let array_tasks = match (job.array_job_id, job.array_task_id) {
        (0, _) => Vec::new(),
        (_, sys::NO_VAL) => text::array_tasks(&text::owned(job.array_task_str)),
        (_, task) => vec![task],
    };
    JobRecord {
        job_id: job.job_id,
        array_job_id: job.array_job_id,
        array_tasks,
        base,
        completing: flags & sys::BFT_JOB_COMPLETING != 0,
        flagged: flags & !sys::BFT_JOB_COMPLETING != 0,
        partition: text::owned(job.partition),
        name: text::owned(job.name),
        comment: text::owned(job.comment),
        admin_comment: text::owned(job.admin_comment),
        user_id: job.user_id,
        user_name: user_name(job),
        account: text::owned(job.account),
        command: text::owned(job.command),
        work_dir: text::owned(job.work_dir),
        nodes: text::hosts(&text::owned(job.nodes)),
        planned_nodes: text::hosts(&text::owned(job.sched_nodes)),
        start_time_s: job.start_time,
        end_time_s: job.end_time,
        submit_time_s: job.submit_time,
        limit_min: (job.time_limit != sys::INFINITE && job.time_limit != sys::NO_VAL)
            .then_some(job.time_limit),
        priority: job.priority,
        wait_reason: u32::from(job.state_reason),
        restart_count: u32::from(job.restart_cnt),
        requeue: job.requeue != 0,
        exclusive: u32::from(job.shared) == sys::JOB_SHARED_NONE,
        node_count: job
            .num_nodes
            .max(if job.max_nodes == 0 { 1 } else { job.max_nodes }),
        request: node_request(job),
    }
}

fn node_request(job: &sys::slurm_job_info_t) -> NodeRequest {
    let known = |number: u32, unknown: u32| if number >= unknown { 0 } else { number };
    let per_node = [job.tres_per_job, job.tres_per_node, job.tres_per_socket];
    NodeRequest {
        constraint: text::owned(job.features),
        tres: per_node.map(|list| text::owned(list)).to_vec(),
        tres_per_task: text::owned(job.tres_per_task),
        tasks: known(job.num_tasks, sys::NO_VAL),
        cpus_per_task: known(u32::from(job.cpus_per_task), sys::NO_VAL16),
        min_cpus: known(u32::from(job.pn_min_cpus), sys::NO_VAL16),
        memory: match job.pn_min_memory {
            NO_VAL64.. => Memory::Node(0),
            memory_mb if memory_mb & MEM_PER_CPU == 0 => Memory::Node(memory_mb),
            memory_mb => Memory::Cpu(memory_mb & !MEM_PER_CPU),
        },
        tmp_disk_mb: known(job.pn_min_tmp_disk, sys::NO_VAL),
        excluded: text::hosts(&text::owned(job.exc_nodes)),
    }
}

/// The owner's name; not every slurmctld sends it.
fn user_name(job: &sys::slurm_job_info_t) -> String {
    let sent = text::owned(job.user_name);
    if !sent.is_empty() {
        return sent;
    }
    match nix::unistd::User::from_uid(job.user_id.into()) {
        Ok(Some(user)) => user.name,
        _ => job.user_id.to_string(),
    }
}
