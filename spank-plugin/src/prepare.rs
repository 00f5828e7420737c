//! What slurmstepd still does to a task between the plugins' task_init and its
//! own `execve`, for a task that we execute instead: the site's TaskProlog,
//! TMPDIR, and the limits that the submitting shell had.

use std::ffi::{CStr, OsStr};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::slurm::{self, say};
use crate::task_env::TaskEnv;

/// Does it all, in slurmstepd's order; `Err` is the code to end the task with.
pub fn prepare(env: &mut TaskEnv) -> Result<(), i32> {
    if let Some(script) = task_prolog() {
        run_task_prolog(&script, env)?;
    }
    make_tmpdir(env);
    set_limits(env);
    Ok(())
}

/// slurm.conf's TaskProlog.
fn task_prolog() -> Option<Vec<u8>> {
    let script = slurm::conf()?.task_prolog;
    if script.is_null() {
        return None;
    }
    // SAFETY: a string of Slurm's configuration is null or a C string.
    let script = unsafe { CStr::from_ptr(script) }.to_bytes();
    (!script.is_empty()).then(|| script.to_vec())
}

/// Runs the script and applies what it says on standard output, as slurm.conf(5)
/// describes. A failing one ends the task with its exit code.
fn run_task_prolog(script: &[u8], env: &mut TaskEnv) -> Result<(), i32> {
    let script = OsStr::from_bytes(script);
    let failed = |reason: String| {
        say(&format!("TaskProlog {}: {reason}", script.display()));
    };
    env.set(b"SLURM_SCRIPT_CONTEXT", b"prolog_task");
    let child = Command::new(script)
        .env_clear()
        .envs(env.pairs())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            failed(error.to_string());
            return Err(1);
        }
    };
    if let Some(output) = child.stdout.take() {
        let lines = BufReader::new(output).split(b'\n');
        for line in lines.map_while(Result::ok) {
            apply(&line, env, &mut std::io::stdout());
        }
    }
    let status = child.wait();
    // SAFETY: ends what the script left behind in its own process group.
    unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            failed(status.to_string());
            Err(status.code().unwrap_or(128 + status.signal().unwrap_or(0)))
        }
        Err(error) => {
            failed(error.to_string());
            Err(1)
        }
    }
}

/// Applies one line: `export NAME=value`, `unset NAME`, `print TEXT`; others
/// mean nothing.
fn apply(line: &[u8], env: &mut TaskEnv, stdout: &mut impl Write) {
    if let Some(text) = line.strip_prefix(b"print ") {
        let _ = stdout.write_all(text.trim_ascii_start());
        let _ = stdout.write_all(b"\n").and_then(|()| stdout.flush());
    } else if let Some(pair) = line.strip_prefix(b"export ") {
        if let Some(at) = pair.iter().position(|byte| *byte == b'=') {
            env.set(pair[..at].trim_ascii(), &pair[at + 1..]);
        }
    } else if let Some(name) = line.strip_prefix(b"unset ") {
        env.remove(name.trim_ascii());
    }
}

/// A task has a TMPDIR: the one it names, made if it is missing, else /tmp.
fn make_tmpdir(env: &mut TaskEnv) {
    const FALLBACK: &str = "/tmp";
    let Some(wanted) = env.get("TMPDIR") else {
        env.set(b"TMPDIR", FALLBACK.as_bytes());
        return;
    };
    let wanted = Path::new(wanted);
    let made = std::fs::DirBuilder::new().mode(0o700).create(wanted);
    if made.is_err() && !is_usable(wanted) {
        say(&format!(
            "TMPDIR {} can't be made or used: set to {FALLBACK}",
            wanted.display()
        ));
        env.set(b"TMPDIR", FALLBACK.as_bytes());
    }
}

fn is_usable(folder: &Path) -> bool {
    let name = slurm::c_string(folder.as_os_str().as_bytes());
    // SAFETY: the name is a C string.
    folder.is_dir() && unsafe { libc::access(name.as_ptr(), libc::W_OK | libc::X_OK) } == 0
}

/// The limits that sbatch may pass on.
const LIMITS: [(&str, libc::__rlimit_resource_t); 10] = [
    ("SLURM_RLIMIT_CPU", libc::RLIMIT_CPU),
    ("SLURM_RLIMIT_FSIZE", libc::RLIMIT_FSIZE),
    ("SLURM_RLIMIT_DATA", libc::RLIMIT_DATA),
    ("SLURM_RLIMIT_STACK", libc::RLIMIT_STACK),
    ("SLURM_RLIMIT_CORE", libc::RLIMIT_CORE),
    ("SLURM_RLIMIT_RSS", libc::RLIMIT_RSS),
    ("SLURM_RLIMIT_NPROC", libc::RLIMIT_NPROC),
    ("SLURM_RLIMIT_NOFILE", libc::RLIMIT_NOFILE),
    ("SLURM_RLIMIT_MEMLOCK", libc::RLIMIT_MEMLOCK),
    ("SLURM_RLIMIT_AS", libc::RLIMIT_AS),
];

/// sbatch passes soft limits in the environment, where the task must not see
/// them; a `U` before the number means that the user asked with --propagate.
fn set_limits(env: &mut TaskEnv) {
    for (name, resource) in LIMITS {
        let Some(value) = env.get(name) else { continue };
        let value = value.to_string_lossy().into_owned();
        env.remove(name.as_bytes());
        let (wanted, asked) = match value.strip_prefix('U') {
            Some(wanted) => (wanted, true),
            None => (value.as_str(), false),
        };
        let is_set = wanted
            .parse()
            .is_ok_and(|soft| set_soft_limit(resource, soft));
        if asked && !is_set {
            say(&format!("{name}={value} can't be set on this node"));
        }
    }
}

fn set_soft_limit(resource: libc::__rlimit_resource_t, soft: u64) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the struct is valid for both calls.
    unsafe {
        libc::getrlimit(resource, &mut limit) == 0 && {
            limit.rlim_cur = soft;
            libc::setrlimit(resource, &limit) == 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> TaskEnv {
        let mut env = TaskEnv::default();
        for (name, value) in pairs {
            env.set(name.as_bytes(), value.as_bytes());
        }
        env
    }

    #[test]
    fn a_task_prologs_lines_are_applied() {
        let mut env = env(&[("HOME", "/home/a"), ("KEEP", "1")]);
        let mut stdout = Vec::new();
        for line in [
            &b"export   SITE = a b"[..],
            b"export EMPTY=",
            b"export NOTHING",
            b"unset  HOME",
            b"print   hello  ",
            b"noise",
        ] {
            apply(line, &mut env, &mut stdout);
        }
        let expected = [("KEEP", "1"), ("SITE", " a b"), ("EMPTY", "")];
        assert_eq!(env, self::env(&expected));
        assert_eq!(stdout, b"hello  \n");
    }

    #[test]
    fn a_missing_tmpdir_is_made_and_an_impossible_one_replaced() {
        let folder = std::env::temp_dir().join(format!("bft-prepare-{}", std::process::id()));
        let mut good = env(&[("TMPDIR", folder.to_str().unwrap())]);
        make_tmpdir(&mut good);
        make_tmpdir(&mut good);
        assert_eq!(good.get("TMPDIR"), Some(folder.as_os_str()));
        std::fs::remove_dir(&folder).unwrap();

        for pairs in [&[("TMPDIR", "/proc/none")][..], &[]] {
            let mut other = env(pairs);
            make_tmpdir(&mut other);
            assert_eq!(other.get("TMPDIR"), Some(OsStr::new("/tmp")));
        }
    }

    #[test]
    fn limits_leave_the_environment_and_bad_ones_change_nothing() {
        let mut env = env(&[
            ("SLURM_RLIMIT_CORE", "0"),
            ("SLURM_RLIMIT_AS", "many"),
            ("SLURM_RLIMIT_OTHER", "1"),
        ]);
        set_limits(&mut env);
        assert_eq!(env, self::env(&[("SLURM_RLIMIT_OTHER", "1")]));
        let mut core = libc::rlimit {
            rlim_cur: 1,
            rlim_max: 1,
        };
        // SAFETY: the struct is valid for the call.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &mut core) }, 0);
        assert_eq!(core.rlim_cur, 0);
    }
}
