//! Changes to jobs: placements, holds, requeues, comments.

use std::ffi::CString;
use std::ptr;

use bftrainer::sys;

use super::{Slurm, SlurmError, check, records, refused, text};

/// Which tasks of an array a change is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskName {
    /// The whole array.
    Array(u32),
    /// One task.
    Task {
        /// The array.
        array_job_id: u32,
        /// The task.
        array_task_id: u32,
    },
    /// Some tasks in one call.
    Tasks {
        /// The array.
        array_job_id: u32,
        /// The tasks.
        array_task_ids: Vec<u32>,
    },
    /// A job or task by the name that Slurm's commands take.
    Other(String),
}

impl TaskName {
    /// The array and those of its tasks that are named one by one.
    pub fn members(&self) -> Option<(u32, Vec<u32>)> {
        match self {
            TaskName::Array(_) | TaskName::Other(_) => None,
            TaskName::Task {
                array_job_id,
                array_task_id,
            } => Some((*array_job_id, vec![*array_task_id])),
            TaskName::Tasks {
                array_job_id,
                array_task_ids,
            } => Some((*array_job_id, array_task_ids.clone())),
        }
    }
}

impl std::fmt::Display for TaskName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TaskName::Array(array) => write!(f, "{array}"),
            TaskName::Task {
                array_job_id,
                array_task_id,
            } => {
                write!(f, "{array_job_id}_{array_task_id}")
            }
            TaskName::Other(name) => f.write_str(name),
            TaskName::Tasks {
                array_job_id,
                array_task_ids,
            } => {
                let tasks: Vec<String> = array_task_ids.iter().map(u32::to_string).collect();
                write!(f, "{array_job_id}_[{}]", tasks.join(","))
            }
        }
    }
}

/// What is to be changed; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskUpdate {
    /// The only nodes that it may run on; empty for any.
    pub required_nodes: Option<String>,
    /// Time limit, minutes.
    pub limit_min: Option<u32>,
    /// Eligible at once.
    pub begin_now: bool,
    /// `Some(true)` holds as administrator, `Some(false)` releases.
    pub hold: Option<bool>,
    /// Slurm may queue it again.
    pub requeue: bool,
    /// AdminComment.
    pub admin_comment: Option<String>,
}

impl TaskUpdate {
    /// Holds as administrator.
    pub fn hold() -> Self {
        TaskUpdate {
            hold: Some(true),
            ..TaskUpdate::default()
        }
    }

    /// Releases, to run at once on `required_nodes` (empty for any) for `limit_min`
    /// minutes.
    pub fn release(required_nodes: String, limit_min: u32) -> Self {
        TaskUpdate {
            required_nodes: Some(required_nodes),
            limit_min: Some(limit_min),
            begin_now: true,
            hold: Some(false),
            ..TaskUpdate::default()
        }
    }

    /// Lets Slurm queue it again.
    pub fn allow_requeue() -> Self {
        TaskUpdate {
            requeue: true,
            ..TaskUpdate::default()
        }
    }
}

impl Slurm {
    /// Changes tasks. Every task's answer is looked at; the first error is returned.
    pub fn update(&self, tasks: &TaskName, update: &TaskUpdate) -> Result<(), SlurmError> {
        let name = text::c_string(&tasks.to_string())?;
        let nodes = optional(update.required_nodes.as_deref())?;
        let comment = optional(update.admin_comment.as_deref())?;
        let mut message = sys::job_desc_msg_t::default();
        // SAFETY: `message` is a record of the right type.
        unsafe { sys::slurm_init_job_desc_msg(&mut message) };
        message.job_id_str = name.as_ptr().cast_mut();
        if let Some(nodes) = &nodes {
            message.req_nodes = nodes.as_ptr().cast_mut();
        }
        if let Some(comment) = &comment {
            message.admin_comment = comment.as_ptr().cast_mut();
        }
        if let Some(limit_min) = update.limit_min {
            message.time_limit = limit_min;
        }
        if update.begin_now {
            // Slurm takes what is past for its own now, whatever our clock says.
            message.begin_time = 1;
        }
        match update.hold {
            // Priority 0 set by SlurmUser is a hold that the user can't lift.
            Some(true) => message.priority = 0,
            Some(false) => message.priority = sys::INFINITE,
            None => {}
        }
        if update.requeue {
            message.requeue = 1;
        }
        let mut response = ptr::null_mut();
        // SAFETY: the texts in `message` outlive the call.
        let result = check(unsafe { sys::slurm_update_job2(&mut message, &mut response) });
        each_answer(result, response)
    }

    /// Requeues running or ended tasks, held, also those that their owner has just
    /// set `Requeue=0` for.
    pub fn requeue_hold(&self, tasks: &TaskName) -> Result<(), SlurmError> {
        match self.try_requeue_hold(tasks) {
            Err(SlurmError::Refused { code, .. }) if code == sys::ESLURM_DISABLED => {
                self.update(tasks, &TaskUpdate::allow_requeue())?;
                self.try_requeue_hold(tasks)
            }
            result => result,
        }
    }

    fn try_requeue_hold(&self, tasks: &TaskName) -> Result<(), SlurmError> {
        let name = text::c_string(&tasks.to_string())?;
        let mut response = ptr::null_mut();
        // SAFETY: `name` outlives the call, which does not change it.
        let result = check(unsafe {
            sys::slurm_requeue2(
                name.as_ptr().cast_mut(),
                sys::BFT_JOB_REQUEUE_HOLD,
                &mut response,
            )
        });
        each_answer(result, response)
    }

    /// Cancels tasks.
    pub fn cancel(&self, tasks: &TaskName) -> Result<(), SlurmError> {
        let name = text::c_string(&tasks.to_string())?;
        // SAFETY: `name` outlives the call; there are no siblings.
        check(unsafe { sys::slurm_kill_job2(name.as_ptr(), libc::SIGKILL as u16, 0, ptr::null()) })
    }
}

fn optional(text: Option<&str>) -> Result<Option<CString>, SlurmError> {
    text.map(text::c_string).transpose()
}

/// The call's result, or the first error among its per-task answers.
fn each_answer(
    result: Result<(), SlurmError>,
    response: *mut sys::job_array_resp_msg_t,
) -> Result<(), SlurmError> {
    if response.is_null() {
        return result;
    }
    // SAFETY: a response that is not null holds job_array_count answers.
    let first_error = unsafe {
        let codes = records((*response).error_code, (*response).job_array_count);
        codes.iter().copied().find(|code| *code != 0)
    };
    // SAFETY: `response` came from libslurm and is freed once.
    unsafe { sys::slurm_free_job_array_resp(response) };
    match first_error {
        Some(code) => Err(refused(code)),
        None => result,
    }
}
