//! The daemon's loop on a simulated slurmctld of 5,000 nodes and 200 trainers, with agents that
//! connect over the network: what it needs of processors, memory and time.
//!
//! `cargo bench --bench scale -- --munge-socket FILE [--minutes N]`; scripts/bench-scale starts a
//! munged for it and writes the figures down.

mod agents;
mod cluster;
mod daemon;
mod process;
#[path = "../random/mod.rs"]
mod random;
mod records;

use std::fs::File;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use bftrainer::hint;
use bftrainer_controller::{net, solver};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, interval, sleep_until};

use agents::Agents;
use process::Used;

/// It is measured when workers have this share of the nodes that are free of regular jobs, or
/// after the longest wait.
const FILLED: f64 = 0.85;
const FILLED_WITHIN: Duration = Duration::from_secs(240);

/// A trainer ends, and another one is submitted, this often.
const TRAINER_ENDS: Duration = Duration::from_secs(10);

#[derive(Debug, Parser)]
struct Arguments {
    /// The socket of a munged
    #[arg(long)]
    munge_socket: Option<PathBuf>,
    /// How long is measured
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// What libslurm takes for each node and job of an answer, microseconds
    #[arg(long, default_value_t = 0.0)]
    record_us: f64,
    /// Be the process that is measured, with this configuration
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
    /// Cargo says so
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if let Some(code) = solver::child::run_if_asked() {
        return code;
    }
    let arguments = Arguments::parse();
    if let Some(config) = &arguments.serve {
        let record = Duration::from_secs_f64(arguments.record_us / 1e6);
        return daemon::serve(config, record);
    }
    match measure(&arguments) {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench scale: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn measure(arguments: &Arguments) -> io::Result<Value> {
    // Each agent has a connection.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let folder = tempfile::tempdir()?;
    let controller = format!("127.0.0.1:{}", free_port()?);
    let config = configuration(
        folder.path(),
        &controller,
        arguments.munge_socket.as_deref(),
    );
    let path = folder.path().join("bftrainer.toml");
    std::fs::write(&path, config)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--serve")
        .arg(&path)
        .args(["--record-us", &arguments.record_us.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(folder.path().join("log"))?)
        .kill_on_drop(true)
        .spawn()?;
    let settings = net::Settings::new(arguments.munge_socket.clone());
    let (agents, exits) = Agents::new(controller.clone(), settings);
    let mut stage = Stage {
        lines: BufReader::new(piped(child.stdout.take())?).lines(),
        input: piped(child.stdin.take())?,
        hints: UdpSocket::bind("127.0.0.1:0")?,
        controller,
        agents,
        exits,
        filled: 0.0,
    };
    let figures = stage
        .measure(&mut child, arguments.minutes, folder.path())
        .await;
    if figures.is_err() {
        let log = std::fs::read_to_string(folder.path().join("log"))?;
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        eprintln!(
            "the daemon's last words, newest first:\n{}",
            last.join("\n")
        );
    }
    figures
}

fn piped<T>(end: Option<T>) -> io::Result<T> {
    end.ok_or_else(|| io::Error::other("the process has no pipes"))
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn configuration(folder: &Path, controller: &str, munge_socket: Option<&Path>) -> String {
    let folder = folder.display();
    let munge =
        munge_socket.map(|path| format!("munge_socket = {:?}\n", path.display().to_string()));
    format!(
        "controller = \"{controller}\"\npartition = \"bftrainer\"\nstate_dir = \"{folder}\"\n\
         max_tasks = 20000\nmin_trainers = 150\n{}",
        munge.unwrap_or_default()
    )
}

/// The world around the process that is measured.
struct Stage {
    lines: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    hints: UdpSocket,
    controller: String,
    agents: Agents,
    exits: UnboundedReceiver<String>,
    filled: f64,
}

impl Stage {
    async fn measure(
        &mut self,
        child: &mut Child,
        minutes: f64,
        folder: &Path,
    ) -> io::Result<Value> {
        let pid = child
            .id()
            .ok_or_else(|| io::Error::other("the process has ended"))?;
        let began = Instant::now();
        while self.filled < FILLED && began.elapsed() < FILLED_WITHIN {
            self.play_until(Instant::now() + Duration::from_secs(1))
                .await?;
        }
        let warm_up_s = began.elapsed().as_secs_f64();
        self.tell("measure").await?;
        let before = process::used(pid, daemon::SLURM_THREAD, &daemon::FOREIGN_THREADS);
        let (store_before, began) = (store_bytes(folder), Instant::now());
        self.play_until(began + Duration::from_secs_f64(minutes * 60.0))
            .await?;
        let after = process::used(pid, daemon::SLURM_THREAD, &daemon::FOREIGN_THREADS);
        let wall_s = began.elapsed().as_secs_f64();
        let store_bytes = store_bytes(folder) - store_before;
        let memory_mb = process::peak_memory_mb(pid);
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM)?;
        let mut figures = self.last_words().await?;
        let share = |part: fn(&Used) -> f64| (part(&after) - part(&before)) / wall_s;
        let measured = json!({
            "nodes": cluster::NODES,
            "trainers": cluster::TRAINERS,
            "minutes": wall_s / 60.0,
            "warm_up_s": warm_up_s,
            "filled": self.filled,
            "cpu_share": share(|used| used.all_s - used.foreign_s),
            "brain_share": share(|used| used.main_s),
            "slurm_share": share(|used| used.slurm_s),
            "memory_mb": memory_mb,
            "store_bytes_per_h": store_bytes as f64 * 3600.0 / wall_s,
        });
        if let (Value::Object(all), Value::Object(measured)) = (&mut figures, measured) {
            all.extend(measured);
        }
        Ok(figures)
    }

    /// Plays agents and plugins until then.
    async fn play_until(&mut self, end: Instant) -> io::Result<()> {
        let mut ends = interval(TRAINER_ENDS);
        ends.reset();
        loop {
            tokio::select! {
                line = self.lines.next_line() => {
                    let line = line?.ok_or_else(|| io::Error::other("the daemon has ended"))?;
                    self.hear(&line);
                }
                exit = self.exits.recv() => if let Some(line) = exit {
                    self.tell(&line).await?;
                },
                _ = ends.tick() => self.agents.finish_one(),
                () = sleep_until(end) => return Ok(()),
            }
        }
    }

    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["filled", share] => self.filled = share.parse().unwrap_or(0.0),
            ["hint", node] => {
                let datagram = hint::encode(node.as_bytes());
                // As the plugin: nobody cares for a hint that is lost.
                let _ = self.hints.send_to(&datagram, &self.controller);
            }
            _ => self.agents.hear(&words),
        }
    }

    async fn tell(&mut self, line: &str) -> io::Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await
    }

    /// What the process says at its end.
    async fn last_words(&mut self) -> io::Result<Value> {
        while let Some(line) = self.lines.next_line().await? {
            if let Some(figures) = line.strip_prefix("figures ") {
                return Ok(serde_json::from_str(figures)?);
            }
        }
        Err(io::Error::other("the daemon has ended without figures"))
    }
}

/// Bytes of the state file and what belongs to it.
fn store_bytes(folder: &Path) -> i64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = files.filter(|file| file.file_name().to_string_lossy().contains(".db"));
    let sizes = ours.filter_map(|file| file.metadata().ok());
    sizes.map(|size| size.len().cast_signed()).sum()
}
