//! The private folder of the agent's report socket, and those that killed agents
//! left behind.
//!
//! In each lies the file `agent`, which keeper and agent hold locked as long as
//! one of them lives. The host's name is written to it once it is locked: whoever
//! reads the name there and gets the lock knows that they are dead. Without the
//! name the folder is just being made, or its file system has no locks; with
//! another host's, its locks may not be seen here.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, gethostname, mkdtemp, unlinkat};

/// Longest path of a Unix socket in bytes, without the closing zero.
const MAX_SOCKET_PATH: usize = 107;

/// The socket's name in the folder.
pub const SOCKET: &str = "report";

/// The locked file's name in the folder.
const AGENT: &str = "agent";

/// Random characters at the end of a folder's name.
const RANDOM_CHARACTERS: usize = 6;

/// What an agent looks at most of a temporary folder that is full.
const MOST_ENTRIES: usize = 10_000;

/// Folders with our names that it opens at most.
const MOST_OPENED: usize = 1_000;

/// The folder of one agent.
#[derive(Debug)]
pub struct ReportFolder {
    path: PathBuf,
    /// Dropping it unlocks for the keeper and the agent.
    _lock: Option<Flock<File>>,
}

impl ReportFolder {
    /// Makes it in TMPDIR, or in /tmp when TMPDIR is too long for a socket's path.
    pub fn make(job_id: u32) -> io::Result<Self> {
        let temp = std::env::temp_dir();
        let mut last = io::Error::from(io::ErrorKind::InvalidFilename);
        for parent in [temp.as_path(), Path::new("/tmp")] {
            match Self::make_in(parent, job_id) {
                Ok(folder) => return Ok(folder),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn make_in(parent: &Path, job_id: u32) -> io::Result<Self> {
        let template = parent.join(format!("bft-{job_id}-XXXXXX"));
        if template.join(SOCKET).as_os_str().len() > MAX_SOCKET_PATH {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        // Of mode 0700.
        let path = mkdtemp(&template)?;
        // Without the lock nobody cleans up after a killed agent; no more is lost.
        let lock = lock(&path.join(AGENT)).ok();
        Ok(ReportFolder { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it; a folder that can't be removed is left.
    pub fn remove(self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Makes the file `agent`: locked first, then named.
fn lock(path: &Path) -> io::Result<Flock<File>> {
    let file = File::create_new(path)?;
    let mut locked =
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
    locked.write_all(&host_line()?)?;
    Ok(locked)
}

fn host_line() -> io::Result<Vec<u8>> {
    let mut line = gethostname()?.into_encoded_bytes();
    line.push(b'\n');
    Ok(line)
}

/// Removes the folders of this user's dead agents on this host from `parent`.
/// What can't be looked at or removed is left.
pub fn remove_left_in(parent: &Path) {
    remove_left_of(geteuid().as_raw(), parent);
}

fn remove_left_of(uid: u32, parent: &Path) {
    let Ok(entries) = parent.read_dir() else {
        return;
    };
    let names = entries.take(MOST_ENTRIES).flatten();
    let ours = names.filter(|entry| is_our_name(entry.file_name().as_encoded_bytes()));
    for entry in ours.take(MOST_OPENED) {
        let _ = remove_if_left(uid, &entry.path());
    }
}

/// Whether it is `bft-JOBID-XXXXXX`.
fn is_our_name(name: &[u8]) -> bool {
    let mut parts = name.splitn(3, |byte| *byte == b'-');
    let prefix = parts.next() == Some(b"bft");
    let mut is = |of: fn(&u8) -> bool| {
        let part = parts.next().unwrap_or_default();
        (!part.is_empty() && part.iter().all(of)).then_some(part.len())
    };
    let number = is(u8::is_ascii_digit);
    let random = is(u8::is_ascii_alphanumeric);
    prefix && number.is_some() && random == Some(RANDOM_CHARACTERS)
}

/// Removes one folder if its agent has been of `uid` and this host, and is dead.
/// All that it does in the folder it does in the one that it has opened.
fn remove_if_left(uid: u32, path: &Path) -> io::Result<()> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let folder = openat(AT_FDCWD, path, flags | OFlag::O_DIRECTORY, Mode::empty())?;
    let folder = File::from(folder);
    if folder.metadata()?.uid() != uid {
        return Ok(());
    }
    // For writing, as locks of network file systems ask for.
    let agent = openat(&folder, AGENT, flags | OFlag::O_RDWR, Mode::empty())?;
    let Some(_lock) = lock_of_dead(agent.into())? else {
        return Ok(());
    };
    if !has_only_ours(folder.try_clone()?.into())? {
        return Ok(());
    }
    // The file last: who is interrupted here leaves what the next one finds.
    for name in [SOCKET, AGENT] {
        match unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::errno::Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    std::fs::remove_dir(path)
}

/// The lock that an agent of this host held until it died; `None` when it lives, or
/// never came so far.
fn lock_of_dead(agent: File) -> io::Result<Option<Flock<File>>> {
    let own = host_line()?;
    let mut line = Vec::new();
    (&agent).take(own.len() as u64 + 1).read_to_end(&mut line)?;
    if line != own {
        return Ok(None);
    }
    Ok(Flock::lock(agent, FlockArg::LockExclusiveNonblock).ok())
}

fn has_only_ours(folder: OwnedFd) -> io::Result<bool> {
    for entry in Dir::from_fd(folder)?.iter() {
        let name = entry?;
        let name = name.file_name().to_bytes();
        let known = [b".".as_slice(), b"..", SOCKET.as_bytes(), AGENT.as_bytes()];
        if !known.contains(&name) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixDatagram;
    use tempfile::{TempDir, tempdir};

    /// What an agent that was killed leaves.
    fn dead(parent: &Path) -> PathBuf {
        let folder = ReportFolder::make_in(parent, 41).unwrap();
        UnixDatagram::bind(folder.path().join(SOCKET)).unwrap();
        folder.path().to_owned()
    }

    fn names(parent: &TempDir) -> Vec<PathBuf> {
        let entries = parent.path().read_dir().unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_whose_agent_was_killed_is_removed() {
        let parent = tempdir().unwrap();
        dead(parent.path());
        let unbound = ReportFolder::make_in(parent.path(), 42).unwrap();
        drop(unbound);
        assert_eq!(names(&parent).len(), 2);
        remove_left_in(parent.path());
        assert!(names(&parent).is_empty());
    }

    #[test]
    fn living_agents_keep_theirs_bound_or_not() {
        let parent = tempdir().unwrap();
        let bound = ReportFolder::make_in(parent.path(), 41).unwrap();
        let socket = UnixDatagram::bind(bound.path().join(SOCKET)).unwrap();
        let unbound = ReportFolder::make_in(parent.path(), 41).unwrap();
        let before = names(&parent);
        remove_left_in(parent.path());
        assert_eq!(names(&parent), before);
        assert!(bound.path().join(AGENT).exists() && unbound.path().join(AGENT).exists());
        socket.send_to(b"x", bound.path().join(SOCKET)).unwrap();
    }

    #[test]
    fn a_folder_that_is_just_being_made_is_kept() {
        let parent = tempdir().unwrap();
        // As mkdtemp leaves it, with the file, and with a part of the name.
        for (name, line) in [
            ("bft-1-aaaaaa", None),
            ("bft-1-bbbbbb", Some("")),
            ("bft-1-cccccc", Some(&*host_line_without_end())),
        ] {
            let folder = parent.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            if let Some(line) = line {
                std::fs::write(folder.join(AGENT), line).unwrap();
            }
        }
        let before = names(&parent);
        remove_left_in(parent.path());
        assert_eq!(names(&parent), before);
    }

    fn host_line_without_end() -> String {
        let line = String::from_utf8(host_line().unwrap()).unwrap();
        line.trim_end().to_owned()
    }

    #[test]
    fn other_users_and_other_hosts_folders_are_kept() {
        let parent = tempdir().unwrap();
        let of_another_user = dead(parent.path());
        remove_left_of(geteuid().as_raw() + 1, parent.path());
        assert!(of_another_user.join(SOCKET).exists());
        let line = [b"x".as_slice(), &host_line().unwrap()].concat();
        std::fs::write(of_another_user.join(AGENT), line).unwrap();
        remove_left_in(parent.path());
        assert!(of_another_user.join(SOCKET).exists());
    }

    #[test]
    fn links_other_names_and_folders_with_anything_else_are_kept() {
        let (parent, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
        let target = dead(elsewhere.path());
        symlink(&target, parent.path().join("bft-1-linked")).unwrap();
        for name in [
            "bft-1-short",
            "bft-1-longers",
            "bft-1-ab_def",
            "bft-x-abcdef",
            "bft--abcdef",
            "bft-abcdef",
            "abft-1-abcdef",
            "bft-1-abcdef-1",
        ] {
            std::fs::rename(dead(parent.path()), parent.path().join(name)).unwrap();
        }
        let file = dead(parent.path()).join("results");
        std::fs::write(&file, "of weeks").unwrap();
        let linked = dead(parent.path());
        std::fs::rename(linked.join(AGENT), elsewhere.path().join("moved")).unwrap();
        symlink(elsewhere.path().join("moved"), linked.join(AGENT)).unwrap();

        let before = names(&parent);
        remove_left_in(parent.path());
        assert_eq!(names(&parent), before);
        assert!(target.join(SOCKET).exists() && file.exists() && linked.join(SOCKET).exists());
    }
}
