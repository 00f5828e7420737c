//! Any text as a trainers' file: trainers or an error, never a panic.
#![no_main]

use std::path::Path;

use bftrainer_controller::replay::trainers_from_text;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for name in ["trainers.json", "trainers.toml"] {
        let _ = trainers_from_text(Path::new(name), text, 0.0);
    }
});
