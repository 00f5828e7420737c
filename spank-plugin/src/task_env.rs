//! The environment of a task about to be executed: `NAME=value` entries in their
//! order, as bytes, because users' values need not be text.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

use crate::slurm::c_string;

/// The entries; one without `=` is kept as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskEnv(Vec<Vec<u8>>);

impl TaskEnv {
    /// Copies a C environment.
    ///
    /// # Safety
    /// `entries` is null or a null-terminated array of C strings.
    pub unsafe fn from_c(entries: *const *mut c_char) -> Self {
        // SAFETY: the caller's promise, handed on.
        let entries = unsafe { c_strings(entries) };
        Self(entries.into_iter().map(CString::into_bytes).collect())
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let mut pairs = self.pairs();
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Sets `name`, replacing what is there.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let entry = [name, b"=", value].concat();
        match self.0.iter_mut().find(|entry| names(entry, name)) {
            Some(place) => *place = entry,
            None => self.0.push(entry),
        }
    }

    /// Removes every entry of `name`.
    pub fn remove(&mut self, name: &[u8]) {
        self.0.retain(|entry| !names(entry, name));
    }

    /// All names with their values.
    pub fn pairs(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().filter_map(|entry| {
            let at = entry.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (&entry[..at], &entry[at + 1..]);
            Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
        })
    }

    /// The entries for `execve`.
    pub fn to_c(&self) -> Vec<CString> {
        self.0.iter().map(|entry| c_string(entry.clone())).collect()
    }
}

/// Copies a null-terminated array of C strings.
///
/// # Safety
/// `strings` is null or such an array.
pub unsafe fn c_strings(strings: *const *mut c_char) -> Vec<CString> {
    let mut copies = Vec::new();
    if strings.is_null() {
        return copies;
    }
    let mut next = strings;
    // SAFETY: the caller's promise: entries up to and including a null can be
    // read, and the others are C strings.
    unsafe {
        while !(*next).is_null() {
            copies.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    copies
}

fn names(entry: &[u8], name: &[u8]) -> bool {
    entry
        .strip_prefix(name)
        .is_some_and(|rest| rest.starts_with(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(entries: &[&str]) -> TaskEnv {
        TaskEnv(
            entries
                .iter()
                .map(|entry| entry.as_bytes().to_vec())
                .collect(),
        )
    }

    #[test]
    fn an_entry_is_found_by_its_whole_name() {
        let env = env(&["AB=1", "A=x=y", "A=second", "broken"]);
        assert_eq!(env.get("A"), Some(OsStr::new("x=y")));
        assert_eq!(env.get("B"), None);
        assert_eq!(env.get("broken"), None);
    }

    #[test]
    fn setting_replaces_in_place_and_keeps_the_rest() {
        let mut env = env(&["A=1", "broken", "B=2"]);
        env.set(b"A", b"new\nline");
        env.set(b"C", b"");
        assert_eq!(env, self::env(&["A=new\nline", "broken", "B=2", "C="]));
    }

    #[test]
    fn removing_takes_every_entry_of_that_name_only() {
        let mut env = env(&["A=1", "AA=2", "A=3"]);
        env.remove(b"A");
        assert_eq!(env, self::env(&["AA=2"]));
    }

    #[test]
    fn a_c_environment_is_copied() {
        let mut strings = [c"A=1", c"B=2"]
            .map(|text| text.as_ptr().cast_mut())
            .to_vec();
        strings.push(std::ptr::null_mut());
        // SAFETY: the array is null-terminated and outlives the call.
        let env = unsafe { TaskEnv::from_c(strings.as_ptr()) };
        assert_eq!(env.to_c(), [c"A=1".to_owned(), c"B=2".to_owned()]);
    }
}
