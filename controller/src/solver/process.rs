//! The solver's process as seen by its parent: started when needed, asked with a deadline, killed
//! when it misses it or answers nonsense, started again for the next problem.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bftrainer_core::allocation::{Fault, Problem, Share};

use super::child::SUBCOMMAND;
use super::frame::{self, Reply, Request};

/// What to start, and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The executable; it must call [`super::child::run_if_asked`].
    pub program: PathBuf,
    /// Address space of the process, MiB.
    pub memory_mb: u64,
}

impl Default for Settings {
    /// This very executable, even if another one has taken its place on disk.
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            memory_mb: super::DEFAULT_MEMORY_MB,
        }
    }
}

/// What the process said until its last reply, or until something went wrong.
#[derive(Debug, Default)]
pub struct Heard {
    /// The best allocation; it is allowed.
    pub shares: Option<Vec<Share>>,
    /// What no allocation exceeds, as far as it said.
    pub bound: Option<f64>,
    /// Whether no allocation is better.
    pub optimal: bool,
    /// Whether no allocation is allowed at all.
    pub infeasible: bool,
    /// What went wrong.
    pub fault: Option<Fault>,
}

/// The process, or none at the moment.
#[derive(Debug)]
pub struct Process {
    settings: Settings,
    running: Option<Running>,
    /// Killed ones that have not been reaped.
    dying: Vec<Child>,
    number: u64,
    starts: u64,
}

#[derive(Debug)]
struct Running {
    child: Child,
    stream: UnixStream,
}

impl Process {
    /// No process yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            running: None,
            dying: Vec::new(),
            number: 0,
            starts: 0,
        }
    }

    /// Its process id, when it runs.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// How often one was started.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Starts it if none runs, so that the next problem need not wait for that.
    pub fn ensure(&mut self) -> io::Result<()> {
        self.dying
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
        if let Some(running) = &mut self.running {
            match running.child.try_wait() {
                Ok(None) => return Ok(()),
                _ => self.running = None,
            }
        }
        self.running = Some(Running::start(&self.settings)?);
        self.starts += 1;
        Ok(())
    }

    /// Has `problem` solved within `limit`.
    pub fn ask(&mut self, problem: &Problem, max_change: Option<u32>, limit: Duration) -> Heard {
        let deadline = Instant::now() + limit;
        let mut heard = Heard::default();
        let fault = match self.ensure() {
            Ok(()) => {
                self.number += 1;
                let request = Request {
                    number: self.number,
                    limit_s: limit.as_secs_f64(),
                    max_change,
                    problem: problem.clone(),
                };
                let running = self.running.as_mut();
                running.map_or(Ok(()), |running| {
                    running.ask(&request, deadline, &mut heard)
                })
            }
            Err(error) => {
                log::warn!(
                    "{}: the solver's process could not be started: {error}",
                    self.settings.program.display()
                );
                Err(Fault::Start)
            }
        };
        if let Err(fault) = fault {
            heard.fault = Some(fault);
            if fault != Fault::Status {
                self.kill();
            }
        }
        heard
    }

    fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            // It may have ended by itself.
            let _ = running.child.kill();
            self.dying.push(running.child);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.dying {
            // Killed above or before; only the kernel stands between it and its end.
            let _ = child.wait();
        }
    }
}

impl Running {
    fn start(settings: &Settings) -> io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let output = theirs.try_clone()?;
        let child = Command::new(&settings.program)
            .arg(SUBCOMMAND)
            .arg(OsString::from(settings.memory_mb.to_string()))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(output)))
            .spawn()?;
        Ok(Self { child, stream })
    }

    fn ask(
        &mut self,
        request: &Request,
        deadline: Instant,
        heard: &mut Heard,
    ) -> Result<(), Fault> {
        let mut timed = Timed {
            stream: &self.stream,
            deadline,
        };
        frame::write(&mut timed, request).map_err(|error| fault_of(&error))?;
        loop {
            let reply: Reply = frame::read(&mut timed)
                .map_err(|error| fault_of(&error))?
                .ok_or(Fault::Crash)?;
            take(request, &reply, heard)?;
            if reply.last {
                return match reply.failed_status {
                    Some(code) => {
                        log::warn!("HiGHS gave up with model status {code}");
                        Err(Fault::Status)
                    }
                    None => Ok(()),
                };
            }
        }
    }
}

/// Believes a reply, if it can be true.
fn take(request: &Request, reply: &Reply, heard: &mut Heard) -> Result<(), Fault> {
    if reply.number != request.number {
        return Err(Fault::Garbled);
    }
    heard.infeasible = reply.infeasible;
    let Some(shares) = reply.shares() else {
        let says_why = reply.infeasible || reply.failed_status.is_some();
        return if says_why {
            Ok(())
        } else {
            Err(Fault::Garbled)
        };
    };
    let problem = &request.problem;
    let objective = problem.objective(&shares).map_err(|_| Fault::Garbled)?;
    let mut demands = problem.trainers.iter().zip(&shares);
    let most = request.max_change.unwrap_or(u32::MAX);
    let changes_little =
        demands.all(|(demand, share)| share.nodes.abs_diff(demand.current.nodes) <= most);
    // An objective near nothing can be the difference of large values, rounded.
    let values = shares.iter().enumerate();
    let values = values.filter_map(|(trainer, &share)| problem.value(trainer, share));
    let least = objective - 1e-6 * values.map(f64::abs).sum::<f64>();
    let is_bounded = reply
        .bound
        .is_none_or(|bound| bound.is_finite() && bound >= least);
    if !changes_little || !is_bounded {
        return Err(Fault::Garbled);
    }
    heard.shares = Some(shares);
    heard.bound = reply.bound;
    heard.optimal = reply.last && reply.optimal;
    Ok(())
}

fn fault_of(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Fault::Timeout,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Fault::Crash,
        _ => Fault::Garbled,
    }
}

/// A stream on which nothing takes longer than the deadline, however slowly bytes come.
struct Timed<'s> {
    stream: &'s UnixStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
