//! The control folder `<submit directory>/.bftrainer-<A>/`, shared by all nodes
//! of a trainer: fencing number, verdict, host file. Each file is replaced by
//! write and rename, so that a reader sees an old one or a new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use bftrainer::wire::Member;
use thiserror::Error;

use super::log::say;

/// Longest file of ours that is read, in bytes.
const MAX_BYTES: u64 = 4096;

/// Longest host file that is read, in bytes.
const MAX_HOSTFILE_BYTES: u64 = 1024 * 1024;

/// How a host file begins, before the generation's number.
const HOSTFILE_HEAD: &str = "# generation ";

/// A generation above this is damage.
const MOST_GENERATIONS: u64 = 1 << 53;

/// Each agent tells of a damaged file once.
static DAMAGE_TOLD: Once = Once::new();

/// One trainer's control folder.
#[derive(Clone, Debug)]
pub struct ControlFolder {
    path: PathBuf,
}

/// What the folder says, whoever it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Contents {
    /// The submit time of the trainer that it belongs to, epoch seconds.
    pub submit_time_s: Option<i64>,
    /// The newest generation, 0 when none has started.
    pub generation: u64,
    /// The verdict, if the trainer has ended.
    pub verdict: Option<Verdict>,
}

/// The file `finished`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The trainer's exit code.
    pub exit_code: i32,
    /// The trainer's submit time, epoch seconds.
    pub submit_time_s: i64,
}

/// Why a generation can't start from this folder.
#[derive(Debug, Error)]
pub enum FolderError {
    /// A newer one, or this one, was started before.
    #[error("generation {newest} was started already")]
    Fenced {
        /// The number in the folder.
        newest: u64,
    },
    /// The folder can't be used.
    #[error("{action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
}

impl ControlFolder {
    /// The folder of trainer `array_job_id`, which need not exist.
    pub fn new(submit_dir: &Path, array_job_id: u32) -> Self {
        ControlFolder {
            path: submit_dir.join(format!(".bftrainer-{array_job_id}")),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What it says; what is missing or damaged is left out.
    pub fn read(&self) -> Contents {
        // Opening the folder makes NFS look for files that were not there before.
        let _ = File::open(&self.path);
        Contents {
            submit_time_s: self.value("trainer", "submit_time="),
            generation: self.generation(),
            verdict: self.verdict(),
        }
    }

    /// The newest generation; 0 when none is known. A number that no count of
    /// restarts reaches is damage, and must not fence the trainer for ever.
    pub fn generation(&self) -> u64 {
        let number = self
            .text("generation")
            .and_then(|text| text.trim().parse().ok());
        match number {
            Some(damaged) if damaged > MOST_GENERATIONS => {
                DAMAGE_TOLD.call_once(|| {
                    let path = self.file("generation");
                    say!(
                        "{} holds {damaged}, which is no generation: taken as none",
                        path.display()
                    );
                });
                0
            }
            number => number.unwrap_or(0),
        }
    }

    /// The verdict, whichever trainer's it is.
    pub fn verdict(&self) -> Option<Verdict> {
        Some(Verdict {
            exit_code: self.value("finished", "exit_code=")?,
            submit_time_s: self.value("finished", "submit_time=")?,
        })
    }

    /// Makes the folder this trainer's, for the node of rank 0 before its ranks
    /// start: one that an earlier trainer of the same number left behind is
    /// moved aside, whole.
    pub fn own(&self, submit_time_s: i64) -> Result<(), FolderError> {
        let contents = self.read();
        let is_foreign = match contents.submit_time_s {
            Some(other) => other != submit_time_s,
            None => contents.generation > 0 || contents.verdict.is_some(),
        };
        if is_foreign {
            let aside = self.aside();
            match fs::rename(&self.path, &aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.failed("moving aside", &self.path, error));
                }
                _ => {}
            }
        }
        self.make(&self.path)?;
        if is_foreign || contents.submit_time_s.is_none() {
            self.replace("trainer", &format!("submit_time={submit_time_s}\n"))?;
        }
        Ok(())
    }

    /// Makes `generation` the newest; refused when it is not above the one that
    /// the folder knows.
    pub fn claim(&self, generation: u64) -> Result<(), FolderError> {
        let newest = self.generation();
        if newest >= generation {
            return Err(FolderError::Fenced { newest });
        }
        self.replace("generation", &format!("{generation}\n"))
    }

    /// Refused when the folder knows a generation above `generation`.
    pub fn check(&self, generation: u64) -> Result<(), FolderError> {
        match self.generation() {
            newest if newest > generation => Err(FolderError::Fenced { newest }),
            _ => Ok(()),
        }
    }

    /// Makes the folder for checkpoints.
    pub fn make_checkpoints(&self) -> Result<(), FolderError> {
        self.make(&self.file("ckpt"))
    }

    /// The newest generation whose host file leaves `node` out; 0 when the file names it, or
    /// none is there.
    pub fn generation_without(&self, node: &str) -> u64 {
        let Some(text) = self.text_of("hostfile", MAX_HOSTFILE_BYTES) else {
            return 0;
        };
        let mut hosts = text.lines().filter(|line| !line.starts_with('#'));
        let is_named =
            hosts.any(|line| line.rsplit_once(':').is_some_and(|(host, _)| host == node));
        match is_named {
            true => 0,
            false => hostfile_generation(&text),
        }
    }

    /// Writes the host file of `generation`: a `host:slots` a line. Every node
    /// writes the same, so that it is there before its ranks are; one that is
    /// late leaves a newer one alone.
    pub fn write_hostfile(
        &self,
        generation: u64,
        members: &[Member],
        slots: u32,
    ) -> Result<(), FolderError> {
        let mut text = format!("{HOSTFILE_HEAD}{generation}\n");
        for member in members {
            text.push_str(&format!("{}:{slots}\n", member.node));
        }
        match self.text_of("hostfile", MAX_HOSTFILE_BYTES) {
            Some(present) if present == text => Ok(()),
            Some(present)
                if (generation + 1..=self.generation())
                    .contains(&hostfile_generation(&present)) =>
            {
                Ok(())
            }
            _ => self.replace("hostfile", &text),
        }
    }

    /// Writes the verdict, durably.
    pub fn write_finished(&self, verdict: Verdict) -> Result<(), FolderError> {
        let Verdict {
            exit_code,
            submit_time_s,
        } = verdict;
        let text = format!("exit_code={exit_code}\nsubmit_time={submit_time_s}\n");
        self.replace("finished", &text)
    }

    fn make(&self, path: &Path) -> Result<(), FolderError> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(self.failed("making", path, error))
            }
            _ => Ok(()),
        }
    }

    /// A name beside the folder that is not taken.
    fn aside(&self) -> PathBuf {
        let now_s = crate::clock::now_s() as u64;
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".stale-{now_s}"));
        let mut path = PathBuf::from(&name);
        for turn in 2.. {
            if !path.exists() {
                break;
            }
            let mut next = name.clone();
            next.push(format!("-{turn}"));
            path = PathBuf::from(next);
        }
        path
    }

    fn text(&self, name: &str) -> Option<String> {
        self.text_of(name, MAX_BYTES)
    }

    fn text_of(&self, name: &str, max_bytes: u64) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.file(name)).ok()?;
        io::Read::read_to_string(&mut io::Read::take(file, max_bytes), &mut text).ok()?;
        Some(text)
    }

    fn value<T: std::str::FromStr>(&self, name: &str, key: &str) -> Option<T> {
        let text = self.text(name)?;
        let value = text.lines().find_map(|line| line.strip_prefix(key))?;
        value.trim().parse().ok()
    }

    fn replace(&self, name: &str, text: &str) -> Result<(), FolderError> {
        let host = nix::unistd::gethostname().unwrap_or_default();
        let pid = std::process::id();
        let draft = self.file(&format!(".{name}.{}.{pid}", host.to_string_lossy()));
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, self.file(name))?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&draft);
            self.failed("writing", &self.file(name), error)
        })
    }

    fn failed(&self, action: &'static str, path: &Path, error: io::Error) -> FolderError {
        FolderError::Io {
            action,
            path: path.to_owned(),
            error,
        }
    }
}

/// The generation whose host file this is; 0 when it does not say.
fn hostfile_generation(text: &str) -> u64 {
    let first = text.lines().next();
    let number = first.and_then(|line| line.strip_prefix(HOSTFILE_HEAD));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_claimed_once_and_only_upwards() {
        let submit_dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(submit_dir.path(), 7);
        folder.own(100).unwrap();
        folder.claim(3).unwrap();
        for late in [1, 3] {
            assert!(matches!(
                folder.claim(late),
                Err(FolderError::Fenced { newest: 3 })
            ));
        }
        assert!(folder.check(3).is_ok());
        assert!(folder.check(2).is_err());
        assert_eq!(folder.read().generation, 3);
    }

    #[test]
    fn the_folder_of_an_earlier_trainer_is_moved_aside_whole() {
        let submit_dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(submit_dir.path(), 7);
        folder.own(100).unwrap();
        folder.claim(9).unwrap();
        folder.make_checkpoints().unwrap();
        folder
            .write_finished(Verdict {
                exit_code: 0,
                submit_time_s: 100,
            })
            .unwrap();
        folder.own(200).unwrap();
        let expected = Contents {
            submit_time_s: Some(200),
            ..Contents::default()
        };
        assert_eq!(folder.read(), expected);
        assert!(!folder.file("ckpt").exists());
        folder.claim(1).unwrap();
        folder.own(200).unwrap();
        assert_eq!(folder.read().generation, 1);
        let stale = fs::read_dir(submit_dir.path())
            .unwrap()
            .flatten()
            .find(|entry| entry.file_name().to_string_lossy().contains(".stale-"))
            .unwrap();
        assert!(stale.path().join("ckpt").is_dir());
    }

    #[test]
    fn a_users_own_folder_of_that_name_is_kept() {
        let submit_dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(submit_dir.path(), 7);
        fs::create_dir_all(folder.file("ckpt/mine")).unwrap();
        folder.own(100).unwrap();
        assert!(folder.file("ckpt/mine").is_dir());
    }

    #[test]
    fn the_host_file_names_its_generation_and_each_members_slots() {
        let submit_dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(submit_dir.path(), 7);
        folder.own(100).unwrap();
        let members = ["n1", "n2"].map(|node| Member {
            node: node.into(),
            address: "10.0.0.1".into(),
        });
        folder.write_hostfile(4, &members, 2).unwrap();
        let read = || fs::read_to_string(folder.file("hostfile")).unwrap();
        assert_eq!(read(), "# generation 4\nn1:2\nn2:2\n");
        assert_eq!(folder.generation_without("n2"), 0);
        assert_eq!(folder.generation_without("n"), 4);
        folder.claim(4).unwrap();
        folder.write_hostfile(3, &members[..1], 2).unwrap();
        assert_eq!(read(), "# generation 4\nn1:2\nn2:2\n");
        folder.write_hostfile(5, &members[..1], 2).unwrap();
        assert_eq!(read(), "# generation 5\nn1:2\n");
    }

    #[test]
    fn damaged_files_say_nothing() {
        let submit_dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(submit_dir.path(), 7);
        assert_eq!(folder.read(), Contents::default());
        fs::create_dir(folder.path()).unwrap();
        for name in ["generation", "finished", "trainer"] {
            fs::write(folder.file(name), [0xff, 0xfe, b'\n']).unwrap();
        }
        assert_eq!(folder.read(), Contents::default());
        for damaged in [u64::MAX, (1 << 53) + 1] {
            fs::write(folder.file("generation"), format!("{damaged}\n")).unwrap();
            assert_eq!(folder.generation(), 0);
            folder.claim(3).unwrap();
            assert_eq!(folder.generation(), 3);
        }
    }
}
