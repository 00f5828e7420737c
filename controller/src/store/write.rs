//! The thread that writes.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bftrainer_core::learning::KEPT_PROGRAMS;
use rusqlite::{Connection, Transaction, params};

use super::file::{identity, open_checked};
use super::{NodeFault, Record};
use crate::timeline;

/// Records are written together this often.
const BATCH: Duration = Duration::from_secs(1);

/// Decisions and ended trainers that are kept.
const KEPT_ROWS: u32 = 100_000;

/// A deleted file is noticed within this time.
const LOOK_FOR_FILE: Duration = Duration::from_secs(10);

/// Writes records to the file as long as there is one.
pub(super) struct Writer {
    path: PathBuf,
    /// `None` until the file can be opened.
    connection: Option<Connection>,
    /// Device and inode of the open file.
    identity: Option<(u64, u64)>,
    failing: bool,
}

impl Writer {
    pub(super) fn new(path: PathBuf, connection: Connection) -> Self {
        Writer {
            identity: identity(&path),
            path,
            connection: Some(connection),
            failing: false,
        }
    }

    /// Opens the file when that is possible again.
    pub(super) fn without_file(path: PathBuf, error: &dyn Display) -> Self {
        let mut writer = Writer {
            path,
            connection: None,
            identity: None,
            failing: false,
        };
        writer.complain(error);
        writer
    }

    /// Writes what comes, a transaction a second, until nobody sends any more.
    pub(super) fn write_all(mut self, received: &Receiver<Record>) {
        loop {
            match received.recv_timeout(LOOK_FOR_FILE) {
                Ok(record) => self.write_with_what_follows(record, received),
                Err(RecvTimeoutError::Timeout) => self.begin_anew_if_gone(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write_with_what_follows(&mut self, first: Record, received: &Receiver<Record>) {
        let mut batch = vec![first];
        let deadline = Instant::now() + BATCH;
        // A sender that has gone is met again by the next call.
        while let Ok(record) =
            received.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            batch.push(record);
        }
        self.begin_anew_if_gone();
        let Some(connection) = &mut self.connection else {
            return;
        };
        match write_batch(connection, &batch) {
            Ok(()) => {
                if std::mem::replace(&mut self.failing, false) {
                    log::info!("the state file can be written again");
                }
            }
            Err(error) => self.complain(&error),
        }
    }

    /// SQLite goes on writing to a file that was deleted or replaced, where nobody
    /// will ever find it.
    fn begin_anew_if_gone(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            return;
        }
        if !self.failing {
            log::error!(
                "{} was deleted or replaced under the running daemon: begun anew; what was kept \
                 in it is lost",
                self.path.display()
            );
        }
        let opened = self
            .path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .map_err(|error| error.to_string())
            .and_then(|()| open_checked(&self.path).map_err(|trouble| trouble.to_string()));
        match opened {
            Ok(connection) => {
                self.connection = Some(connection);
                self.identity = identity(&self.path);
            }
            Err(error) => self.complain(&error),
        }
    }

    fn complain(&mut self, error: &dyn Display) {
        if std::mem::replace(&mut self.failing, true) {
            log::debug!("state file: {error}");
        } else {
            log::error!("the state file can't be written: {error}; the daemon goes on without");
        }
    }
}

fn write_batch(connection: &mut Connection, batch: &[Record]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for record in batch {
        write(&transaction, record)?;
    }
    for table in ["decision", "ended"] {
        transaction.execute(
            &format!("DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?1"),
            [KEPT_ROWS],
        )?;
    }
    transaction.execute(
        "DELETE FROM learned WHERE program NOT IN \
         (SELECT program FROM learned ORDER BY updated_s DESC LIMIT ?1)",
        [KEPT_PROGRAMS as u32],
    )?;
    transaction.commit()
}

fn write(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    match record {
        Record::Decision(decision) => transaction
            .prepare_cached("INSERT INTO decision VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![
                decision.time_s,
                decision.trainer.0,
                decision.from_nodes,
                decision.to_nodes,
                decision.reason
            ])?,
        Record::Ended { array_job_id, row } => transaction
            .prepare_cached("INSERT INTO ended VALUES (?1, ?2)")?
            .execute(params![array_job_id, row.to_string()])?,
        Record::NodeFaults(faults) => return write_faults(transaction, faults),
        Record::Harvest {
            day,
            user,
            account,
            node_s,
        } => transaction
            .prepare_cached(
                "INSERT INTO harvest VALUES (?1, ?2, ?3, ?4) ON CONFLICT (day, user, account) \
                 DO UPDATE SET node_s = node_s + excluded.node_s",
            )?
            .execute(params![day, user, account, node_s])?,
        Record::Learned { program, profile } => {
            let text = serde_json::to_string(profile).unwrap_or_default();
            transaction
                .prepare_cached("INSERT OR REPLACE INTO learned VALUES (?1, ?2, ?3)")?
                .execute(params![program, profile.updated_s, text])?
        }
        Record::Timeline(point) => {
            transaction
                .prepare_cached("DELETE FROM timeline WHERE time_s <= ?1 - ?2 OR time_s > ?1")?
                .execute(params![point.time_s, timeline::KEPT_S])?;
            let text = serde_json::to_string(point).unwrap_or_default();
            transaction
                .prepare_cached("INSERT OR REPLACE INTO timeline VALUES (?1, ?2)")?
                .execute(params![point.time_s, text])?
        }
        Record::Forget { program } => transaction
            .prepare_cached("DELETE FROM learned WHERE program = ?1")?
            .execute([program])?,
    };
    Ok(())
}

fn write_faults(transaction: &Transaction<'_>, faults: &[NodeFault]) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM node_fault", [])?;
    let mut insert =
        transaction.prepare_cached("INSERT INTO node_fault VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for fault in faults {
        insert.execute(params![
            fault.node,
            fault.trainer.map(|trainer| trainer.0),
            fault.quarantine.until_s,
            fault.quarantine.times,
            fault.quarantine.reason,
            fault.speaks_against_node
        ])?;
    }
    Ok(())
}
