//! `bftrainer logs`: what rank 0 of a trainer has written.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bftrainer::wire::{Query, Request};
use clap::Args;

use super::ask;

/// Between two looks at a file that is followed.
const FOLLOW: Duration = Duration::from_millis(300);

/// How much of the file's end is searched for the last lines, bytes.
const TAIL_BYTES: u64 = 1024 * 1024;

/// `bftrainer logs`: what rank 0 has written.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The trainer's array job id
    #[arg(value_name = "JOBID", value_parser = super::job_id)]
    array_job_id: u32,
    /// Go on showing what is added
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines
    #[arg(short = 'n', long, value_name = "LINES")]
    lines: Option<usize>,
    /// Configuration file [default: $BFTRAINER_CONF, else /etc/bftrainer/bftrainer.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs `bftrainer logs`.
pub fn logs(args: &LogsArgs) -> ExitCode {
    match show(args) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bftrainer: {error}");
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn show(args: &LogsArgs) -> io::Result<()> {
    let path = log_path(args);
    let mut file = File::open(&path).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "{}: {error}; the log is in the folder where the trainer was submitted and \
                 begins with its first generation",
                path.display()
            ),
        )
    })?;
    if let Some(lines) = args.lines {
        seek_to_last(&mut file, lines)?;
    }
    let mut output = io::stdout().lock();
    loop {
        io::copy(&mut file, &mut output)?;
        output.flush()?;
        if !args.follow {
            return Ok(());
        }
        std::thread::sleep(FOLLOW);
    }
}

/// In the submit directory that the controller knows, else below this one.
fn log_path(args: &LogsArgs) -> PathBuf {
    let id = args.array_job_id;
    let query = Query::Show {
        array_job_id: Some(id),
    };
    let folder = ask::ask(Request::Query(query), args.config.as_deref())
        .ok()
        .and_then(|rows| Some(PathBuf::from(rows.first()?.get("work_dir")?.as_str()?)));
    folder
        .as_deref()
        .unwrap_or(Path::new("."))
        .join(format!(".bftrainer-{id}"))
        .join("rank0.log")
}

fn seek_to_last(file: &mut File, lines: usize) -> io::Result<()> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    Read::by_ref(file).take(TAIL_BYTES).read_to_end(&mut tail)?;
    let body = tail.strip_suffix(b"\n").unwrap_or(&tail);
    let offset = match lines.checked_sub(1) {
        None => tail.len(),
        Some(skipped) => body
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(skipped)
            .map_or(0, |(index, _)| index + 1),
    };
    file.seek(SeekFrom::Start(start + offset as u64))?;
    Ok(())
}
