//! The daemon: glues Slurm, agents, users' questions and the engine together.
//! Everything that happens becomes an [`Input`]; the brain takes them
//! one by one.

mod accounting;
mod act;
mod admin;
mod admission;
mod agent_events;
mod agents;
mod answers;
mod array;
mod brain;
mod closing;
mod hints;
mod history;
mod learned;
mod left;
mod levels;
mod limits;
mod node_classes;
mod node_faults;
mod observe;
mod orders;
mod pace;
mod page;
mod placements;
mod pool_view;
mod respecify;
mod rows;
mod server;
mod slurm_thread;
mod task;
mod task_states;
mod unproven;
mod web;

use std::path::PathBuf;
use std::time::Duration;

use bftrainer::wire::{Answer, FromAgent, Join, Query, Set, ToAgent};
use clap::Parser;
use thiserror::Error;
use tokio::net::{TcpListener, UdpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::clock::SteadyClock;
use crate::config::{Config, EX_CONFIG};
use crate::service::{self, Watchdog};
use crate::slurm::{Slurm, SlurmError, SlurmSettings};
use crate::store::{Store, StoreError};
use brain::Brain;
pub use slurm_thread::{Change, ChangeKind, Purpose, Sight, Slurmctld};

/// Fills a Slurm cluster's idle nodes with elastic training.
#[derive(Debug, Parser)]
#[command(
    name = "bftrainerd",
    version,
    after_help = "Exit status: 0 when told to end, 78 when a configuration, its own or Slurm's, must be \
        mended first, 1 otherwise."
)]
pub struct Arguments {
    /// Configuration file [default: $BFTRAINER_CONF, else /etc/bftrainer/bftrainer.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Something that happened outside the brain.
#[derive(Debug)]
pub enum Input {
    /// Slurm's thread reports.
    Slurm(slurm_thread::Report),
    /// An agent said who it is.
    Joined {
        /// Number of its connection.
        connection: u64,
        /// Its proven uid.
        uid: u32,
        /// Who it says it is.
        join: Join,
        /// Where messages to it go.
        to_agent: mpsc::UnboundedSender<ToAgent>,
    },
    /// An agent sent a message.
    Agent {
        /// Number of its connection.
        connection: u64,
        /// The message.
        message: FromAgent,
    },
    /// An agent's connection has ended.
    Disconnected {
        /// Number of the connection.
        connection: u64,
    },
    /// A user asks.
    Query {
        /// Proven uid.
        uid: u32,
        /// The question.
        query: Query,
        /// Where the answer goes.
        answer: oneshot::Sender<Answer>,
    },
    /// Somebody looks at the page or the metrics.
    Shown {
        /// What is asked for.
        what: web::Shown,
        /// Where it goes.
        answer: oneshot::Sender<String>,
    },
    /// A user changes a trainer's specification.
    Set {
        /// Proven uid.
        uid: u32,
        /// The change.
        set: Set,
        /// Where the answer goes.
        answer: oneshot::Sender<Answer>,
    },
    /// Nodes' prologs or epilogs say, so many times, that something changed.
    Hints(u64),
}

/// Why the daemon could not start or go on.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// slurmctld can't be asked.
    #[error("slurmctld can't be asked: {0}; is SLURM_CONF right and slurmctld up?")]
    Slurm(#[from] SlurmError),
    /// The daemon runs as somebody whom agents don't believe.
    #[error(
        "bftrainerd runs as uid {own}, but Slurm's SlurmUser has uid {slurm_user}: start it as \
         SlurmUser, whom agents believe and slurmctld obeys"
    )]
    WrongUser {
        /// Our uid.
        own: u32,
        /// SlurmUser's uid.
        slurm_user: u32,
    },
    /// The state file can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The port can't be used.
    #[error("{address}: {error}; correct `{setting}` in the configuration or free the port")]
    Port {
        /// The setting that names it.
        setting: &'static str,
        /// The configured address.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The system refused something else.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
}

impl DaemonError {
    /// What the daemon ends with: [`EX_CONFIG`] when starting it again can't help.
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::WrongUser { .. } => EX_CONFIG,
            _ => 1,
        }
    }
}

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: Config) -> Result<(), DaemonError> {
    let settings = Slurm::new().settings()?;
    let own = nix::unistd::Uid::effective().as_raw();
    if own != settings.slurm_user_uid {
        return Err(DaemonError::WrongUser {
            own,
            slurm_user: settings.slurm_user_uid,
        });
    }
    run_with(config, settings, Slurm::new)
}

/// Runs the daemon on the slurmctld that `slurm` makes in the thread that speaks to it.
pub fn run_with<S: Slurmctld>(
    mut config: Config,
    settings: SlurmSettings,
    slurm: impl Fn() -> S + Clone + Send + 'static,
) -> Result<(), DaemonError> {
    // The brain has this thread for itself: while it thinks, which takes a solver up to
    // `solver_limit_s`, the network goes on in the other one, and what comes is one event.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| DaemonError::System {
            what: "starting the runtime",
            error,
        })?;
    runtime.block_on(async {
        let mut signals = Signals::caught()?;
        let mut clock = SteadyClock::start();
        if let Some(ahead_s) = clock.follow(settings.slurmctld_time_s as f64) {
            log::warn!("slurmctld's clock is {ahead_s:+.0} s ahead of this host's: it is gone by");
        }
        while let Ended::ClockWasSet(kept, time_s) =
            serve(config, settings.clone(), slurm.clone(), clock, &mut signals).await?
        {
            config = *kept;
            clock.follow(time_s);
        }
        Ok(())
    })
}

/// Inputs are taken in no more often: a thousand agents' heartbeats one by one would cost more
/// than all decisions.
const APART: Duration = Duration::from_millis(20);

/// Why the daemon serves no longer.
enum Ended {
    /// It was told to.
    Told,
    /// Somebody has set slurmctld's clock: the configuration in force, and the new time, epoch
    /// seconds.
    ClockWasSet(Box<Config>, f64),
}

/// The signals that it heeds.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn caught() -> Result<Self, DaemonError> {
        let caught = |kind| {
            signal(kind).map_err(|error| DaemonError::System {
                what: "catching signals",
                error,
            })
        };
        Ok(Signals {
            terminate: caught(SignalKind::terminate())?,
            interrupt: caught(SignalKind::interrupt())?,
            hangup: caught(SignalKind::hangup())?,
        })
    }
}

async fn serve<S: Slurmctld>(
    config: Config,
    settings: SlurmSettings,
    slurm: impl FnOnce() -> S + Send + 'static,
    clock: SteadyClock,
    signals: &mut Signals,
) -> Result<Ended, DaemonError> {
    let (store, memory) = Store::open(&config.state_dir, brain::KEPT_DECISIONS as u32)?;
    let (inputs, mut received) = mpsc::unbounded_channel();
    let mut ports = open_ports(&config, &settings, &inputs).await?;
    let orders =
        slurm_thread::start(slurm, config.partition.clone(), clock, inputs).map_err(|error| {
            DaemonError::System {
                what: "starting the thread for Slurm",
                error,
            }
        })?;
    log::info!(
        "bftrainerd {} started, Slurm {}, partition {}, listening at {}",
        env!("CARGO_PKG_VERSION"),
        settings.version,
        config.partition,
        config.controller
    );
    let mut brain = Brain::new(config, settings, orders, store, memory);
    let ended = think(&mut brain, &clock, &mut received, signals).await;
    // The ports must be free before they are opened again.
    ports.shutdown().await;
    Ok(ended)
}

/// Gives the brain what happens until the end, and has it keep what it must.
async fn think(
    brain: &mut Brain,
    clock: &SteadyClock,
    received: &mut mpsc::UnboundedReceiver<Input>,
    signals: &mut Signals,
) -> Ended {
    let mut watchdog = Watchdog::new();
    let mut not_before = Instant::now();
    service::ready("serving");
    let ended = loop {
        watchdog.turned();
        let wake_at =
            Instant::now() + Duration::from_secs_f64(brain.seconds_to_wake(clock.now_s()));
        let mut inputs = Vec::new();
        tokio::select! {
            // The brain and what it has started hold senders as long as it lives.
            Some(input) = received.recv() => inputs.push(input),
            () = sleep_until(wake_at) => {}
            _ = signals.hangup.recv() => {
                service::reloading();
                match brain.reload() {
                    Ok(said) => log::info!("{said}"),
                    Err(said) => log::error!("{said}"),
                }
                service::ready("serving");
                continue;
            }
            _ = signals.terminate.recv() => break Ended::Told,
            _ = signals.interrupt.recv() => break Ended::Told,
        }
        sleep_until(not_before).await;
        not_before = Instant::now() + APART;
        // What has arrived by now is one event.
        while let Ok(input) = received.try_recv() {
            inputs.push(input);
        }
        brain.take(clock.now_s(), inputs);
        if let Some(time_s) = brain.other_time_s {
            log::warn!(
                "slurmctld's clock was set by {:+.0} s: Slurm and the agents are asked anew for all \
                 that was noted with its time",
                time_s - clock.now_s()
            );
            break Ended::ClockWasSet(Box::new(brain.config.clone()), time_s);
        }
    };
    let end_s = clock.now_s();
    brain.integrate(end_s);
    brain.keep_harvest(end_s);
    brain.keep_learned(end_s);
    if matches!(ended, Ended::Told) {
        service::stopping();
        log::info!("bftrainerd stops; trainers go on without it");
    }
    ended
}

/// Opens the port for agents and commands, that for hints and, if wanted, that for the page.
async fn open_ports(
    config: &Config,
    settings: &SlurmSettings,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Result<JoinSet<()>, DaemonError> {
    let mut ports = JoinSet::new();
    let (listener, hints) = bind(&config.controller).await?;
    let munge_socket = config
        .munge_socket
        .clone()
        .or_else(crate::slurm_conf::munge_socket);
    ports.spawn(server::accept_all(listener, munge_socket, inputs.clone()));
    if let Some(address) = &config.http {
        let listener = listen("http", address).await?;
        let router = web::router(inputs, config.state_dir.clone(), settings);
        ports.spawn(crate::http::serve(listener, router));
    }
    ports.spawn(hints::receive(hints, inputs.clone()));
    Ok(ports)
}

/// The port for agents and commands, and that for hints.
async fn bind(address: &str) -> Result<(TcpListener, UdpSocket), DaemonError> {
    let listener = listen("controller", address).await?;
    let hints = UdpSocket::bind(address)
        .await
        .map_err(|error| port_error("controller", address, error))?;
    Ok((listener, hints))
}

async fn listen(setting: &'static str, address: &str) -> Result<TcpListener, DaemonError> {
    TcpListener::bind(address)
        .await
        .map_err(|error| port_error(setting, address, error))
}

fn port_error(setting: &'static str, address: &str, error: std::io::Error) -> DaemonError {
    DaemonError::Port {
        setting,
        address: address.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wrong_user_must_be_mended_and_a_taken_port_may_become_free() {
        let user = DaemonError::WrongUser {
            own: 0,
            slurm_user: 64_030,
        };
        assert_eq!(user.exit_code(), EX_CONFIG);
        let taken = std::io::ErrorKind::AddrInUse.into();
        assert_eq!(port_error("http", "127.0.0.1:80", taken).exit_code(), 1);
    }
}
