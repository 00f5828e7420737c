//! The report of a replay or of a sweep: one HTML file that carries its data, its style and the library that
//! draws its charts, and needs no network.

mod curves;
mod series;

use std::path::Path;

use serde_json::json;

use super::run::{Outcome, ReplayError, Setup};
use super::{output, sweep};
use crate::assets::{DRAWING_JS, STYLE_CSS, UPLOT_CSS, UPLOT_JS};
use crate::trace::{self, Stats};

pub use curves::Curves;
pub use series::Series;

const PAGE_CSS: &str = include_str!("page.css");
const PAGE_JS: &str = include_str!("page.js");

/// Slowest trainers that are listed.
const SLOWEST: usize = 20;

/// Writes the report of a replay to `path`. Reads the log once more, for the holes.
///
/// # Errors
/// [`ReplayError`] when the log can't be read or the file can't be written.
pub fn write_replay(
    path: &Path,
    setup: &Setup,
    outcome: &Outcome,
    series: &Series,
    watts: Option<f64>,
) -> Result<(), ReplayError> {
    let stats = Stats::of(trace::open(&setup.source)?)?;
    save(path, replay_page(setup, outcome, series, &stats, watts))
}

/// Writes the report of a sweep to `path`: efficiency and samples as curves, and the table.
///
/// # Errors
/// [`ReplayError`] when the file can't be written.
pub fn write_sweep(
    path: &Path,
    setups: &[Setup],
    outcomes: &[Outcome],
    curves: &Curves,
) -> Result<(), ReplayError> {
    save(path, sweep_page(setups, outcomes, curves))
}

fn save(path: &Path, page: String) -> Result<(), ReplayError> {
    std::fs::write(path, page).map_err(|source| ReplayError::Write {
        path: path.to_owned(),
        source,
    })
}

fn replay_page(
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
    let title = format!("Replay of {}", file_name(setup));
    let summary = escaped(&output::text(setup, outcome, watts));
    let (budget, slowest) = (budget(outcome), slowest(outcome));
    let body = format!(
        "<pre>{summary}</pre>\
         <h2>Nodes</h2>{HINT}<div class=\"chart\" id=\"pool\"></div>\
         <h2>Rate</h2><div class=\"chart\" id=\"rate\"></div>\
         <h2>Where samples went</h2>{budget}\
         <h2>Holes</h2><div class=\"chart\" id=\"holes\"></div>\
         <h2>Trainers</h2><div class=\"chart\" id=\"done\"></div>\
         <h3>The slowest that are done</h3>{slowest}"
    );
    page(&title, &body, &data)
}

fn sweep_page(setups: &[Setup], outcomes: &[Outcome], curves: &Curves) -> String {
    let log = setups.first().map(file_name).unwrap_or_default();
    let title = format!("Replays of {log} compared");
    let efficiency = if curves.have_efficiency() {
        "<h2>U by policy and setting</h2>\
         <p>U is the efficiency: samples gained, as a share of what the same trainers would gain \
         on as many dedicated nodes as were idle on average.</p>\
         <div class=\"chart\" id=\"efficiency\"></div>"
    } else {
        ""
    };
    let row = |tag: &str, cells: &[String]| {
        let cells = cells
            .iter()
            .map(|it| format!("<{tag}>{}</{tag}>", escaped(it)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    let header = row("th", &sweep::COLUMNS.map(|(name, _)| name.to_owned()));
    let rows = setups.iter().zip(outcomes);
    let rows = rows.map(|(setup, outcome)| row("td", &sweep::row(setup, outcome)));
    let body = format!(
        "{HINT}{efficiency}<h2>Samples</h2><div class=\"chart\" id=\"samples\"></div>\
         <h2>All replays</h2><p>Overshoot, preemption and rescaling: samples lost, of those that \
         the held nodes would have given without a loss.</p>\
         <table>{header}{}</table>",
        rows.collect::<String>()
    );
    page(&title, &body, &json!({ "curves": curves }))
}

const HINT: &str = "<p class=\"hint\">Drag to zoom, double-click to see all.</p>";

/// A page with `title`, which is text, `body`, which is markup, and the data that its script draws.
fn page(title: &str, body: &str, data: &serde_json::Value) -> String {
    let title = escaped(title);
    // Within a script `</` would end it.
    let data = data.to_string().replace("</", "<\\/");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{UPLOT_CSS}{STYLE_CSS}{PAGE_CSS}</style></head><body><h1>{title}</h1>{body}\
         <script>{UPLOT_JS}</script><script>{DRAWING_JS}</script>\
         <script>const report = {data};</script>\
         <script>{PAGE_JS}</script></body></html>\n"
    )
}

/// Name of the log.
fn file_name(setup: &Setup) -> String {
    let name = setup.source.path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
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
