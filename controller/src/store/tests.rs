use rusqlite::Connection;

use super::file::{SCHEMA, TABLES};
use super::*;
use crate::timeline;

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
    store.keep(Record::Learned {
        program: "T7".to_owned(),
        profile: Profile::default(),
    });
    drop(store);
    let (_store, memory) = Store::open(folder.path(), 10).unwrap();
    assert_eq!(memory.node_faults, [fault("n1", None)]);
    assert_eq!(memory.profiles.len(), 1);
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
fn a_second_daemon_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _store = Store::open(folder.path(), 10).unwrap();
    let error = Store::open(folder.path(), 10).unwrap_err().to_string();
    assert!(error.contains("another bftrainerd"), "{error}");
}

#[test]
fn a_damaged_file_is_set_aside_and_begun_anew() {
    let no_database: Damage = |bytes| bytes.fill(b'x');
    let cut_in_half: Damage = |bytes| bytes.truncate(bytes.len() / 2);
    let no_tables: Damage = |bytes| bytes[4096..8192].fill(0);
    for damage in [no_database, cut_in_half, no_tables] {
        let folder = filled();
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let (store, memory) = Store::open(folder.path(), 10).unwrap();
        assert!(memory.decisions.is_empty());
        store.keep(Record::Decision(decision(1)));
        drop(store);
        let (_store, memory) = Store::open(folder.path(), 10).unwrap();
        assert_eq!(memory.decisions, [decision(1)]);
        let kept = std::fs::read_dir(folder.path())
            .unwrap()
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().contains("damaged"))
            .count();
        assert_eq!(kept, 1);
    }
}

/// What happens to a file's bytes.
type Damage = fn(&mut Vec<u8>);

/// A closed store of some pages.
fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(folder.path(), 10).unwrap();
    for trainer in 0..2000 {
        store.keep(Record::Decision(decision(trainer)));
    }
    drop(store);
    folder
}

#[test]
fn a_write_ahead_log_of_nothing_costs_nothing() {
    let folder = filled();
    let log = folder.path().join(format!("{FILE}-wal"));
    std::fs::write(log, vec![b'x'; 8192]).unwrap();
    let (_store, memory) = Store::open(folder.path(), 10).unwrap();
    assert_eq!(memory.decisions.last(), Some(&decision(1999)));
}

#[test]
fn an_empty_file_is_begun_anew() {
    let folder = filled();
    std::fs::write(folder.path().join(FILE), "").unwrap();
    let (_store, memory) = Store::open(folder.path(), 10).unwrap();
    assert!(memory.decisions.is_empty());
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
