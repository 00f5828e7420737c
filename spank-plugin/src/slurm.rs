//! The few things of Slurm that every place needs, made safe. Symbols are found
//! in the process that loads the plugin; those that not every Slurm has are
//! looked up at run time.

use std::ffi::{CStr, CString, c_int, c_void};
use std::io::Write;

use bftrainer::sys;

/// The process that has loaded the plugin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Context {
    /// sbatch or salloc.
    Allocator,
    /// srun.
    Srun,
    /// slurmstepd, for a step.
    Remote,
    /// slurmd itself.
    Slurmd,
    /// Prolog and epilog, and whatever Slurm adds.
    Other,
}

/// Where we are.
pub fn context() -> Context {
    // SAFETY: no arguments; Slurm answers from its own state.
    match unsafe { sys::spank_context() } {
        sys::S_CTX_ALLOCATOR => Context::Allocator,
        sys::S_CTX_LOCAL => Context::Srun,
        sys::S_CTX_REMOTE => Context::Remote,
        sys::S_CTX_SLURMD => Context::Slurmd,
        _ => Context::Other,
    }
}

/// One line at Slurm's error level: stderr in commands, the log in daemons.
pub fn error(message: &str) {
    let line = c_string(format!("bftrainer: {message}"));
    // SAFETY: the format takes one string, which lives until the call returns.
    unsafe { sys::slurm_error(c"%s".as_ptr(), line.as_ptr()) }
}

/// One line on the task's standard error, which may be closed.
pub fn say(message: &str) {
    let line = format!("bftrainer: {message}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Says why a command is refused and ends it as its own errors do. Not by a
/// return value, which Slurm ignores for a plugin listed as `optional`.
pub fn refuse(message: &str) -> ! {
    error(message);
    let error_exit = symbol(c"error_exit").cast::<c_int>();
    let code = if error_exit.is_null() {
        1
    } else {
        // SAFETY: sbatch, salloc and srun define `int error_exit`, the code of
        // their own failures.
        unsafe { error_exit.read() }
    };
    // SAFETY: runs the command's own exit handlers, then never returns.
    unsafe { libc::exit(code) }
}

/// A symbol of the loading process, or null.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; the lookup has no other preconditions.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The process' view of slurm.conf, if it has one.
pub fn conf() -> Option<&'static sys::slurm_conf_t> {
    // SAFETY: Slurm's global configuration has the layout of the headers that
    // the plugin was built with: Slurm loads only plugins of its own version.
    unsafe { symbol(c"slurm_conf").cast::<sys::slurm_conf_t>().as_ref() }
}

/// `text` for C; cut at a NUL, which no C string can hold.
pub fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    CString::new(bytes).unwrap_or_default()
}
