//! bftrainerd, the controller's daemon.

use std::process::ExitCode;

use bftrainer_controller::config::{Config, EX_CONFIG};
use bftrainer_controller::{check, daemon, logging, solver};
use clap::Parser;

fn main() -> ExitCode {
    if let Some(code) = solver::child::run_if_asked() {
        return code;
    }
    let arguments = daemon::Arguments::parse();
    logging::start();
    let config = match Config::read(&Config::path(arguments.config.as_deref())) {
        Ok(config) => config,
        Err(error) => {
            logging::fatal(&error);
            return ExitCode::from(EX_CONFIG);
        }
    };
    if !check::passes_at_start(&config) {
        logging::fatal(&"not started: see the errors above; bftrainer check shows all");
        return ExitCode::from(EX_CONFIG);
    }
    match daemon::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::fatal(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
