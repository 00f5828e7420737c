//! The step log, one row for each event of the log, with the columns of the reference replays.

use std::io::{BufWriter, Write};
use std::path::Path;

use bftrainer_core::replay::Step;

const HEADER: &str = "time,Thr,Rate,ReScost,evt,Nleft,Npre,Njoin,nJob,nNd,nJrun,nNrun,PreCost";

/// A CSV file of steps.
pub struct StepLog {
    file: BufWriter<std::fs::File>,
}

impl StepLog {
    /// Begins the file at `path`.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn create(path: &Path) -> std::io::Result<Self> {
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        writeln!(file, "{HEADER}")?;
        Ok(StepLog { file })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&mut self, step: &Step) -> std::io::Result<()> {
        writeln!(
            self.file,
            "{},{:.6},{:.6},{:.6},{},{},{},{},{},{},{},{},{:.6}",
            step.time_s,
            step.samples,
            step.rate_per_s,
            step.rescale_samples,
            step.event,
            step.left,
            step.hit,
            step.joined,
            step.trainers,
            step.pool,
            step.running,
            step.used,
            step.preemption_samples,
        )
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
