//! sbatch's own option table, found in the process: `opt` of sbatch and
//! `slurm_option_*` of its library. No documented interface of Slurm's, so every
//! symbol may be missing; then nothing is tagged behind the user's back.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::slurm::{c_string, symbol};
use crate::tag::Options;

type IsSet = unsafe extern "C" fn(*mut c_void, *const c_char) -> bool;
type Get = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_char;
type Set = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, bool) -> c_int;

/// The table of the sbatch that we are in.
pub struct SbatchOptions {
    opt: *mut c_void,
    is_set: IsSet,
    get: Get,
    set: Set,
}

impl SbatchOptions {
    /// The table, unless a part of it can't be found.
    pub fn find() -> Option<Self> {
        let found = |name: &CStr| Some(symbol(name)).filter(|address| !address.is_null());
        let opt = found(c"opt")?;
        let is_set = found(c"slurm_option_isset")?;
        let get = found(c"slurm_option_get")?;
        let set = found(c"slurm_option_set")?;
        // SAFETY: these three functions have had these signatures in each Slurm
        // since 20.02.
        unsafe {
            Some(Self {
                opt,
                is_set: std::mem::transmute::<*mut c_void, IsSet>(is_set),
                get: std::mem::transmute::<*mut c_void, Get>(get),
                set: std::mem::transmute::<*mut c_void, Set>(set),
            })
        }
    }

    /// Sets one option; false when Slurm did not take it.
    pub fn set(&self, name: &str, value: &str) -> bool {
        let (name, value) = (c_string(name), c_string(value));
        // SAFETY: `opt` is sbatch's option table; Slurm copies the strings.
        unsafe { (self.set)(self.opt, name.as_ptr(), value.as_ptr(), false) == 0 }
    }
}

impl Options for SbatchOptions {
    fn get(&self, name: &str) -> Option<String> {
        let name = c_string(name);
        // SAFETY: `opt` is sbatch's option table, the name a C string.
        if !unsafe { (self.is_set)(self.opt, name.as_ptr()) } {
            return None;
        }
        // SAFETY: as above.
        let value = unsafe { (self.get)(self.opt, name.as_ptr()) };
        if value.is_null() {
            return Some(String::new());
        }
        // SAFETY: Slurm returns a C string of ours to keep; the few bytes stay
        // allocated, since sbatch is about to end.
        let value = unsafe { CStr::from_ptr(value) };
        Some(value.to_string_lossy().into_owned())
    }
}
