//! A private munged with a key of its own.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bftrainer_controller::net::Settings;
use tempfile::TempDir;

/// Runs until it is dropped.
pub struct Munged {
    child: Child,
    folder: TempDir,
}

impl Munged {
    /// Starts one and waits until it serves.
    pub fn start() -> Self {
        // A short path: a Unix socket's has at most 107 bytes.
        let folder = tempfile::Builder::new()
            .prefix("bftm")
            .tempdir_in("/tmp")
            .unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut key = [0u8; 128];
        getrandom(&mut key);
        std::fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path("key"))
            .unwrap()
            .write_all(&key)
            .unwrap();
        let mut command = Command::new(program());
        command.args(["--foreground", "--force", "--num-threads=2"]);
        for (option, name) in [
            ("--key-file", "key"),
            ("--socket", "s"),
            ("--pid-file", "pid"),
            ("--log-file", "log"),
            ("--seed-file", "seed"),
        ] {
            command.arg(format!("{option}={}", path(name).display()));
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: prctl is a system call and safe after fork.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().expect("munged runs (Debian: munge)");
        let munged = Munged { child, folder };
        let give_up = Instant::now() + super::DEADLINE;
        while bftrainer_controller::munge::encode(b"x", Some(&munged.socket())).is_err() {
            assert!(Instant::now() < give_up, "munged does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
        munged
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Connection settings that use it.
    pub fn settings(&self) -> Settings {
        Settings::new(Some(self.socket()))
    }
}

impl Drop for Munged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// munged is not in every user's PATH.
fn program() -> PathBuf {
    let usual = PathBuf::from("/usr/sbin/munged");
    if usual.exists() {
        usual
    } else {
        "munged".into()
    }
}

fn getrandom(bytes: &mut [u8]) {
    // SAFETY: the buffer is writable for its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(usize::try_from(got), Ok(bytes.len()));
}
