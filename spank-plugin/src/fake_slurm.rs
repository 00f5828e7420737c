//! What the plugin finds in the process that loads it, as far as tests that call
//! the plugin's entries need it: Slurm's symbols, with the plugin's own signatures.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use bftrainer::sys;

static CONTEXT: AtomicU32 = AtomicU32::new(sys::S_CTX_ERROR);
static CALLBACK: Mutex<sys::spank_opt_cb_f> = Mutex::new(None);

/// Where the plugin is from now on.
pub fn set_context(context: sys::spank_context) {
    CONTEXT.store(context, Ordering::Relaxed);
}

/// Hands a written value to the registered option.
pub fn give_option(value: &CStr) -> c_int {
    let callback = CALLBACK.lock().unwrap().expect("an option is registered");
    // SAFETY: the callback reads the value as a C string.
    unsafe { callback(0, value.as_ptr(), 0) }
}

#[unsafe(no_mangle)]
extern "C" fn spank_context() -> sys::spank_context {
    CONTEXT.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn spank_option_register(
    _spank: sys::spank_t,
    option: *mut sys::spank_option,
) -> sys::spank_err_t {
    // SAFETY: the plugin passes a valid option.
    *CALLBACK.lock().unwrap() = unsafe { (*option).cb };
    sys::SLURM_SUCCESS
}

/// A batch step of an array's task in the trainers' partition.
#[unsafe(no_mangle)]
unsafe extern "C" fn spank_get_item(
    _spank: sys::spank_t,
    item: sys::spank_item_t,
    first: *mut c_void,
    second: *mut c_void,
) -> sys::spank_err_t {
    let entry = c"SLURM_JOB_PARTITION=bftrainer".as_ptr().cast_mut();
    let strings = Box::leak(Box::new([entry, std::ptr::null_mut()])).as_mut_ptr();
    // SAFETY: each item comes with the pointers that spank.h says.
    unsafe {
        match item {
            sys::S_JOB_STEPID => first.cast::<u32>().write(sys::SLURM_BATCH_SCRIPT),
            sys::S_JOB_ARRAY_ID => first.cast::<u32>().write(1),
            sys::S_JOB_ENV => first.cast::<*mut *mut c_char>().write(strings),
            sys::S_JOB_ARGV => {
                first.cast::<c_int>().write(0);
                second
                    .cast::<*mut *mut c_char>()
                    .write(std::ptr::null_mut());
            }
            _ => unreachable!("item {item} is not asked for"),
        }
    }
    sys::SLURM_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn spank_job_control_unsetenv(
    _spank: sys::spank_t,
    _name: *const c_char,
) -> sys::spank_err_t {
    sys::SLURM_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn slurm_error(_format: *const c_char, line: *const c_char) {
    // SAFETY: the plugin's format is "%s".
    let line = unsafe { CStr::from_ptr(line) };
    let line = [line.to_bytes(), b"\n"].concat();
    std::io::stderr().write_all(&line).unwrap();
}
