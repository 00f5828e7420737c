//! A log as node transitions, whatever it was before.

use std::io::{BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Trace, TraceError};

/// Writes `trace` to `path` as CSV with the columns time,node,state,end, compressed when the name
/// ends in .gz or .zst. Returns the number of rows.
///
/// # Errors
/// [`TraceError`] when the log can't be read or the file can't be written.
pub fn convert(trace: Trace, path: &Path) -> Result<u64, TraceError> {
    let error = |source| TraceError::io(path, source);
    let file = BufWriter::new(std::fs::File::create(path).map_err(error)?);
    let extension = path.extension().and_then(|extension| extension.to_str());
    let (rows, file) = match extension {
        Some("gz") => {
            let mut encoder = GzEncoder::new(file, Compression::default());
            (write(trace, path, &mut encoder)?, encoder.finish())
        }
        Some("zst") => {
            let mut encoder = zstd::stream::write::Encoder::new(file, 0).map_err(error)?;
            (write(trace, path, &mut encoder)?, encoder.finish())
        }
        _ => {
            let mut file = file;
            (write(trace, path, &mut file)?, Ok(file))
        }
    };
    file.and_then(|mut file| file.flush()).map_err(error)?;
    Ok(rows)
}

fn write(mut trace: Trace, path: &Path, out: &mut dyn Write) -> Result<u64, TraceError> {
    let error = |source| TraceError::io(path, source);
    let mut names = trace.names.clone();
    let mut rows = 0;
    writeln!(out, "time,node,state,end").map_err(error)?;
    let mut row = |time_s: f64, node: &str, state: &str, end_s: Option<f64>| {
        rows += 1;
        match end_s {
            Some(end_s) => writeln!(out, "{time_s},{node},{state},{end_s}"),
            None => writeln!(out, "{time_s},{node},{state},"),
        }
        .map_err(error)
    };
    let idle = std::mem::take(&mut trace.idle);
    for (node, end_s) in &idle {
        row(trace.start_s, &names[node.0 as usize], "idle", *end_s)?;
    }
    let (rows_at_start, mut began) = (idle.len(), false);
    loop {
        let Some(event) = trace.next() else {
            return Ok(rows);
        };
        let event = event?;
        names.extend(event.new_names);
        if rows_at_start == 0 && !began {
            // The log begins then, though nothing is idle.
            row(trace.start_s, &names[0], "busy", None)?;
        }
        began = true;
        for node in &event.left {
            row(event.time_s, &names[node.0 as usize], "busy", None)?;
        }
        for (node, end_s) in event.joined.iter().chain(&event.ends) {
            row(event.time_s, &names[node.0 as usize], "idle", *end_s)?;
        }
    }
}
