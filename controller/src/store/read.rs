//! What an earlier daemon has left, and what was harvested.

use std::path::Path;
use std::time::Duration;

use bftrainer_core::engine::{Decision, Quarantine};
use bftrainer_core::learning::{KEPT_PROGRAMS, Profile};
use bftrainer_core::trainer::TrainerId;
use rusqlite::{Connection, OpenFlags};

use super::{FILE, Harvest, Memory, NodeFault, StoreError};
use crate::timeline::Point;

/// What was harvested from `since_day` (days since 1970) on, by day, user and
/// account. It has its own connection and may block: not for the event loop.
pub fn harvest_since(state_dir: &Path, since_day: i64) -> Result<Vec<Harvest>, StoreError> {
    let path = state_dir.join(FILE);
    read_harvest(&path, since_day).map_err(|error| StoreError::Unusable {
        path,
        error: error.to_string(),
    })
}

fn read_harvest(path: &Path, since_day: i64) -> rusqlite::Result<Vec<Harvest>> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection
        .prepare(
            "SELECT day, user, account, node_s FROM harvest WHERE day >= ?1 \
             ORDER BY day, user, account",
        )?
        .query_map([since_day], |row| {
            Ok(Harvest {
                day: row.get(0)?,
                user: row.get(1)?,
                account: row.get(2)?,
                node_s: row.get(3)?,
            })
        })?
        .collect()
}

/// The last `most` rows of each kind.
pub(super) fn recall(connection: &Connection, most: u32) -> rusqlite::Result<Memory> {
    let mut decisions = connection
        .prepare(
            "SELECT time_s, trainer, from_nodes, to_nodes, reason FROM decision \
             ORDER BY rowid DESC LIMIT ?1",
        )?
        .query_map([most], |row| {
            Ok(Decision {
                time_s: row.get(0)?,
                trainer: TrainerId(row.get(1)?),
                from_nodes: row.get(2)?,
                to_nodes: row.get(3)?,
                reason: row.get(4)?,
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    decisions.reverse();
    let ended: Vec<(u32, String)> = connection
        .prepare("SELECT array_job_id, row FROM ended ORDER BY rowid DESC LIMIT ?1")?
        .query_map([most], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let ended = ended
        .into_iter()
        .rev()
        .filter_map(|(id, row)| Some((id, serde_json::from_str(&row).ok()?)))
        .collect();
    Ok(Memory {
        decisions,
        ended,
        profiles: recall_profiles(connection)?,
        node_faults: recall_faults(connection)?,
        timeline: recall_timeline(connection)?,
    })
}

fn recall_timeline(connection: &Connection) -> rusqlite::Result<Vec<Point>> {
    let points: Vec<String> = connection
        .prepare("SELECT point FROM timeline ORDER BY time_s")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let read = |text: String| serde_json::from_str(&text).ok();
    Ok(points.into_iter().filter_map(read).collect())
}

fn recall_profiles(connection: &Connection) -> rusqlite::Result<Vec<(String, Profile)>> {
    let profiles: Vec<(String, String)> = connection
        .prepare("SELECT program, profile FROM learned ORDER BY updated_s DESC LIMIT ?1")?
        .query_map([KEPT_PROGRAMS as u32], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    // What can't be read is learned again.
    let read =
        |(program, text): (String, String)| Some((program, serde_json::from_str(&text).ok()?));
    Ok(profiles.into_iter().filter_map(read).collect())
}

fn recall_faults(connection: &Connection) -> rusqlite::Result<Vec<NodeFault>> {
    connection
        .prepare(
            "SELECT node, trainer, until_s, times, reason, speaks_against_node FROM node_fault",
        )?
        .query_map([], |row| {
            Ok(NodeFault {
                node: row.get(0)?,
                trainer: row.get::<_, Option<u32>>(1)?.map(TrainerId),
                quarantine: Quarantine {
                    until_s: row.get(2)?,
                    times: row.get(3)?,
                    reason: row.get(4)?,
                },
                speaks_against_node: row.get(5)?,
            })
        })?
        .collect()
}
