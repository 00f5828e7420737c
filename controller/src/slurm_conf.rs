//! The two facts of slurm.conf that an agent or a command needs before it can
//! speak to the controller: SlurmUser and munged's socket. The file is read as
//! text, because libslurm ends the process when it can't find it.

use std::path::{Path, PathBuf};

/// Used when SLURM_CONF is not set; the second is Debian's.
const DEFAULT_PATHS: [&str; 2] = ["/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"];

/// How deep `Include` lines are followed.
const MAX_INCLUDES: u32 = 4;

/// What slurm.conf says about authentication.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlurmConf {
    /// SlurmUser, a name or a uid; Slurm's default is root.
    pub slurm_user: Option<String>,
    /// `socket=` of AuthInfo.
    pub munge_socket: Option<PathBuf>,
}

impl SlurmConf {
    /// The site's slurm.conf: SLURM_CONF, else the usual places; empty when
    /// there is none.
    pub fn find() -> Self {
        let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
        let mut conf = SlurmConf::default();
        let usual = DEFAULT_PATHS.iter().map(PathBuf::from);
        if let Some(path) = named.into_iter().chain(usual).find(|path| path.is_file()) {
            conf.read(&path, MAX_INCLUDES);
        }
        conf
    }

    /// SlurmUser's uid; `None` when the name is unknown on this host.
    pub fn slurm_uid(&self) -> Option<u32> {
        let name = self.slurm_user.as_deref().unwrap_or("root");
        if let Ok(uid) = name.parse() {
            return Some(uid);
        }
        let user = nix::unistd::User::from_name(name).ok()??;
        Some(user.uid.as_raw())
    }

    fn read(&mut self, path: &Path, includes_left: u32) {
        let Ok(bytes) = std::fs::read(path) else {
            return;
        };
        for line in String::from_utf8_lossy(&bytes).lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(file) = keyword(line, "include ") {
                if includes_left > 0 {
                    let folder = path.parent().unwrap_or(Path::new("/"));
                    self.read(&folder.join(file), includes_left - 1);
                }
            } else if let Some(value) = keyword(line, "slurmuser=") {
                self.slurm_user = Some(value.to_owned());
            } else if let Some(value) = keyword(line, "authinfo=") {
                self.munge_socket = value
                    .split(',')
                    .find_map(|part| keyword(part.trim(), "socket="))
                    .map(PathBuf::from);
            }
        }
    }
}

/// The munge socket to use: BFT_MUNGE_SOCKET, else slurm.conf's, else `None`
/// for libmunge's default.
pub fn munge_socket() -> Option<PathBuf> {
    std::env::var_os("BFT_MUNGE_SOCKET")
        .map(PathBuf::from)
        .or_else(|| SlurmConf::find().munge_socket)
}

/// What follows `word` (lower case) in `line`, without regard to case.
fn keyword<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    let head = line.get(..word.len())?;
    head.eq_ignore_ascii_case(word)
        .then(|| line[word.len()..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_socket_are_found_whatever_their_case_and_through_includes() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("slurm.conf");
        std::fs::write(
            folder.path().join("auth.conf"),
            "authinfo=ttl=60,socket=/run/m\n",
        )
        .unwrap();
        std::fs::write(
            &main,
            "ClusterName=x\n#SlurmUser=nobody\nSLURMUSER=4711 # us\nInclude auth.conf\n",
        )
        .unwrap();
        let mut conf = SlurmConf::default();
        conf.read(&main, MAX_INCLUDES);
        assert_eq!(conf.slurm_uid(), Some(4711));
        assert_eq!(conf.munge_socket.as_deref(), Some(Path::new("/run/m")));
    }

    #[test]
    fn a_file_that_includes_itself_is_read_in_finite_time() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("slurm.conf");
        std::fs::write(&main, "include slurm.conf\n").unwrap();
        let mut conf = SlurmConf::default();
        conf.read(&main, MAX_INCLUDES);
        assert_eq!(conf.slurm_uid(), Some(0));
    }
}
