//! In the user's command. sbatch: checks the specification and turns the job
//! into a held array. salloc and srun: refuse the option with a sentence. A job
//! that does not ask for a trainer is left exactly as it is.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use bftrainer::spec::{self, Spec};
use bftrainer::sys;

use crate::option::{self, Given};
use crate::panics;
use crate::sbatch_options::SbatchOptions;
use crate::slurm::{self, Context, refuse};
use crate::tag::{self, Site};
use bftrainer::plugin_args::Args;

/// `sbatch --bftrainer=help` has no script: it is answered here, before sbatch
/// waits for one on standard input. Behind other options the value is answered
/// when all options are known.
pub fn init() {
    let mut words = std::env::args_os().skip(1);
    let help = match words.next() {
        Some(word) if word == "--bftrainer=help" => true,
        Some(word) if word == "--bftrainer" => words.next().is_some_and(|word| word == "help"),
        _ => false,
    };
    if help {
        print_help();
    }
}

/// All options are known; called once for each component of a job.
pub fn init_post_opt(spank: sys::spank_t, context: Context, args: &Args) {
    static CALLED: AtomicBool = AtomicBool::new(false);
    let heterogeneous = CALLED.swap(true, Ordering::Relaxed);
    match option::given() {
        Given::No => {}
        Given::Inherited => option::drop_inherited(spank),
        Given::Written(value) => {
            let value = value.to_string_lossy();
            if value == "help" {
                print_help();
            }
            let work = || serve(&value, context, heterogeneous, args);
            // A job that asked for a trainer is never submitted as another kind.
            if panics::caught(work).is_none() {
                refuse("--bftrainer: the plugin failed; nothing was submitted");
            }
        }
    }
}

fn serve(value: &str, context: Context, heterogeneous: bool, args: &Args) {
    if context == Context::Srun {
        refuse("srun starts no trainers: submit the script with sbatch --bftrainer=SPEC");
    }
    if !slurm::symbol(c"saopt").is_null() {
        refuse("salloc starts no trainers: submit the script with sbatch --bftrainer=SPEC");
    }
    let spec: Spec = match value.parse() {
        Ok(spec) => spec,
        Err(error) => refuse(&format!("--bftrainer: {error}")),
    };
    if let Some(job) = std::env::var_os("SLURM_JOB_ID") {
        refuse(&format!(
            "--bftrainer can't be used inside a job (SLURM_JOB_ID={}), so that no trainer \
             submits trainers: submit it from outside",
            job.to_string_lossy().escape_debug()
        ));
    }
    if heterogeneous {
        refuse(
            "--bftrainer can't be used in a heterogeneous job: each trainer is a job of its own",
        );
    }
    if let Some(problem) = args.problems.first() {
        refuse(problem);
    }
    let Some(options) = SbatchOptions::find() else {
        refuse(&format!(
            "this sbatch does not let plugins set its options: write instead: {}",
            tag::plain_line(&spec, &args.partition)
        ));
    };
    let site = Site {
        partition: &args.partition,
        max_array_size: slurm::conf()
            .map(|conf| conf.max_array_sz)
            .filter(|size| (1..sys::NO_VAL).contains(size)),
    };
    let settings = match tag::plan(&spec, &site, &options) {
        Ok(settings) => settings,
        Err(refusal) => refuse(&refusal),
    };
    for (name, value) in settings {
        if !options.set(name, &value) {
            refuse(&format!(
                "sbatch did not take --{name} from a plugin: write instead: {}",
                tag::plain_line(&spec, &args.partition)
            ));
        }
    }
}

fn print_help() -> ! {
    let mut stdout = std::io::stdout();
    // Nobody is left to be told that standard output is closed.
    let _ = stdout
        .write_all(spec::HELP.as_bytes())
        .and_then(|()| stdout.flush());
    // SAFETY: runs the command's own exit handlers, then never returns.
    unsafe { libc::exit(0) }
}
