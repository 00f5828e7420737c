//! The report of a replay: one HTML file that carries its data, its style and the library that
//! draws its charts (uPlot, MIT; its licence lies beside it), and needs no network.

mod series;

use std::path::Path;

use serde_json::json;

use super::output;
use super::run::{Outcome, ReplayError, Setup};
use crate::trace::{self, Stats};

pub use series::Series;

const UPLOT_JS: &str = include_str!("uplot.min.js");
const UPLOT_CSS: &str = include_str!("uplot.min.css");
const PAGE_CSS: &str = include_str!("page.css");
const PAGE_JS: &str = include_str!("page.js");

/// Slowest trainers that are listed.
const SLOWEST: usize = 20;

/// Writes the report to `path`. Reads the log once more, for the holes.
///
/// # Errors
/// [`ReplayError`] when the log can't be read or the file can't be written.
pub fn write(
    path: &Path,
    setup: &Setup,
    outcome: &Outcome,
    series: &Series,
    watts: Option<f64>,
) -> Result<(), ReplayError> {
    let stats = Stats::of(trace::open(&setup.source)?)?;
    let page = page(setup, outcome, series, &stats, watts);
    std::fs::write(path, page).map_err(|source| ReplayError::Write {
        path: path.to_owned(),
        source,
    })
}

fn page(
    setup: &Setup,
    outcome: &Outcome,
    series: &Series,
    stats: &Stats,
    watts: Option<f64>,
) -> String {
    // A bin that begins at 0 has no place on a logarithmic axis.
    let bins = stats.holes.iter().filter(|bin| bin.from_s > 0.0);
    let data = json!({
        "series": series,
        "holes": {
            "from_s": bins.clone().map(|bin| bin.from_s).collect::<Vec<_>>(),
            "share": bins.clone().map(|bin| 100.0 * bin.share).collect::<Vec<_>>(),
            "node_time_share":
                bins.map(|bin| 100.0 * bin.node_time_share).collect::<Vec<_>>(),
        },
        "result": output::json(setup, outcome, watts),
    });
    // Within a script `</` would end it.
    let data = data.to_string().replace("</", "<\\/");
    let name = setup.source.path.file_name().unwrap_or_default();
    let title = escaped(&format!("Replay of {}", name.to_string_lossy()));
    let summary = escaped(&output::text(setup, outcome, watts));
    let (budget, slowest) = (budget(outcome), slowest(outcome));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{UPLOT_CSS}{PAGE_CSS}</style></head><body><h1>{title}</h1>\
         <pre>{summary}</pre>\
         <h2>Nodes</h2><p class=\"hint\">Drag to zoom, double-click to see all.</p>\
         <div class=\"chart\" id=\"pool\"></div>\
         <h2>Rate</h2><div class=\"chart\" id=\"rate\"></div>\
         <h2>Where samples went</h2>{budget}\
         <h2>Holes</h2><div class=\"chart\" id=\"holes\"></div>\
         <h2>Trainers</h2><div class=\"chart\" id=\"done\"></div>\
         <h3>The slowest that are done</h3>{slowest}\
         <script>{UPLOT_JS}</script><script>const report = {data};</script>\
         <script>{PAGE_JS}</script></body></html>\n"
    )
}

/// What the held nodes would have given, and what became of it.
fn budget(outcome: &Outcome) -> String {
    let tally = &outcome.tally;
    let rows = [
        ("without any loss", tally.gross_samples),
        ("lost after completion", tally.overshoot_samples),
        ("lost by preemption", tally.preemption_samples),
        ("lost by rescaling", tally.rescale_samples),
        ("gained", tally.samples),
    ];
    let rows = rows.map(|(name, samples)| {
        let share = 100.0 * samples / tally.gross_samples.max(1.0);
        format!("<tr><td>{name}</td><td>{samples:.4e}</td><td>{share:.2} %</td></tr>")
    });
    format!(
        "<table><tr><th></th><th>samples</th><th></th></tr>{}</table>",
        rows.concat()
    )
}

fn slowest(outcome: &Outcome) -> String {
    let mut trainers: Vec<_> = outcome.tally.finished.iter().collect();
    trainers.sort_by(|a, b| a.speedup.total_cmp(&b.speedup));
    let rows = trainers.iter().take(SLOWEST).map(|trainer| {
        format!(
            "<tr><td>{}</td><td>{:.2} h</td><td>{:.2} h</td><td>{:.2}</td></tr>",
            escaped(&trainer.name),
            (trainer.admitted_s - trainer.submit_s) / 3600.0,
            (trainer.done_s - trainer.admitted_s) / 3600.0,
            trainer.speedup
        )
    });
    format!(
        "<table><tr><th>trainer</th><th>waited</th><th>admitted to done</th>\
         <th>speed-up</th></tr>{}</table>",
        rows.collect::<String>()
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
