//! Any bytes as a log: a result or an error, never a panic.
#![no_main]

use bftrainer_controller::trace::{Schedule, Source, Stats, open_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for schedule in [Schedule::Log, Schedule::Easy] {
        let mut source = Source::new("log");
        source.schedule = schedule;
        let _ = open_bytes(&source, bytes.to_vec()).and_then(Stats::of);
    }
});
