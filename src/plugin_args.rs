//! The plugin's line in plugstack.conf: `controller=HOST:PORT partition=NAME
//! agent=/PATH controller_uid=N orphan_wait_s=N`. Problems are collected, not printed: slurmd
//! logs them once, and sbatch says them to who asks for a trainer.

use std::ffi::{CStr, c_char, c_int};

/// The partition that holds the trainers unless `partition=` says otherwise.
const DEFAULT_PARTITION: &str = "bftrainer";

/// The worker agent unless `agent=` says otherwise.
const DEFAULT_AGENT: &str = "/usr/bin/bftrainer";

/// What the line says.
#[derive(Debug, PartialEq)]
pub struct Args {
    /// `HOST:PORT` of the controller; without it no hints are sent.
    pub controller: Option<String>,
    /// The partition that holds the trainers.
    pub partition: String,
    /// Absolute path of the worker agent.
    pub agent: String,
    /// The uid the controller proves to agents, if not SlurmUser's.
    pub controller_uid: Option<u32>,
    /// How long a task without a controller waits, seconds; `None` for the agent's
    /// default.
    pub orphan_wait_s: Option<u32>,
    /// A sentence for each argument that was not understood.
    pub problems: Vec<String>,
}

impl Args {
    /// The arguments as Slurm passes them.
    ///
    /// # Safety
    /// `argv` holds `argc` C strings.
    pub unsafe fn from_c(argc: c_int, argv: *mut *mut c_char) -> Self {
        let count = usize::try_from(argc).unwrap_or(0);
        let words = (0..count).filter_map(|index| {
            // SAFETY: the caller's promise: `argv` has `argc` entries.
            let word = unsafe { *argv.add(index) };
            // SAFETY: as above, each entry is a C string.
            (!word.is_null()).then(|| unsafe { CStr::from_ptr(word) })
        });
        Self::parse(words.map(CStr::to_string_lossy))
    }

    /// Reads the arguments one by one; the last of two equal keys counts.
    pub fn parse(words: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut args = Args {
            controller: None,
            partition: DEFAULT_PARTITION.to_owned(),
            agent: DEFAULT_AGENT.to_owned(),
            controller_uid: None,
            orphan_wait_s: None,
            problems: Vec::new(),
        };
        for word in words {
            let word = word.as_ref();
            if let Err(expected) = args.set(word) {
                args.problems.push(format!(
                    "plugstack.conf: \"{}\": expected {expected}",
                    word.escape_debug()
                ));
            }
        }
        args
    }

    fn set(&mut self, word: &str) -> Result<(), &'static str> {
        const KEYS: &str = "controller=HOST:PORT, partition=NAME, agent=/PATH, controller_uid=N or \
                            orphan_wait_s=N";
        let (key, value) = word.split_once('=').ok_or(KEYS)?;
        match key {
            "controller" => {
                let (host, port) = value.rsplit_once(':').ok_or("controller=HOST:PORT")?;
                let port: u16 = port.parse().map_err(|_| "a port from 1 to 65535")?;
                if host.is_empty() || port == 0 {
                    return Err("controller=HOST:PORT");
                }
                self.controller = Some(value.to_owned());
            }
            "partition" if value.is_empty() || value.contains(',') => {
                return Err("the name of one partition");
            }
            "partition" => self.partition = value.to_owned(),
            "agent" if !value.starts_with('/') => return Err("an absolute path"),
            "agent" => self.agent = value.to_owned(),
            "controller_uid" => {
                let uid = value.parse().map_err(|_| "a number")?;
                self.controller_uid = Some(uid);
            }
            "orphan_wait_s" => {
                let seconds = value.parse().map_err(|_| "a whole number of seconds")?;
                self.orphan_wait_s = Some(seconds);
            }
            _ => return Err(KEYS),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_line_is_read() {
        let args = Args::parse([
            "controller=[::1]:6820",
            "partition=idle",
            "agent=/opt/bft/bftrainer",
            "controller_uid=64030",
            "orphan_wait_s=30",
        ]);
        assert_eq!(args.controller.as_deref(), Some("[::1]:6820"));
        assert_eq!(args.partition, "idle");
        assert_eq!(args.agent, "/opt/bft/bftrainer");
        assert_eq!(args.controller_uid, Some(64_030));
        assert_eq!(args.orphan_wait_s, Some(30));
        assert_eq!(args.problems, Vec::<String>::new());
    }

    #[test]
    fn an_empty_line_means_the_defaults() {
        let args = Args::parse([""; 0]);
        assert_eq!(args.controller, None);
        assert_eq!(args.partition, "bftrainer");
        assert_eq!(args.agent, "/usr/bin/bftrainer");
    }

    #[test]
    fn each_bad_argument_is_named_and_the_others_still_count() {
        let args = Args::parse([
            "controller=host",
            "controller=host:0",
            "controller=:6820",
            "partition=",
            "partition=a,b",
            "agent=bftrainer",
            "controller_uid=slurm",
            "orphan_wait_s=1.5",
            "contoller=host:1",
            "verbose",
            "partition=idle",
        ]);
        assert_eq!(args.problems.len(), 10, "{:?}", args.problems);
        assert!(args.problems[8].contains("contoller=host:1"));
        assert!(args.problems[8].contains("expected controller=HOST:PORT"));
        assert_eq!(args.partition, "idle");
        assert_eq!(args.controller, None);
    }
}
