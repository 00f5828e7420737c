//! What the daemon shows over HTTP on this host: the page, what it draws, and the metrics.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, header};
use axum::routing::get;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Input, history};
use crate::assets::{DRAWING_JS, STYLE_CSS, UPLOT_CSS, UPLOT_JS};
use crate::http::Kept;
use crate::metrics::CONTENT_TYPE;
use crate::slurm::SlurmSettings;

/// The brain answers within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// The brain makes an answer anew this often at most, however many ask.
const ONE_ANSWER: Duration = Duration::from_secs(1);

/// The store is asked this often at most; it gets new node-seconds once a minute.
const ONE_HARVEST: Duration = Duration::from_secs(20);

const JSON: &str = "application/json";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Files of the page: path, type and text.
const FILES: [(&str, &str, &str); 12] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/page.html"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/uplot.css", CSS, UPLOT_CSS),
    ("/style.css", CSS, STYLE_CSS),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/uplot.js", JAVASCRIPT, UPLOT_JS),
    ("/drawing.js", JAVASCRIPT, DRAWING_JS),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/format.js", JAVASCRIPT, include_str!("page/format.js")),
    ("/table.js", JAVASCRIPT, include_str!("page/table.js")),
    ("/tables.js", JAVASCRIPT, include_str!("page/tables.js")),
    ("/charts.js", JAVASCRIPT, include_str!("page/charts.js")),
];

/// What the brain can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// OpenMetrics.
    Metrics,
    /// Everything that is so now.
    State,
    /// Pool and allocation of the last day.
    Timeline,
}

type Inputs = mpsc::UnboundedSender<Input>;

/// The pages; the brain answers through `inputs`.
pub fn router(inputs: &Inputs, state_dir: PathBuf, settings: &SlurmSettings) -> Router {
    let mut router = Router::new();
    for (path, content_type, text) in FILES {
        let answer = ([(header::CONTENT_TYPE, content_type)], text);
        router = router.route(path, get(move || async move { answer }));
    }
    for (path, content_type, what) in [
        ("/metrics", CONTENT_TYPE, Shown::Metrics),
        ("/state.json", JSON, Shown::State),
        ("/timeline.json", JSON, Shown::Timeline),
    ] {
        let kept = Arc::new(Kept::new(ONE_ANSWER, content_type));
        let inputs = inputs.clone();
        let answer = move |headers: HeaderMap| async move {
            kept.answer(&headers, asked(inputs, what)).await
        };
        router = router.route(path, get(answer));
    }
    let kept = Arc::new(Kept::new(ONE_HARVEST, JSON));
    let hides_names = settings.private_usage || settings.private_jobs;
    let harvest = move |headers: HeaderMap| async move {
        let page = move || history::page(&state_dir, hides_names);
        let read = async move { tokio::task::spawn_blocking(page).await.ok().flatten() };
        kept.answer(&headers, read).await
    };
    router.route("/harvest.json", get(harvest))
}

/// The brain's answer, unless it takes too long.
async fn asked(inputs: Inputs, what: Shown) -> Option<String> {
    let (answer, answered) = oneshot::channel();
    // When the brain is gone, `answered` fails as well.
    let _ = inputs.send(Input::Shown { what, answer });
    timeout(PATIENCE, answered).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's own files.
    fn own_files() -> impl Iterator<Item = (&'static str, &'static str)> {
        let library = ["/uplot.js", "/uplot.css", "/icon.svg"];
        let own = FILES
            .into_iter()
            .filter(move |(path, ..)| !library.contains(path));
        own.map(|(path, _, text)| (path, text))
    }

    #[test]
    fn the_page_makes_no_markup_of_data() {
        for (path, text) in own_files() {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "setHTML",
                "document.write",
                "DOMParser",
                "createContextualFragment",
                "eval(",
                "Function(",
                "style=",
                " onclick",
            ] {
                assert!(!text.contains(word), "{path}: {word}");
            }
        }
    }

    #[test]
    fn the_page_asks_nobody_else_and_for_nothing_that_is_not_served() {
        let (_, _, html) = FILES[0];
        let quoted = own_files().flat_map(|(_, text)| text.split('"'));
        let is_path = |word: &&str| {
            let name = word.strip_prefix('/').filter(|name| !name.is_empty());
            name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '.'))
        };
        let asked: Vec<&str> = quoted.filter(is_path).collect();
        assert!(asked.contains(&"/state.json") && asked.contains(&"/page.js"));
        let data = ["/state.json", "/timeline.json", "/harvest.json"];
        for path in asked {
            let is_file = FILES.iter().any(|(file, ..)| *file == path);
            assert!(is_file || data.contains(&path), "{path}");
        }
        assert!(html.contains("lang=\"en\""));
        for (path, text) in own_files() {
            assert!(!text.contains("://"), "{path}");
        }
    }
}
