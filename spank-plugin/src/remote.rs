//! In slurmstepd, as the user: in the batch step of a task that may be a
//! trainer's the worker agent is executed in the script's place, with the script
//! as its arguments. The agent decides the rest. Every other task is left alone.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::io;

use bftrainer::sys;

use crate::option::{self, Given};
use crate::panics;
use crate::prepare;
use crate::slurm::{c_string, say};
use crate::task_env::{TaskEnv, c_strings};
use bftrainer::plugin_args::Args;

/// The exit code of a tagged task whose agent can't be run (sysexits' TEMPFAIL):
/// its script must not train alone beside the other tasks.
const NO_AGENT: c_int = 75;

/// Just before the task's `execve`.
pub fn task_init(spank: sys::spank_t, args: &Args) {
    if step_id(spank) != Some(sys::SLURM_BATCH_SCRIPT) {
        return;
    }
    let mut env = environment(spank);
    let candidate =
        is_array_task(spank) && env.get("SLURM_JOB_PARTITION") == Some(OsStr::new(&args.partition));
    // With --export=NONE and the like only the inherited copy arrives.
    let copied = env.get(option::INHERITED).is_some();
    let tagged = matches!(option::given(), Given::Written(_)) || candidate && copied;
    if !tagged && !candidate {
        return;
    }
    let words = command(tagged, script(spank));
    let run = || run_agent(&words, &mut env, args);
    let reason = match panics::caught(run) {
        Some(error) => error.to_string(),
        None => "the plugin failed".to_owned(),
    };
    if tagged {
        say(&format!(
            "the agent {} can't be run on this node: {reason}; the script was not started",
            args.agent
        ));
        end(NO_AGENT);
    }
}

/// Becomes the agent; returns only if that fails.
fn run_agent(words: &[CString], env: &mut TaskEnv, args: &Args) -> io::Error {
    let agent = c_string(args.agent.as_str());
    // Asked first, so that nothing is prepared twice when the script runs.
    // SAFETY: the name is a C string.
    if unsafe { libc::access(agent.as_ptr(), libc::X_OK) } != 0 {
        return io::Error::last_os_error();
    }
    if let Err(code) = prepare::prepare(env) {
        end(code);
    }
    describe(env, args);
    execute(&agent, words, &env.to_c());
    io::Error::last_os_error()
}

/// The agent's command line.
fn command(tagged: bool, script: Vec<CString>) -> Vec<CString> {
    let mut words = vec![c"bftrainer".to_owned(), c"task".to_owned()];
    if tagged {
        words.push(c"--tagged".to_owned());
    }
    words.push(c"--".to_owned());
    words.extend(script);
    words
}

/// Tells the agent what only plugstack.conf says, whatever the user has set, and
/// hides the option from commands inside the job.
fn describe(env: &mut TaskEnv, args: &Args) {
    env.remove(option::INHERITED.as_bytes());
    match &args.controller {
        Some(controller) => env.set(b"BFT_CONTROLLER", controller.as_bytes()),
        None => env.remove(b"BFT_CONTROLLER"),
    }
    match args.controller_uid {
        Some(uid) => env.set(b"BFT_CONTROLLER_UID", uid.to_string().as_bytes()),
        None => env.remove(b"BFT_CONTROLLER_UID"),
    }
    if let Some(seconds) = args.orphan_wait_s {
        env.set(b"BFT_ORPHAN_WAIT_S", seconds.to_string().as_bytes());
    }
}

/// Becomes `program`; returns only if that fails.
fn execute(program: &CString, argv: &[CString], env: &[CString]) {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        let pointers = strings.iter().map(|string| string.as_ptr());
        pointers.chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays are null-terminated, and their strings outlive the
    // call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
}

fn end(code: c_int) -> ! {
    // SAFETY: ends this forked child as slurmstepd itself does, without its
    // parent's exit handlers.
    unsafe { libc::_exit(code) }
}

fn step_id(spank: sys::spank_t) -> Option<u32> {
    number(spank, sys::S_JOB_STEPID)
}

fn is_array_task(spank: sys::spank_t) -> bool {
    number(spank, sys::S_JOB_ARRAY_ID).is_some_and(|array| array != 0 && array != sys::NO_VAL)
}

fn number(spank: sys::spank_t, item: sys::spank_item) -> Option<u32> {
    let mut value = 0_u32;
    // SAFETY: both items that are asked for take one pointer to uint32_t.
    let code = unsafe { sys::spank_get_item(spank, item, &raw mut value) };
    (code == sys::SLURM_SUCCESS).then_some(value)
}

/// The script's command line: the spooled script and its arguments.
fn script(spank: sys::spank_t) -> Vec<CString> {
    let mut count: c_int = 0;
    let mut argv: *mut *mut c_char = std::ptr::null_mut();
    // SAFETY: the item takes a pointer to int and one to char**.
    unsafe { sys::spank_get_item(spank, sys::S_JOB_ARGV, &raw mut count, &raw mut argv) };
    // SAFETY: Slurm keeps the array null-terminated, for its own execve.
    unsafe { c_strings(argv) }
}

/// The job's environment as slurmstepd has made it for this task.
fn environment(spank: sys::spank_t) -> TaskEnv {
    let mut entries: *mut *mut c_char = std::ptr::null_mut();
    // SAFETY: the item takes a pointer to char**.
    unsafe { sys::spank_get_item(spank, sys::S_JOB_ENV, &raw mut entries) };
    // SAFETY: Slurm keeps the array null-terminated, for its own execve.
    unsafe { TaskEnv::from_c(entries) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_gets_the_script_behind_a_double_dash() {
        let script = || vec![c"/spool/slurm_script".to_owned(), c"--flag".to_owned()];
        assert_eq!(
            command(true, script()),
            [
                c"bftrainer",
                c"task",
                c"--tagged",
                c"--",
                c"/spool/slurm_script",
                c"--flag"
            ]
            .map(ToOwned::to_owned)
        );
        assert_eq!(
            command(false, script()),
            [
                c"bftrainer",
                c"task",
                c"--",
                c"/spool/slurm_script",
                c"--flag"
            ]
            .map(ToOwned::to_owned)
        );
    }

    #[test]
    fn plugstacks_word_counts_whatever_the_user_has_set() {
        let mut env = TaskEnv::default();
        env.set(b"BFT_CONTROLLER", b"evil:1");
        env.set(b"BFT_CONTROLLER_UID", b"1001");
        env.set(option::INHERITED.as_bytes(), b"nodes=1-4");
        env.set(b"MINE", b"kept");
        describe(
            &mut env,
            &Args::parse(["controller=ctl:6820", "partition=idle", "orphan_wait_s=30"]),
        );
        let mut expected = TaskEnv::default();
        expected.set(b"BFT_CONTROLLER", b"ctl:6820");
        expected.set(b"MINE", b"kept");
        expected.set(b"BFT_ORPHAN_WAIT_S", b"30");
        assert_eq!(env, expected);
    }
}
