//! Rank 0's output, copied to the task's own output and to `rank0.log`; a live rank's
//! goes to the log while it is rank 0.
//!
//! One thread per stream, one fixed buffer each. A destination that fails is
//! given up, said once, and the rank's output is read on, so that a full disk
//! never blocks a rank.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::log::say;

const BUFFER_BYTES: usize = 64 * 1024;

/// The copying of one generation's output.
#[derive(Debug)]
pub struct Tee {
    ends: Vec<oneshot::Receiver<()>>,
    log: Arc<Log>,
}

impl Tee {
    /// Copies `stdout` and `stderr` to ours and, if the rank `is_first`, both to `log`,
    /// until they end.
    pub fn start(
        stdout: impl Read + Send + 'static,
        stderr: impl Read + Send + 'static,
        log: PathBuf,
        is_first: bool,
    ) -> io::Result<Tee> {
        let log = Arc::new(Log {
            is_wanted: AtomicBool::new(is_first),
            sink: Mutex::new(Sink::Closed),
            path: log,
        });
        let ours = own(io::stdout().as_fd());
        let out = copy("the rank's stdout", stdout, ours, Arc::clone(&log))?;
        let ours = own(io::stderr().as_fd());
        let err = copy("the rank's stderr", stderr, ours, Arc::clone(&log))?;
        Ok(Tee {
            ends: vec![out, err],
            log,
        })
    }

    /// Whether the rank is rank 0 from now on.
    pub fn set_first(&self, is_first: bool) {
        self.log.is_wanted.store(is_first, Ordering::Relaxed);
    }

    /// Waits until all is copied, at most `limit`.
    pub async fn drained(self, limit: Duration) {
        let all = async {
            for end in self.ends {
                let _ = end.await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

fn own(stream: std::os::fd::BorrowedFd<'_>) -> Option<File> {
    stream.try_clone_to_owned().ok().map(File::from)
}

fn copy(
    what: &'static str,
    mut from: impl Read + Send + 'static,
    mut ours: Option<File>,
    log: Arc<Log>,
) -> io::Result<oneshot::Receiver<()>> {
    let (ended, end) = oneshot::channel();
    let run = move || {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let bytes = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => &buffer[..bytes],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            // First, so that what is seen in our output has its place in the log or none.
            log.append(bytes);
            if let Some(Err(error)) = ours.as_mut().map(|file| file.write_all(bytes)) {
                say!("{what} can't be passed on and is dropped from here on: {error}");
                ours = None;
            }
        }
        let _ = ended.send(());
    };
    std::thread::Builder::new()
        .name("tee".into())
        .stack_size(256 * 1024)
        .spawn(run)?;
    Ok(end)
}

/// The log file.
#[derive(Debug)]
struct Log {
    is_wanted: AtomicBool,
    sink: Mutex<Sink>,
    path: PathBuf,
}

#[derive(Debug)]
enum Sink {
    Closed,
    Open(File),
    /// It has failed.
    GivenUp,
}

impl Log {
    fn append(&self, bytes: &[u8]) {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match &mut *sink {
            Sink::GivenUp => return,
            Sink::Open(file) => file.write_all(bytes),
            Sink::Closed => open(&self.path).and_then(|mut file| {
                file.write_all(bytes)?;
                *sink = Sink::Open(file);
                Ok(())
            }),
        };
        if let Err(error) = written {
            say!("{} is not written any more: {error}", self.path.display());
            *sink = Sink::GivenUp;
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_disk_never_blocks_the_rank() {
        let (stdout, mut rank) = io::pipe().unwrap();
        let (stderr, _) = io::pipe().unwrap();
        let tee = Tee::start(stdout, stderr, PathBuf::from("/dev/full"), true).unwrap();
        let writer = tokio::task::spawn_blocking(move || {
            for _ in 0..8 {
                rank.write_all(&[b' '; 1024]).unwrap();
            }
        });
        writer.await.unwrap();
        tee.drained(Duration::from_secs(60)).await;
    }
}
