//! What a process has used of processors and memory, from /proc (proc(5)).

use std::fs;
use std::path::Path;

/// Seconds of a processor, user and system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// All threads, those too that have ended.
    pub all_s: f64,
    /// The first thread.
    pub main_s: f64,
    /// The threads named `slurm`.
    pub slurm_s: f64,
    /// The threads that are not to be counted, which are in `all_s`.
    pub foreign_s: f64,
}

pub fn used(pid: u32, slurm: &str, foreign: &[&str]) -> Used {
    let folder = format!("/proc/{pid}");
    let mut used = Used {
        all_s: cpu_s(Path::new(&folder)).map_or(0.0, |(_, seconds)| seconds),
        ..Used::default()
    };
    let threads = fs::read_dir(format!("{folder}/task")).into_iter().flatten();
    for thread in threads.flatten() {
        let Some((name, seconds)) = cpu_s(&thread.path()) else {
            continue;
        };
        if foreign.contains(&name.as_str()) {
            used.foreign_s += seconds;
        } else if name == slurm {
            used.slurm_s += seconds;
        } else if thread.file_name().to_str() == Some(&pid.to_string()) {
            used.main_s += seconds;
        }
    }
    used
}

/// Name and seconds of the process or thread whose folder this is.
fn cpu_s(folder: &Path) -> Option<(String, f64)> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // utime and stime are the 14th and 15th field; the state, first here, is the third.
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    Some((
        name.to_owned(),
        (ticks(11)? + ticks(12)?) / per_second as f64,
    ))
}

/// The most memory that was resident, MB.
pub fn peak_memory_mb(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}
