//! Standard output of the commands that show one answer.

use std::io::Write;
use std::process::ExitCode;

/// Prints an answer, every line ended; a reader that has gone away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("bftrainer: standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
