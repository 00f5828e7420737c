//! Rows in Slurm's manner: aligned columns, `-h` without the header, `-P` with
//! `|` between the fields, `--json` as they came.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use serde_json::Value;

/// How the answer is shown.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// No header line
    #[arg(short = 'h', long)]
    pub noheader: bool,
    /// Fields separated by "|", not aligned
    #[arg(short = 'P', long)]
    pub parsable2: bool,
    /// JSON: an array of objects whose keys are the column names
    #[arg(long, conflicts_with_all = ["noheader", "parsable2"])]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::HelpLong)]
    pub help: Option<bool>,
    /// Configuration file [default: $BFTRAINER_CONF, else /etc/bftrainer/bftrainer.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// How a value is written.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// As it is.
    Plain,
    /// A number with so many decimals.
    Decimals(usize),
    /// Epoch seconds as local time.
    Time,
    /// Seconds as hours.
    Hours,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    key: &'static str,
    kind: Kind,
}

impl Column {
    /// A column with a title, the row's key, and how its values are written.
    pub const fn new(title: &'static str, key: &'static str, kind: Kind) -> Self {
        Column { title, key, kind }
    }
}

/// The rows as a table, every line ended.
pub fn show_rows(rows: &[Value], columns: &[Column], output: &OutputArgs) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    if !output.noheader {
        lines.push(
            columns
                .iter()
                .map(|column| column.title.to_owned())
                .collect(),
        );
    }
    for row in rows {
        lines.push(
            columns
                .iter()
                .map(|column| written(&row[column.key], column.kind))
                .collect(),
        );
    }
    if output.parsable2 {
        return lines.iter().map(|line| line.join("|") + "\n").collect();
    }
    let widths: Vec<usize> = (0..columns.len())
        .map(|index| {
            lines
                .iter()
                .map(|line| line[index].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    lines
        .iter()
        .map(|line| {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join(" ").trim_end().to_owned() + "\n"
        })
        .collect()
}

/// One row as `Key=value` lines.
pub fn key_value_lines(row: &Value) -> String {
    let Some(row) = row.as_object() else {
        return String::new();
    };
    row.iter()
        .map(|(key, value)| format!("{key}={}\n", written(value, Kind::Plain)))
        .collect()
}

/// The rows with `|` between all their fields, whatever they are.
pub fn parsable_rows(rows: &[Value], header: bool) -> String {
    let rows = || rows.iter().filter_map(Value::as_object);
    let header = rows().next().filter(|_| header).map(|row| {
        let keys: Vec<&str> = row.keys().map(String::as_str).collect();
        keys.join("|") + "\n"
    });
    let values = rows().map(|row| {
        let values: Vec<String> = row
            .values()
            .map(|value| written(value, Kind::Plain))
            .collect();
        values.join("|") + "\n"
    });
    header.into_iter().chain(values).collect()
}

/// The rows as they came.
pub fn json(rows: &[Value]) -> String {
    let text = serde_json::to_string_pretty(rows).unwrap_or_else(|_| "[]".to_owned());
    text + "\n"
}

fn written(value: &Value, kind: Kind) -> String {
    match (value, kind) {
        (Value::Null, _) => "-".to_owned(),
        (Value::Number(number), Kind::Decimals(places)) => number
            .as_f64()
            .map_or_else(String::new, |number| format!("{number:.places$}")),
        (Value::Number(number), Kind::Time) => number.as_f64().map_or_else(String::new, local_time),
        (Value::Number(number), Kind::Hours) => number
            .as_f64()
            .map_or_else(String::new, |seconds| format!("{:.2}", seconds / 3600.0)),
        (Value::String(text), _) => one_line(text),
        (other, _) => other.to_string(),
    }
}

/// Control characters would let a user's text rule the terminal.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn local_time(epoch_s: f64) -> String {
    jiff::Timestamp::from_second(epoch_s as i64).map_or_else(
        |_| "-".to_owned(),
        |time| {
            time.to_zoned_datetime(jiff::tz::TimeZone::system())
                .strftime("%Y-%m-%dT%H:%M:%S")
                .to_string()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const COLUMNS: &[Column] = &[
        Column::new("JOBID", "jobid", Kind::Plain),
        Column::new("LOSS", "loss", Kind::Decimals(2)),
        Column::new("REASON", "reason", Kind::Plain),
    ];

    fn output(noheader: bool, parsable2: bool) -> OutputArgs {
        OutputArgs {
            noheader,
            parsable2,
            json: false,
            help: None,
            config: None,
        }
    }

    #[test]
    fn columns_are_aligned_and_missing_values_are_dashes() {
        let rows = [
            json!({"jobid": 12, "loss": 0.5, "reason": null}),
            json!({"jobid": 7}),
        ];
        assert_eq!(
            show_rows(&rows, COLUMNS, &output(false, false)),
            "JOBID LOSS REASON\n12    0.50 -\n7     -    -\n"
        );
    }

    #[test]
    fn rows_of_any_fields_are_parsable_with_and_without_their_header() {
        let rows = [json!({"jobid": 12, "reason": null})];
        assert_eq!(parsable_rows(&rows, true), "jobid|reason\n12|-\n");
        assert_eq!(parsable_rows(&rows, false), "12|-\n");
    }

    #[test]
    fn parsable_rows_have_bars_and_no_control_characters() {
        let rows = [json!({"jobid": 12, "loss": 1, "reason": "a\u{1b}[2Jb\nc"})];
        assert_eq!(
            show_rows(&rows, COLUMNS, &output(true, true)),
            "12|1.00|a?[2Jb?c\n"
        );
    }
}
