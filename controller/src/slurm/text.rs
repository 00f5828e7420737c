//! Texts and host lists that libslurm hands out or takes.

use std::ffi::{CStr, CString, c_char};

use bftrainer::sys;

use super::SlurmError;

/// A copy of a C string; empty for a null pointer.
pub(super) fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libslurm's text fields are null or zero-terminated strings.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// A C string for libslurm.
pub(super) fn c_string(text: &str) -> Result<CString, SlurmError> {
    CString::new(text).map_err(|_| SlurmError::ZeroByte(text.replace('\0', "\\0")))
}

/// The host names of a host list from slurmctld.
pub(super) fn hosts(list: &str) -> Vec<String> {
    host_list(list).unwrap_or_default()
}

/// The host names of a host list such as `n[1-3,7]`; `None` when it is none.
pub(super) fn host_list(list: &str) -> Option<Vec<String>> {
    let list = c_string(list).ok()?;
    let mut names = Vec::new();
    // SAFETY: the list is created from a valid string, each shifted name is a
    // malloc'ed string that is freed here, and the list is destroyed once.
    unsafe {
        let hostlist = sys::slurm_hostlist_create(list.as_ptr());
        if hostlist.is_null() {
            return None;
        }
        loop {
            let name = sys::slurm_hostlist_shift(hostlist);
            if name.is_null() {
                break;
            }
            names.push(owned(name));
            libc::free(name.cast());
        }
        sys::slurm_hostlist_destroy(hostlist);
    }
    // libslurm takes an odd bracket for a part of a name.
    let is_whole = names.iter().all(|name| !name.contains(['[', ']']));
    is_whole.then_some(names)
}

/// The value of `key=value` in a comma-separated list of options.
pub(super) fn option_value<'a>(options: &'a str, key: &str) -> Option<&'a str> {
    options
        .split(',')
        .filter_map(|option| option.trim().split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
}

/// The task numbers of an `array_task_str` such as `0-3,7,10-16:2%4`.
pub(super) fn array_tasks(list: &str) -> Vec<u32> {
    let list = list.split('%').next().unwrap_or_default();
    let mut tasks = Vec::new();
    for piece in list.trim_matches(['[', ']']).split(',') {
        let (range, step) = piece.split_once(':').unwrap_or((piece, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last), Ok(step)) = (first.parse(), last.parse(), step.parse()) else {
            continue;
        };
        let (first, last): (u32, u32) = (first, last);
        let step: usize = step;
        // MaxArraySize is at most 4,000,001 (slurm.conf(5)).
        if last <= 4_000_001 {
            tasks.extend((first..=last).step_by(step.max(1)));
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_task_lists_are_read() {
        assert_eq!(array_tasks("0-3,7"), [0, 1, 2, 3, 7]);
        assert_eq!(array_tasks("[1-5:2%4]"), [1, 3, 5]);
        assert_eq!(array_tasks("4"), [4]);
        assert!(array_tasks("").is_empty());
        assert!(array_tasks("0-4294967295").is_empty());
    }

    #[test]
    fn options_are_found_by_name() {
        let options = "bf_window=1440,bf_interval=5,defer";
        assert_eq!(option_value(options, "bf_interval"), Some("5"));
        assert_eq!(option_value(options, "interval"), None);
    }
}
