//! Readers of logs: what they make of good ones, and that bad ones give an error, never a panic.

use std::io::Write;
use std::path::Path;

use bftrainer_controller::trace::{
    NodeChoice, Schedule, Source, Stats, TraceError, Window, convert, open, open_bytes,
};
use bftrainer_core::replay::PoolEvent;
use proptest::prelude::*;

fn source(text: &str) -> Source {
    let mut source = Source::new("log");
    source.procs_per_node = if text.contains("MaxProcs") { 2 } else { 1 };
    source
}

/// Nodes idle at the beginning, and the events, or what is wrong.
fn read(text: &str) -> Result<(usize, Vec<PoolEvent>), TraceError> {
    let trace = open_bytes(&source(text), text.as_bytes().to_vec())?;
    let idle = trace.idle.len();
    Ok((idle, trace.collect::<Result<_, _>>()?))
}

fn error(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

const TRANSITIONS: &str = "time,node,state\n0,a,idle\n10,b,idle\n10,a,busy\n20,a,idle\n";

#[test]
fn all_transitions_of_one_time_are_one_event() {
    let (idle, events) = read(TRANSITIONS).unwrap();
    assert_eq!((idle, events.len()), (1, 2));
    assert_eq!((events[0].left.len(), events[0].joined.len()), (1, 1));
    assert_eq!(events[0].new_names, ["b"]);
}

#[test]
fn compressed_and_crlf_logs_read_as_plain_ones() {
    let plain = read(TRANSITIONS).unwrap();
    let crlf = read(&TRANSITIONS.replace('\n', "\r\n")).unwrap();
    assert_eq!(plain, crlf);
    for bytes in [
        gzip(TRANSITIONS.as_bytes()),
        zstd::encode_all(TRANSITIONS.as_bytes(), 0).unwrap(),
    ] {
        let trace = open_bytes(&Source::new("log"), bytes).unwrap();
        let events: Vec<PoolEvent> = trace.map(Result::unwrap).collect();
        assert_eq!(events, plain.1);
    }
}

#[test]
fn a_bad_line_is_named_with_its_field() {
    assert_eq!(
        error("time,node,state\n0,a,idle\nx,a,busy\n"),
        "log: line 3: time: `x` is not a number of seconds"
    );
    assert!(
        error("time,node,state\n5,a,idle\n4,a,busy\n").contains("line 3: time: 4 comes after 5")
    );
    assert!(error("time,node,state\n5,a,down\n").contains("line 2: state: `down`"));
    assert!(error("time,node,state\n5,a\n").contains("line 2: state: missing"));
    assert!(error("time,host,state\n5,a,idle\n").contains("line 1: node: the header"));
    assert!(error("").contains("header"));
    assert!(error("time,node,state\n").contains("no entry"));
}

#[test]
fn broken_files_are_errors() {
    let whole = gzip(TRANSITIONS.repeat(50).as_bytes());
    let cut = whole[..whole.len() / 2].to_vec();
    assert!(
        open_bytes(&Source::new("log"), cut)
            .and_then(Stats::of)
            .is_err()
    );
    let latin1 = b"time,node,state\n0,caf\xe9,idle\n".to_vec();
    let message = open_bytes(&Source::new("log"), latin1)
        .err()
        .unwrap()
        .to_string();
    assert_eq!(message, "log: line 2: node: not UTF-8");
    assert!(open(&Source::new("/no/such/file")).is_err());
}

const SACCT: &str = "\
JobID|State|Start|End|NodeList
1|COMPLETED|2021-03-01T00:00:00|2021-03-01T01:00:00|n[1-2]
1|COMPLETED|2021-03-01T01:30:00|2021-03-01T02:00:00|n1
2|COMPLETED|2021-03-01T00:30:00|2021-03-01T01:40:00|n2
3|PENDING|Unknown|Unknown|None assigned
4.batch|COMPLETED|bad|bad|n3
5|RUNNING|2021-03-01T03:00:00|Unknown|n2
";

#[test]
fn a_node_is_idle_when_no_job_is_on_it() {
    let (idle, events) = read(SACCT).unwrap();
    assert_eq!(idle, 0);
    // 01:00 n1 idle; 01:30 n1 busy; 01:40 n2 idle; 02:00 n1 idle; 03:00 n2 busy
    let sizes: Vec<(usize, usize)> = events
        .iter()
        .map(|event| (event.left.len(), event.joined.len()))
        .collect();
    assert_eq!(sizes, [(0, 1), (1, 0), (0, 1), (0, 1), (1, 0)]);
}

#[test]
fn nodes_that_were_down_are_not_idle() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, down) = (folder.path().join("jobs"), folder.path().join("down"));
    std::fs::write(&jobs, SACCT).unwrap();
    let text = "NodeName|TimeStart|TimeEnd|State\n|2021-03-01T00:00:00|Unknown|\n\
                n1|2021-03-01T00:59:00|2021-03-01T01:31:00|DOWN\n";
    std::fs::write(&down, text).unwrap();
    let mut source = Source::new(&jobs);
    let before = Stats::of(open(&source).unwrap()).unwrap().idle_node_s;
    source.node_events = Some(down);
    let after = Stats::of(open(&source).unwrap()).unwrap().idle_node_s;
    assert_eq!(before - after, 1800.0);
}

#[test]
fn sacct_dumps_that_make_no_sense_are_errors() {
    let with = |line: &str| error(&format!("JobID|NodeList|Start|End\n{line}\n"));
    assert!(with("1|n1|2021-03-01T02:00:00|2021-03-01T01:00:00").contains("line 2: End"));
    assert!(with("1|n[1-|2021-03-01T02:00:00|Unknown").contains("line 2: NodeList"));
    assert!(with("1|n1|yesterday|Unknown").contains("line 2: Start"));
    assert!(with("1|n1").contains("line 2: Start: missing"));
    assert!(error("JobID|Start|End\n").contains("NodeList"));
}

#[test]
fn the_hour_that_clocks_repeat_is_no_step_backwards() {
    let text = "JobID|NodeList|Start|End\n1|n1|2021-10-31T02:50:00|2021-10-31T02:10:00\n";
    let mut source = Source::new("log");
    source.zone = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    let trace = open_bytes(&source, text.into()).unwrap();
    let events: Vec<PoolEvent> = trace.map(Result::unwrap).collect();
    assert_eq!(events[0].time_s, 1_635_642_600.0);
}

fn swf(jobs: &[(u32, u32, u32)]) -> String {
    let lines = jobs.iter().map(|(submit, run, procs)| {
        format!("1 {submit} 0 {run} {procs} -1 -1 {procs} {run} -1 1 1 1 1 1 -1 -1 -1\n")
    });
    let head = "; UnixStartTime: 1000\n; MaxProcs: 8\n".to_owned();
    head + &lines.collect::<String>()
}

#[test]
fn swf_counts_processors_and_may_be_unsorted() {
    let text = swf(&[(100, 50, 3), (0, 100, 8), (200, 10, 8)]);
    let (idle, events) = read(&text).unwrap();
    // Four nodes: all busy, then two of them for 50 s, then all again.
    assert_eq!(idle, 0);
    assert_eq!(events[0].time_s, 1100.0);
    assert_eq!((events[0].joined.len(), events[1].joined.len()), (2, 2));
    assert_eq!(events[2].left.len(), 4);
}

#[test]
fn easy_backfill_knows_when_idle_nodes_are_taken() {
    // One node is busy for 100 s; the next job wants all four, so three wait for it.
    let text = swf(&[(0, 100, 2), (10, 50, 8)]);
    let mut source = source(&text);
    source.schedule = Schedule::Easy;
    let trace = open_bytes(&source, text.into_bytes()).unwrap();
    assert_eq!(trace.idle.len(), 3);
    let events: Vec<PoolEvent> = trace.map(Result::unwrap).collect();
    let last = events.iter().find(|event| event.left.len() == 3).unwrap();
    assert_eq!(last.time_s, 1100.0);
}

#[test]
fn a_million_overlapping_jobs_are_read() {
    let mut text = "JobID|NodeList|Start|End\n".to_owned();
    for job in 0..1_000_000u32 {
        let start = job.wrapping_mul(2_654_435_761) % 1_000_000;
        text += &format!("{job}|n{}|{start}|{}\n", job % 50, start + job % 300);
    }
    let (_, events) = read(&text).unwrap();
    assert!(!events.is_empty());
}

#[test]
fn a_converted_log_is_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let events = |path: &Path| -> Vec<PoolEvent> {
        open(&Source::new(path))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    for name in ["log.csv", "log.csv.gz", "log.csv.zst"] {
        let path = folder.path().join(name);
        let trace = open_bytes(&Source::new("log"), SACCT.into()).unwrap();
        convert(trace, &path).unwrap();
        let copy = events(&path);
        assert_eq!(copy.len(), 5, "{name}");
        assert_eq!(copy[2].joined.len(), 1);
    }
}

#[test]
fn a_window_begins_with_the_nodes_idle_then() {
    let mut source = Source::new("log");
    source.window = Window {
        from_s: Some(15.0),
        states: Some(2),
        until_s: None,
    };
    source.choice = NodeChoice {
        list: Some(vec!["b".into(), "a".into()]),
        first: None,
    };
    let trace = open_bytes(&source, TRANSITIONS.into()).unwrap();
    assert_eq!(trace.idle.len(), 1);
    assert_eq!(trace.names, ["b", "a"]);
    assert_eq!(trace.count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_bytes_make_a_reader_panic(
        head in prop::sample::select(vec![
            "", "time,node,state\n", "JobID|NodeList|Start|End\n", "; MaxNodes: 4\n",
        ]),
        rest in "[0-9a-z,|\\[\\]\\-:.T\n -]{0,200}",
        easy in any::<bool>(),
    ) {
        let mut source = Source::new("log");
        source.schedule = if easy { Schedule::Easy } else { Schedule::Log };
        let bytes = format!("{head}{rest}").into_bytes();
        let _ = open_bytes(&source, bytes).and_then(Stats::of);
    }
}
