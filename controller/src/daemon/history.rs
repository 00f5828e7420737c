//! Node-hours harvested, by day, user and account: read from the store, off the
//! event loop's thread.

use std::collections::BTreeMap;
use std::path::Path;

use bftrainer::wire::Answer;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::brain::Brain;
use crate::clock;
use crate::store::{self, Harvest};

/// Days that the page shows.
const PAGE_DAYS: u32 = 31;

impl Brain {
    /// Answers with the last `days` days (all, without a number).
    pub(super) fn answer_history(
        &self,
        now_s: f64,
        uid: u32,
        days: Option<u32>,
        answer: oneshot::Sender<Answer>,
    ) {
        let state_dir = self.config.state_dir.clone();
        let only = (self.settings.private_usage && !self.is_administrator(uid))
            .then(|| user_name(uid).unwrap_or_default());
        let since_day = days.map_or(0, |days| first_day(now_s, days));
        tokio::task::spawn_blocking(move || {
            let found = store::harvest_since(&state_dir, since_day);
            // The asker may have gone away.
            let _ = answer.send(match found {
                Ok(harvest) => rows(&harvest, only.as_deref()),
                Err(error) => Answer::Failed {
                    reason: error.to_string(),
                },
            });
        });
    }
}

fn rows(harvest: &[Harvest], only: Option<&str>) -> Answer {
    let rows = harvest
        .iter()
        .filter(|entry| only.is_none_or(|user| entry.user == user))
        .map(row)
        .collect();
    Answer::Rows { rows }
}

fn row(entry: &Harvest) -> Value {
    json!({
        "day": day_text(entry.day),
        "user": entry.user,
        "account": entry.account,
        "harvested_node_s": entry.node_s,
    })
}

/// The first one of the last `days` days, days since 1970.
fn first_day(now_s: f64, days: u32) -> i64 {
    (now_s / 86_400.0) as i64 + 1 - i64::from(days)
}

/// What the page shows: the rows of the last days, or only what each day gave where names are
/// nobody's business. Blocks. `None` when the store can't be read, which the log says.
pub fn page(state_dir: &Path, hides_names: bool) -> Option<String> {
    let found = store::harvest_since(state_dir, first_day(clock::now_s(), PAGE_DAYS));
    let harvest = found
        .inspect_err(|error| log::warn!("node-hours for the page: {error}"))
        .ok()?;
    Some(page_rows(&harvest, hides_names).to_string())
}

fn page_rows(harvest: &[Harvest], hides_names: bool) -> Value {
    if !hides_names {
        return harvest.iter().map(row).collect();
    }
    let mut days: BTreeMap<i64, f64> = BTreeMap::new();
    for entry in harvest {
        *days.entry(entry.day).or_default() += entry.node_s;
    }
    let days = days.into_iter();
    days.map(|(day, node_s)| json!({ "day": day_text(day), "harvested_node_s": node_s }))
        .collect()
}

/// The name of `uid` on this host.
fn user_name(uid: u32) -> Option<String> {
    let user = nix::unistd::User::from_uid(uid.into()).ok()??;
    Some(user.name)
}

/// Days since 1970 as 2026-01-31, in UTC as they were counted.
fn day_text(day: i64) -> String {
    jiff::Timestamp::from_second(day.saturating_mul(86_400)).map_or_else(
        |_| day.to_string(),
        |time| time.strftime("%Y-%m-%d").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_usage_shows_ones_own_rows_alone() {
        let entry = |user: &str| Harvest {
            day: 20_000,
            user: user.to_owned(),
            account: "ml".to_owned(),
            node_s: 7.5,
        };
        let harvest = [entry("ada"), entry("bob")];
        let count = |only| match rows(&harvest, only) {
            Answer::Rows { rows } => rows.len(),
            Answer::Failed { .. } => 0,
        };
        assert_eq!(
            (count(None), count(Some("bob")), count(Some("eve"))),
            (2, 1, 0)
        );
        assert_eq!(day_text(20_000), "2024-10-04");
        assert_eq!(page_rows(&harvest, false)[1]["user"], "bob");
        let nameless = json!([{ "day": "2024-10-04", "harvested_node_s": 15.0 }]);
        assert_eq!(page_rows(&harvest, true), nameless);
    }
}
