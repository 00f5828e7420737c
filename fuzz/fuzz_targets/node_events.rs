//! Any bytes as a dump of `sacctmgr -P show event`: a result or an error, never a panic.
#![no_main]

use bftrainer_controller::trace::{Source, Stats, open_bytes};
use libfuzzer_sys::fuzz_target;

const JOBS: &str = "JobID|NodeList|Start|End\n\
                    1|n[1-4]|2026-03-01T00:00:00|2026-03-01T01:00:00\n\
                    2|n2|2026-03-01T02:00:00|2026-03-01T03:00:00\n";

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("bftrainer-fuzz-{}", std::process::id()));
    std::fs::write(&path, bytes).expect("a file in the temporary directory");
    let mut source = Source::new("log");
    source.node_events = Some(path);
    let _ = open_bytes(&source, JOBS.as_bytes().to_vec()).and_then(Stats::of);
});
