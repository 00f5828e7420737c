//! What can be wrong with a log: always with the file, and with line and field where there is one.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a log can't be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file can't be opened or read, or its compression is broken.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line that makes no sense.
    #[error("{}: line {line}: {field}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// The column.
        field: String,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// The file as a whole makes no sense.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl TraceError {
    pub(super) fn line(path: &Path, line: u64, field: &str, problem: impl Into<String>) -> Self {
        TraceError::Line {
            path: path.to_owned(),
            line,
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn file(path: &Path, problem: impl Into<String>) -> Self {
        TraceError::File {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        TraceError::Io {
            path: path.to_owned(),
            source,
        }
    }
}
