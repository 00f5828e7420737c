//! Descendants of a subreaper: found in /proc, killed, reaped. Whoever is a
//! subreaper inherits each orphan below it, so no double fork and no new
//! session escapes, and "no child left" means "no descendant left".

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use libc::pid_t;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

/// Makes this process the parent of every orphan below it.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Has `signal` sent to this process when its parent dies; an error when the
/// parent is no longer `parent`. Safe between fork and exec.
pub fn die_with_parent(signal: Signal, parent: pid_t) -> io::Result<()> {
    prctl::set_pdeathsig(signal)?;
    if parent_pid() == parent {
        Ok(())
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// This process's id.
pub fn own_pid() -> pid_t {
    getpid().as_raw()
}

/// The parent's id.
pub fn parent_pid() -> pid_t {
    getppid().as_raw()
}

/// Sends `signal` to `pid`; a negative `pid` names a process group. Whether it
/// existed. Never 0, -1 or 1, which would reach far beyond our own.
pub fn signal(pid: pid_t, signal: i32) -> bool {
    if (-1..=1).contains(&pid) {
        return false;
    }
    // SAFETY: takes integers only and touches no memory.
    let sent = unsafe { libc::kill(pid, signal) } == 0;
    sent || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Sends `signal` to those descendants of this process that catch it: the others may not have
/// come so far yet, and would die of it.
pub fn notify_descendants(number: i32) {
    for pid in descendants(own_pid()) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        if status.is_ok_and(|status| catches(&status, number)) {
            signal(pid, number);
        }
    }
}

/// Whether a process with this /proc/PID/status has a handler for a signal.
fn catches(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (number - 1)) != 0)
}

/// All living descendants of `root`, zombies left out.
pub fn descendants(root: pid_t) -> Vec<pid_t> {
    let mut children: HashMap<pid_t, Vec<Process>> = HashMap::new();
    for process in all_processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for process in children.remove(&parent).into_iter().flatten() {
            open.push(process.pid);
            if !process.is_zombie {
                found.push(process.pid);
            }
        }
    }
    found
}

/// Kills all descendants of this process that can be seen now, and says how
/// many there were. New ones may appear meanwhile: call again until none is left.
pub fn kill_descendants() -> usize {
    let found = descendants(own_pid());
    for pid in &found {
        signal(*pid, libc::SIGKILL);
    }
    found.len()
}

/// What [`reap`] found.
#[derive(Debug, PartialEq)]
pub enum Reaped {
    /// A child that has ended.
    Child(pid_t, ExitStatus),
    /// Children live, none has ended.
    NoneEnded,
    /// There is no child, hence no descendant.
    NoChildren,
}

/// Takes the exit status of one child that has ended, without waiting.
pub fn reap() -> Reaped {
    let mut status = 0;
    loop {
        // nix knows no real-time signals, of which a child may die.
        // SAFETY: `status` is a valid out-pointer.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        match pid {
            0 => return Reaped::NoneEnded,
            1.. => return Reaped::Child(pid, ExitStatus::from_raw(status)),
            _ => {
                if io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) {
                    return Reaped::NoChildren;
                }
            }
        }
    }
}

/// Reaps until no child is left, at most `limit`; blocks.
pub fn reap_all(limit: std::time::Duration) {
    let give_up = std::time::Instant::now() + limit;
    while reap() != Reaped::NoChildren && std::time::Instant::now() < give_up {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A status as a shell gives it: 128 + signal for a signal.
pub fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}

struct Process {
    pid: pid_t,
    parent: pid_t,
    is_zombie: bool,
}

fn all_processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            parse_stat(pid, &stat)
        })
        .collect()
}

/// State and parent in /proc/PID/stat; the name before them may hold anything.
fn parse_stat(pid: pid_t, stat: &[u8]) -> Option<Process> {
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    Some(Process {
        pid,
        parent: fields.next()?.parse().ok()?,
        is_zombie: matches!(state, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_confuse_stat() {
        let process = parse_stat(7, b"7 (a) Z 9 (b) S 5 6 7").unwrap();
        assert_eq!((process.parent, process.is_zombie), (5, false));
        assert!(parse_stat(7, b"7 (a) Z 5 6").unwrap().is_zombie);
        assert!(parse_stat(7, b"").is_none());
    }

    #[test]
    fn the_mask_of_caught_signals_is_read() {
        let status = "Name:\tx\nSigIgn:\t0000000000000800\nSigCgt:\t0000000000000200\n";
        assert!(catches(status, libc::SIGUSR1));
        assert!(!catches(status, libc::SIGUSR2));
        assert!(!catches("", libc::SIGUSR1));
    }

    #[test]
    fn signals_never_reach_beyond_our_own() {
        for pid in [-1, 0, 1] {
            assert!(!signal(pid, 0));
        }
        assert!(signal(own_pid(), 0));
    }
}
