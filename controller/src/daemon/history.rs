//! Node-hours harvested, by day, user and account: read from the store, off the
//! event loop's thread.

use bftrainer::wire::Answer;
use serde_json::json;
use tokio::sync::oneshot;

use super::brain::Brain;
use crate::store::{self, Harvest};

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
        let since_day = days.map_or(0, |days| (now_s / 86_400.0) as i64 + 1 - i64::from(days));
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
        .map(|entry| {
            json!({
                "day": day_text(entry.day),
                "user": entry.user,
                "account": entry.account,
                "harvested_node_s": entry.node_s,
            })
        })
        .collect();
    Answer::Rows { rows }
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
    }
}
