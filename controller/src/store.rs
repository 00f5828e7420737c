//! What must outlive the daemon and Slurm does not keep: decisions with their
//! reasons, ended trainers, node-seconds harvested. A SQLite file in the state
//! directory, written by a thread of its own so that a slow disk delays nobody.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bftrainer_core::engine::{Decision, Quarantine};
use bftrainer_core::learning::{KEPT_PROGRAMS as KEPT, Profile};
use bftrainer_core::trainer::TrainerId;
use nix::fcntl::{Flock, FlockArg};
use rusqlite::{Connection, OpenFlags, Transaction, params};
use thiserror::Error;

use crate::timeline::{self, Point};

/// The file's name in the state directory.
const FILE: &str = "bftrainer.db";

/// Version of the tables; in the file as `user_version`.
const SCHEMA: i32 = 4;

/// Records are written together this often.
const BATCH: Duration = Duration::from_secs(1);

/// Programs of which is kept what was learned.
const KEPT_PROGRAMS: u32 = KEPT as u32;

/// Decisions and ended trainers that are kept.
const KEPT_ROWS: u32 = 100_000;

/// What each version adds to the one before.
const TABLES: [&str; SCHEMA as usize] = [
    "
    CREATE TABLE decision (
        time_s REAL NOT NULL, trainer INTEGER NOT NULL,
        from_nodes INTEGER NOT NULL, to_nodes INTEGER NOT NULL, reason TEXT NOT NULL);
    CREATE TABLE ended (array_job_id INTEGER NOT NULL, row TEXT NOT NULL);
    CREATE TABLE harvest (
        day INTEGER NOT NULL, user TEXT NOT NULL, account TEXT NOT NULL, node_s REAL NOT NULL,
        PRIMARY KEY (day, user, account));
",
    // `trainer` is null for a node's own fault.
    "
    CREATE TABLE node_fault (
        node TEXT NOT NULL, trainer INTEGER, until_s REAL NOT NULL, times INTEGER NOT NULL,
        reason TEXT NOT NULL, speaks_against_node INTEGER NOT NULL);
",
    "
    CREATE TABLE learned (
        program TEXT PRIMARY KEY, updated_s REAL NOT NULL, profile TEXT NOT NULL);
",
    "
    CREATE TABLE timeline (time_s INTEGER PRIMARY KEY, point TEXT NOT NULL);
",
];

/// A deleted file is noticed within this time.
const LOOK_FOR_FILE: Duration = Duration::from_secs(10);

/// Why there is no store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The state directory or the file can't be used.
    #[error("{path}: {error}; `state_dir` must be a directory that SlurmUser may write")]
    Unusable {
        /// What was tried.
        path: PathBuf,
        /// The system's or SQLite's words.
        error: String,
    },
    /// Another daemon has it.
    #[error("{path} is locked: another bftrainerd runs with this `state_dir`")]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The file was written by a later version.
    #[error(
        "{path} has version {found} of its tables, this bftrainerd knows {SCHEMA}: start the \
         version that wrote it, or move the file aside"
    )]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i32,
    },
}

/// Node-seconds harvested on one day.
#[derive(Clone, Debug, PartialEq)]
pub struct Harvest {
    /// Days since 1970.
    pub day: i64,
    /// Whose trainers.
    pub user: String,
    /// On which account.
    pub account: String,
    /// Node-seconds in which ranks ran.
    pub node_s: f64,
}

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

/// Something to be kept.
#[derive(Clone, Debug)]
pub enum Record {
    /// A decision.
    Decision(Decision),
    /// An ended trainer as it was shown last.
    Ended {
        /// Its array job id.
        array_job_id: u32,
        /// The row.
        row: serde_json::Value,
    },
    /// All that speaks against nodes; takes the place of what was kept before.
    NodeFaults(Vec<NodeFault>),
    /// Pool and allocation over half a minute.
    Timeline(Point),
    /// Node-seconds in which ranks ran.
    Harvest {
        /// Days since 1970.
        day: i64,
        /// The trainer's owner.
        user: String,
        /// The trainer's account.
        account: String,
        /// Node-seconds to be added.
        node_s: f64,
    },
    /// What was learned of a program.
    Learned {
        /// The program's key.
        program: String,
        /// What is known.
        profile: Profile,
    },
    /// What was learned of a program is worth nothing any more.
    Forget {
        /// The program's key.
        program: String,
    },
}

/// Why a node is left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFault {
    /// Its name.
    pub node: String,
    /// The trainer that keeps off it; `None`: all do.
    pub trainer: Option<TrainerId>,
    /// How long, and why.
    pub quarantine: Quarantine,
    /// Whether a trainer's failure says something of the node.
    pub speaks_against_node: bool,
}

/// What an earlier daemon has left.
#[derive(Debug, Default)]
pub struct Memory {
    /// The last decisions, oldest first.
    pub decisions: Vec<Decision>,
    /// The last ended trainers.
    pub ended: Vec<(u32, serde_json::Value)>,
    /// What was learned, by program.
    pub profiles: Vec<(String, Profile)>,
    /// What speaks against nodes.
    pub node_faults: Vec<NodeFault>,
    /// Pool and allocation of the last day, oldest first.
    pub timeline: Vec<Point>,
}

/// The open store. Dropping it writes what is left.
#[derive(Debug)]
pub struct Store {
    records: Option<Sender<Record>>,
    writer: Option<JoinHandle<()>>,
    /// Held as long as the store is open.
    _lock: Flock<File>,
}

impl Store {
    /// Opens the file in `state_dir` and reads the last `most` rows of each kind.
    /// A damaged file is set aside and begun anew, with a loud word in the log.
    pub fn open(state_dir: &Path, most: u32) -> Result<(Self, Memory), StoreError> {
        let unusable = |path: &Path, error: String| StoreError::Unusable {
            path: path.to_path_buf(),
            error,
        };
        std::fs::create_dir_all(state_dir)
            .map_err(|error| unusable(state_dir, error.to_string()))?;
        let path = state_dir.join(FILE);
        let lock = lock(state_dir)?;
        let (connection, memory) = match open_checked(&path, most) {
            Ok(opened) => opened,
            Err(Trouble::TooNew(found)) => return Err(StoreError::TooNew { path, found }),
            Err(Trouble::Damaged(error)) => {
                set_aside(&path, &error).map_err(|error| unusable(&path, error.to_string()))?;
                open_checked(&path, most).map_err(|trouble| unusable(&path, trouble.to_string()))?
            }
            Err(Trouble::Sqlite(error)) => return Err(unusable(&path, error.to_string())),
        };
        let (records, received) = channel();
        let writer = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || Writer::new(path, connection).write_all(&received))
            .map_err(|error| unusable(state_dir, error.to_string()))?;
        let store = Store {
            records: Some(records),
            writer: Some(writer),
            _lock: lock,
        };
        Ok((store, memory))
    }

    /// Hands a record to the writing thread.
    pub fn keep(&self, record: Record) {
        if let Some(records) = &self.records {
            // A writer that has ended has said why.
            let _ = records.send(record);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.records = None;
        if let Some(writer) = self.writer.take() {
            // It only panics where it has already said so.
            let _ = writer.join();
        }
    }
}

#[derive(Debug, Error)]
enum Trouble {
    #[error("{0}")]
    Damaged(String),
    #[error("its tables have version {0}")]
    TooNew(i32),
    #[error("{0}")]
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match error.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => Trouble::Damaged(error.to_string()),
            _ => Trouble::Sqlite(error),
        }
    }
}

/// Locks the state directory against a second daemon.
fn lock(state_dir: &Path) -> Result<Flock<File>, StoreError> {
    let path = state_dir.join("lock");
    let file = File::create(&path).map_err(|error| StoreError::Unusable {
        path: path.clone(),
        error: error.to_string(),
    })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| StoreError::InUse { path })
}

fn open_checked(path: &Path, most: u32) -> Result<(Connection, Memory), Trouble> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(Trouble::Damaged(verdict));
    }
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    let version: i32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > SCHEMA {
        return Err(Trouble::TooNew(version));
    }
    let Some(missing) = usize::try_from(version).ok().and_then(|n| TABLES.get(n..)) else {
        return Err(Trouble::Damaged(format!(
            "its tables have version {version}"
        )));
    };
    if !missing.is_empty() {
        let transaction = connection.transaction()?;
        transaction.execute_batch(&missing.concat())?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
        transaction.commit()?;
    }
    let memory = recall(&connection, most)?;
    Ok((connection, memory))
}

fn recall(connection: &Connection, most: u32) -> rusqlite::Result<Memory> {
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
        .query_map([KEPT_PROGRAMS], |row| Ok((row.get(0)?, row.get(1)?)))?
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

fn set_aside(path: &Path, error: &str) -> std::io::Result<()> {
    let epoch_s = crate::clock::now_s() as u64;
    let aside = path.with_extension(format!("db.damaged-{epoch_s}"));
    log::error!(
        "{} is damaged ({error}): set aside as {}, begun anew; what was kept is not shown any more",
        path.display(),
        aside.display()
    );
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, aside)
}

/// The thread that writes.
struct Writer {
    path: PathBuf,
    connection: Connection,
    /// Device and inode of the open file.
    identity: Option<(u64, u64)>,
    failing: bool,
}

impl Writer {
    fn new(path: PathBuf, connection: Connection) -> Self {
        Writer {
            identity: identity(&path),
            path,
            connection,
            failing: false,
        }
    }

    /// Writes what comes, a transaction a second, until nobody sends any more.
    fn write_all(mut self, received: &Receiver<Record>) {
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
        match write_batch(&mut self.connection, &batch) {
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
            .and_then(|()| open_checked(&self.path, 0).map_err(|trouble| trouble.to_string()));
        match opened {
            Ok((connection, _)) => {
                self.connection = connection;
                self.identity = identity(&self.path);
            }
            Err(error) => self.complain(&error),
        }
    }

    fn complain(&mut self, error: &dyn std::fmt::Display) {
        if std::mem::replace(&mut self.failing, true) {
            log::debug!("state file: {error}");
        } else {
            log::error!("the state file can't be written: {error}; the daemon goes on without");
        }
    }
}

/// Device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
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
        [KEPT_PROGRAMS],
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

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(trainer: u32) -> Decision {
        Decision {
            time_s: 1.5,
            trainer: TrainerId(trainer),
            from_nodes: 2,
            to_nodes: 4,
            reason: format!("T{trainer}: 2 -> 4 nodes"),
        }
    }

    #[test]
    fn what_was_kept_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        assert!(memory.decisions.is_empty());
        for trainer in 0..20 {
            store.keep(Record::Decision(decision(trainer)));
        }
        let row = serde_json::json!({"jobid": 7, "state": "COMPLETED"});
        store.keep(Record::Ended {
            array_job_id: 7,
            row: row.clone(),
        });
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.decisions.len(), 10);
        assert_eq!(memory.decisions.last(), Some(&decision(19)));
        assert_eq!(memory.ended, [(7, row)]);
    }

    fn fault(node: &str, trainer: Option<u32>) -> NodeFault {
        NodeFault {
            node: node.to_owned(),
            trainer: trainer.map(TrainerId),
            quarantine: Quarantine {
                until_s: 1.5e9,
                times: 3,
                reason: "local rank 0 exited 1".to_owned(),
            },
            speaks_against_node: true,
        }
    }

    #[test]
    fn the_last_word_on_bad_nodes_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(folder.path(), 10).unwrap();
        store.keep(Record::NodeFaults(vec![fault("n1", None)]));
        let last = vec![fault("n2", None), fault("n2", Some(7))];
        store.keep(Record::NodeFaults(last.clone()));
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.node_faults, last);
    }

    #[test]
    fn a_file_of_the_first_version_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join(FILE)).unwrap();
        connection.execute_batch(TABLES[0]).unwrap();
        connection.pragma_update(None, "user_version", 1).unwrap();
        connection
            .execute("INSERT INTO decision VALUES (1.5, 7, 2, 4, 'because')", [])
            .unwrap();
        drop(connection);
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.decisions.len(), 1);
        store.keep(Record::NodeFaults(vec![fault("n1", None)]));
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.node_faults, [fault("n1", None)]);
    }

    #[test]
    fn a_file_that_is_deleted_or_replaced_under_the_daemon_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (store, _) = Store::open(folder.path(), 10).unwrap();
        store.keep(Record::Decision(decision(1)));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        store.keep(Record::Decision(decision(2)));
        drop(store);
        std::fs::remove_file(&path).unwrap();
        let (store, _) = Store::open(folder.path(), 10).unwrap();
        std::fs::remove_file(&path).unwrap();
        store.keep(Record::Decision(decision(3)));
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.decisions, [decision(3)]);
    }

    #[test]
    fn harvested_node_seconds_add_up_by_day_user_and_account() {
        let folder = tempfile::tempdir().unwrap();
        for node_s in [1.5, 2.0] {
            let (store, _) = Store::open(folder.path(), 10).unwrap();
            let (user, account) = ("ada".to_owned(), "ml".to_owned());
            store.keep(Record::Harvest {
                day: 20_000,
                user,
                account,
                node_s,
            });
        }
        let harvest = harvest_since(folder.path(), 20_000).unwrap();
        assert_eq!((harvest.len(), harvest[0].node_s), (1, 3.5));
        assert!(harvest_since(folder.path(), 20_001).unwrap().is_empty());
    }

    #[test]
    fn the_last_day_of_the_pool_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let point = |time_s| Point {
            time_s,
            pool: 7.5,
            held: 4.0,
            training: 3.25,
            shares: vec![(0, 12, 3.25)],
        };
        let (store, _) = Store::open(folder.path(), 10).unwrap();
        for time_s in [0, 3030, 3000 + timeline::KEPT_S, 3030 + timeline::KEPT_S] {
            store.keep(Record::Timeline(point(time_s)));
        }
        drop(store);
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        let last = [3000, 3030].map(|time_s| point(time_s + timeline::KEPT_S));
        assert_eq!(memory.timeline, last);
        // The clock was set back.
        store.keep(Record::Timeline(point(60)));
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.timeline, [point(60)]);
    }

    #[test]
    fn what_was_learned_is_there_after_a_restart_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let mut profile = Profile::default();
        profile.add_restart(1.8e9, true, 3.5);
        let (store, _) = Store::open(folder.path(), 10).unwrap();
        for program in ["1000:train train.sh", "T7"] {
            store.keep(Record::Learned {
                program: program.to_owned(),
                profile: profile.clone(),
            });
        }
        drop(store);
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.profiles.len(), 2);
        assert_eq!(memory.profiles[0].1.up_s(), Some(3.5));
        store.keep(Record::Forget {
            program: "T7".to_owned(),
        });
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.profiles.len(), 1);
        assert_eq!(memory.profiles[0].0, "1000:train train.sh");
    }

    #[test]
    fn what_is_learned_fits_into_a_file_of_the_first_version() {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join(FILE)).unwrap();
        connection.execute_batch(TABLES[0]).unwrap();
        connection.pragma_update(None, "user_version", 1).unwrap();
        connection
            .execute(
                "INSERT INTO decision VALUES (1.5, 3, 2, 4, 'T3: 2 -> 4 nodes')",
                [],
            )
            .unwrap();
        drop(connection);
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.decisions, [decision(3)]);
        store.keep(Record::Learned {
            program: "T7".to_owned(),
            profile: Profile::default(),
        });
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.profiles.len(), 1);
    }

    #[test]
    fn a_second_daemon_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _store = Store::open(folder.path(), 10).unwrap();
        let error = Store::open(folder.path(), 10).unwrap_err().to_string();
        assert!(error.contains("another bftrainerd"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), vec![b'x'; 8192]).unwrap();
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        assert!(memory.decisions.is_empty());
        drop(store);
        let kept = std::fs::read_dir(folder.path())
            .unwrap()
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().contains("damaged"))
            .count();
        assert_eq!(kept, 1);
    }

    #[test]
    fn a_file_of_a_later_version_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        drop(Store::open(folder.path(), 10).unwrap());
        let connection = Connection::open(&path).unwrap();
        connection
            .pragma_update(None, "user_version", SCHEMA + 1)
            .unwrap();
        drop(connection);
        let error = Store::open(folder.path(), 10).unwrap_err().to_string();
        assert!(error.contains("move the file aside"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_state_directory_that_is_a_file_is_refused_with_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, "").unwrap();
        let error = Store::open(&path, 10).unwrap_err().to_string();
        assert!(error.contains("state_dir"), "{error}");
    }
}
