//! The option `--bftrainer=SPEC`: its registration, whether somebody wrote it,
//! and the environment variables that would carry it into nested commands.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bftrainer::sys;

use crate::slurm::c_string;

/// Slurm's carrier from sbatch to slurmstepd, in the job's environment;
/// slurmstepd removes it there.
const CARRIER: &CStr = c"_SLURM_SPANK_OPTION_bftrainer_bftrainer";

/// Slurm's copy of it that stays in the job's environment: commands inside the
/// job take the option from there as if it had been written.
pub const INHERITED: &str = "SLURM_SPANK__SLURM_SPANK_OPTION_bftrainer_bftrainer";

/// How the option reached this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Given {
    /// Not at all.
    #[default]
    No,
    /// Through [`INHERITED`] only: nobody asked for it here.
    Inherited,
    /// On the command line, in an `#SBATCH` line, or from the submission.
    Written(CString),
}

static GIVEN: Mutex<Given> = Mutex::new(Given::No);

/// Makes the option known; to be called from `slurm_spank_init` only.
pub fn register(spank: sys::spank_t) {
    let mut option = sys::spank_option {
        name: c"bftrainer".as_ptr().cast_mut(),
        arginfo: c"SPEC".as_ptr().cast_mut(),
        usage: c"bftrainer: train elastically in idle nodes, as nodes=1-16 (help: all keys)"
            .as_ptr()
            .cast_mut(),
        has_arg: 1,
        val: 0,
        cb: Some(on_option),
    };
    // SAFETY: the handle is Slurm's; Slurm copies the struct and its strings
    // and writes to neither.
    unsafe { sys::spank_option_register(spank, &mut option) };
}

/// How the option reached this process, as known so far.
pub fn given() -> Given {
    state().clone()
}

/// Takes an inherited option out of what sbatch is about to submit, so that
/// the job does not look tagged.
pub fn drop_inherited(spank: sys::spank_t) {
    // SAFETY: the handle is Slurm's and the name a C string. sbatch and srun
    // have one thread here, so nobody reads the environment meanwhile.
    unsafe {
        sys::spank_job_control_unsetenv(spank, CARRIER.as_ptr());
        libc::unsetenv(CARRIER.as_ptr());
        libc::unsetenv(c_string(INHERITED).as_ptr());
    }
}

/// Slurm's call for each value it finds; refusing is left to init_post_opt.
extern "C" fn on_option(_val: c_int, value: *const c_char, remote: c_int) -> c_int {
    crate::entry(|| {
        if value.is_null() {
            return;
        }
        // A value out of the environment is handed over as getenv's own
        // pointer: its address tells it from one that was written.
        // SAFETY: the name is a C string.
        let inherited = unsafe { libc::getenv(c_string(INHERITED).as_ptr()) };
        let mut given = state();
        if remote == 0 && std::ptr::eq(value, inherited) {
            if *given == Given::No {
                *given = Given::Inherited;
            }
        } else {
            // SAFETY: Slurm passes the value as a C string.
            *given = Given::Written(unsafe { CStr::from_ptr(value) }.to_owned());
        }
    })
}

fn state() -> MutexGuard<'static, Given> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}
