//! The solver's process: reads problems from its standard input and answers on its standard
//! output until the input ends. It is the same executable, started with [`SUBCOMMAND`].

use std::io::{self, BufReader};
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{alarm, dup2_stdout};

use super::frame::{self, Reply, Request};
use super::milp::Milp;

/// First argument that makes an executable the solver's process.
pub const SUBCOMMAND: &str = "solver-child";

/// Beyond this many times its limit a problem ends the process, should its parent be gone too.
const ALARM_FACTOR: f64 = 3.0;

/// Part of the limit that is left for the way back.
const RESERVE: f64 = 0.05;

/// Call it first in `main`: serves as the solver's process if the arguments say so, which are
/// `solver-child MEMORY_MB`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != SUBCOMMAND {
        return None;
    }
    let memory_mb = arguments.next()?.to_str()?.parse().ok()?;
    Some(match serve(memory_mb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bftrainer {SUBCOMMAND}: {error}");
            ExitCode::FAILURE
        }
    })
}

fn serve(memory_mb: u64) -> io::Result<()> {
    let bytes = memory_mb.saturating_mul(1 << 20);
    setrlimit(Resource::RLIMIT_AS, bytes, bytes)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // Nothing but frames may reach the parent, whatever a library prints.
    let mut replies =
        std::fs::File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?);
    dup2_stdout(io::stderr())?;
    let mut requests = BufReader::new(io::stdin().lock());
    let mut milp = Milp::new().ok_or(io::ErrorKind::OutOfMemory)?;
    while let Some(request) = frame::read::<Request>(&mut requests)? {
        alarm::set((request.limit_s * ALARM_FACTOR).clamp(5.0, 1e6) as u32);
        answer(&mut milp, &request, &mut replies)?;
        alarm::cancel();
    }
    Ok(())
}

fn answer(milp: &mut Milp, request: &Request, replies: &mut impl io::Write) -> io::Result<()> {
    let number = request.number;
    let limit_s = (request.limit_s * (1.0 - RESERVE)).clamp(0.0, 1e6);
    let mut failed = None;
    let solved = milp.solve(
        &request.problem,
        request.max_change,
        Duration::from_secs_f64(limit_s),
        &mut |progress| {
            let reply = Reply::progress(number, progress, false);
            failed = frame::write(replies, &reply).err();
        },
    );
    if let Some(error) = failed {
        return Err(error);
    }
    let reply = match solved {
        Ok(progress) => Reply::progress(number, &progress, true),
        Err(failure) => Reply::failure(number, failure),
    };
    frame::write(replies, &reply)
}
