//! The file: its tables by version, what is done with a damaged one, the lock beside it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use rusqlite::Connection;
use thiserror::Error;

use super::StoreError;

/// Version of the tables; in the file as `user_version`.
pub(super) const SCHEMA: i32 = 4;

/// What each version adds to the one before.
pub(super) const TABLES: [&str; SCHEMA as usize] = [
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

#[derive(Debug, Error)]
pub(super) enum Trouble {
    #[error("{0}")]
    Damaged(String),
    #[error("its tables have version {0}")]
    TooNew(i32),
    /// It may pass, as a full disk does.
    #[error("{0}")]
    Disk(rusqlite::Error),
    #[error("{0}")]
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, DiskFull, NotADatabase, SystemIoFailure};
        match error.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => Trouble::Damaged(error.to_string()),
            Some(DiskFull | SystemIoFailure) => Trouble::Disk(error),
            _ => Trouble::Sqlite(error),
        }
    }
}

/// Locks the state directory against a second daemon.
pub(super) fn lock(state_dir: &Path) -> Result<Flock<File>, StoreError> {
    let path = state_dir.join("lock");
    let file = File::create(&path).map_err(|error| StoreError::Unusable {
        path: path.clone(),
        error: error.to_string(),
    })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| StoreError::InUse { path })
}

/// Opens the file, brings its tables to [`SCHEMA`].
pub(super) fn open_checked(path: &Path) -> Result<Connection, Trouble> {
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
    Ok(connection)
}

/// Renames a damaged file, with a loud word in the log.
pub(super) fn set_aside(path: &Path, error: &str) -> std::io::Result<()> {
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

/// Device and inode of a file.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
