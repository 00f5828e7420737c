//! Where a panic of ours ends: it never reaches Slurm and says nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

const _: () = assert!(cfg!(panic = "unwind"), "a panic must not abort slurmd");

/// What `work` gives; `None` when it panicked. Nothing that it was changing may
/// be used after that.
pub fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let work = || {
        #[cfg(test)]
        tests::panic_if_asked();
        work()
    };
    catch_unwind(AssertUnwindSafe(work)).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::{c_char, c_int};
    use std::process::{Command, Output};

    use bftrainer::sys;

    use crate::fake_slurm;
    use crate::option::INHERITED;

    /// Names the case that a process of this test is to play.
    const CASE: &str = "BFT_TEST_PANIC";

    /// Added to what an entry has returned: the exit code of a process that is still
    /// alive behind it.
    const RETURNED: c_int = 100;

    const OPTION: &str = "the option's callback";

    type Entry = unsafe extern "C" fn(sys::spank_t, c_int, *mut *mut c_char) -> c_int;

    /// All that Slurm finds by its name.
    const ENTRIES: [(&str, Entry); 5] = [
        ("slurm_spank_init", crate::slurm_spank_init),
        (
            "slurm_spank_init_post_opt",
            crate::slurm_spank_init_post_opt,
        ),
        ("slurm_spank_job_epilog", crate::slurm_spank_job_epilog),
        ("slurm_spank_job_prolog", crate::slurm_spank_job_prolog),
        ("slurm_spank_task_init", crate::slurm_spank_task_init),
    ];

    thread_local! {
        /// The calls of `caught` until the one that panics; `None`: none does.
        static CALLS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    pub fn panic_if_asked() {
        match CALLS_LEFT.get() {
            Some(0) => {
                CALLS_LEFT.set(None);
                panic!("as the test wants");
            }
            left => CALLS_LEFT.set(left.map(|calls| calls - 1)),
        }
    }

    /// Calls an entry, in which a panic is raised behind `calls` calls of `caught`.
    fn panics_behind(calls: u32, entry: impl FnOnce() -> c_int) -> c_int {
        CALLS_LEFT.set(Some(calls));
        let code = entry();
        assert_eq!(CALLS_LEFT.get(), None, "a panic was raised");
        code
    }

    fn call(entry: Entry) -> c_int {
        // SAFETY: the doubles take any handle; there are no arguments.
        unsafe { entry(std::ptr::null_mut(), 0, std::ptr::null_mut()) }
    }

    /// A panic inside, where the user has written the option.
    fn with_option(context: sys::spank_context, entry: Entry) -> c_int {
        fake_slurm::set_context(context);
        assert_eq!(call(crate::slurm_spank_init), 0);
        assert_eq!(fake_slurm::give_option(c"nodes=1-4"), 0);
        panics_behind(1, || call(entry))
    }

    /// The case's name, what its process does, the process' exit code, and all that
    /// it says.
    type Case = (&'static str, fn() -> c_int, c_int, &'static str);

    const INNER_CASES: [Case; 4] = [
        (
            OPTION,
            || {
                fake_slurm::set_context(sys::S_CTX_ALLOCATOR);
                assert_eq!(call(crate::slurm_spank_init), 0);
                panics_behind(0, || fake_slurm::give_option(c"nodes=1-4"))
            },
            RETURNED,
            "",
        ),
        (
            "sbatch with the option",
            || with_option(sys::S_CTX_ALLOCATOR, crate::slurm_spank_init_post_opt),
            1,
            "bftrainer: --bftrainer: the plugin failed; nothing was submitted\n",
        ),
        (
            "a trainer's task",
            || with_option(sys::S_CTX_REMOTE, crate::slurm_spank_task_init),
            75,
            "bftrainer: the agent /usr/bin/bftrainer can't be run on this node: \
             the plugin failed; the script was not started\n",
        ),
        (
            "a task that may be a trainer's",
            || {
                fake_slurm::set_context(sys::S_CTX_REMOTE);
                panics_behind(1, || call(crate::slurm_spank_task_init))
            },
            RETURNED,
            "",
        ),
    ];

    #[test]
    fn the_table_has_every_exported_entry() {
        let exported = include_str!("../exports.txt").lines();
        let entries = exported.filter(|name| name.starts_with("slurm_spank_"));
        assert!(entries.eq(ENTRIES.map(|(name, _)| name)));
    }

    #[test]
    fn a_panic_in_any_entry_hurts_no_job_and_says_nothing() {
        if let Ok(name) = std::env::var(CASE) {
            std::process::exit(play(&name));
        }
        let quiet = process("none");
        assert_eq!(quiet.status.code(), Some(RETURNED));
        let entries = ENTRIES.map(|(name, _)| (name, RETURNED, ""));
        let inner = INNER_CASES.map(|(name, _, code, said)| (name, code, said));
        for (name, code, said) in entries.into_iter().chain(inner) {
            let done = process(name);
            assert_eq!(String::from_utf8_lossy(&done.stderr), said, "{name}");
            assert_eq!(done.stdout, quiet.stdout, "{name}");
            assert_eq!(done.status.code(), Some(code), "{name}");
        }
    }

    /// This test in a process of its own, where it plays the case.
    fn process(case: &str) -> Output {
        let test = std::any::type_name_of_val(&a_panic_in_any_entry_hurts_no_job_and_says_nothing);
        let (_, test) = test.split_once("::").unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CASE, case)
            .env_remove(INHERITED)
            .output()
            .unwrap()
    }

    fn play(case: &str) -> c_int {
        let entry = ENTRIES.iter().find(|(name, _)| *name == case);
        let inner = INNER_CASES.iter().find(|(name, ..)| *name == case);
        let returned = match (entry, inner) {
            (Some((_, entry)), _) => panics_behind(0, || call(*entry)),
            (_, Some((_, act, ..))) => act(),
            (None, None) => 0,
        };
        RETURNED + returned
    }
}
