//! The SPANK plugin: the C symbols that Slurm looks up, and nothing else.
//! Each entry hands over to the file named after the place it runs in and
//! returns 0 whatever happens inside: a plugin must never drain a node.
//!
//! The exported hooks decide in which processes Slurm loads the plugin, so
//! only those that are used exist; exports.txt lists them for the tests.

mod allocator;
#[cfg(test)]
mod fake_slurm;
mod job_script;
mod option;
mod panics;
mod prepare;
mod remote;
mod sbatch_options;
mod slurm;
mod tag;
mod task_env;

use std::ffi::{c_char, c_int, c_uint};

use bftrainer::sys;

use crate::slurm::Context;
use bftrainer::plugin_args::Args;

/// The name in Slurm's messages and in the option's environment variables.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_name: [u8; 10] = *b"bftrainer\0";

/// What makes the file a SPANK plugin.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The Slurm that the plugin was built for; Slurm refuses another major.minor.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: c_uint = sys::SLURM_VERSION_NUMBER;

/// The plugin's own version, for Slurm's information.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static spank_plugin_version: c_uint = 1;

/// Every process that loads the plugin, except those of prolog and epilog.
///
/// # Safety
/// Called by Slurm with a valid handle and plugstack.conf's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    spank: sys::spank_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    entry(|| match slurm::context() {
        Context::Slurmd => {
            // SAFETY: Slurm's promise, handed on.
            let args = unsafe { Args::from_c(argc, argv) };
            for problem in &args.problems {
                slurm::error(problem);
            }
        }
        Context::Allocator => {
            allocator::init();
            option::register(spank);
        }
        Context::Srun | Context::Remote => option::register(spank),
        Context::Other => {}
    })
}

/// All options are known: sbatch tags here, salloc and srun refuse.
///
/// # Safety
/// Called by Slurm with a valid handle and plugstack.conf's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    spank: sys::spank_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    entry(|| {
        let context = slurm::context();
        if matches!(context, Context::Allocator | Context::Srun) {
            // SAFETY: Slurm's promise, handed on.
            let args = unsafe { Args::from_c(argc, argv) };
            allocator::init_post_opt(spank, context, &args);
        }
    })
}

/// Each task of each step, as the user, just before it is executed.
///
/// # Safety
/// Called by Slurm with a valid handle and plugstack.conf's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    spank: sys::spank_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: Slurm's promise, handed on.
    entry(|| remote::task_init(spank, &unsafe { Args::from_c(argc, argv) }))
}

/// A job starts on this node; as root, and the job waits for it.
///
/// # Safety
/// Called by Slurm with a valid handle and plugstack.conf's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_job_prolog(
    _spank: sys::spank_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: Slurm's promise, handed on.
    entry(|| job_script::hint(&unsafe { Args::from_c(argc, argv) }))
}

/// A job has left this node; as root, and the node waits for it.
///
/// # Safety
/// Called by Slurm with a valid handle and plugstack.conf's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_job_epilog(
    _spank: sys::spank_t,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: Slurm's promise, handed on.
    entry(|| job_script::hint(&unsafe { Args::from_c(argc, argv) }))
}

/// Runs a hook; whatever happens in it, Slurm goes on.
fn entry(hook: impl FnOnce()) -> c_int {
    let _ = panics::caught(hook);
    0
}
