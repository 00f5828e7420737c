//! The agent's few words to the user, on stderr, where the ranks' output is too.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line; a closed or full stderr is nobody's problem here.
pub fn line(text: Arguments<'_>) {
    let line = format!("bftrainer: {text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Says a line to the user, as `eprintln!` would, but never panics.
macro_rules! say {
    ($($word:tt)*) => { $crate::agent::log::line(format_args!($($word)*)) };
}
pub(in crate::agent) use say;
