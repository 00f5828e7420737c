//! The configuration file of daemon and commands, bftrainer.toml. Every problem
//! in it is reported at once, with its line and what to write instead.

mod reader;
mod sharing;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bftrainer::wire::MISSED_HEARTBEATS;
use bftrainer_core::engine::EngineConfig;
use bftrainer_core::metric::{DEFAULT_EXPONENT, Metric};
use thiserror::Error;

#[cfg(test)]
pub(crate) use reader::ALL_KEYS_FOR_TESTS;
use reader::Reader;
pub use sharing::Sharing;

use crate::solver;

/// Where the file is when neither `--config` nor BFTRAINER_CONF says so.
pub const DEFAULT_PATH: &str = "/etc/bftrainer/bftrainer.toml";

/// Exit code for a configuration that must be mended before another start
/// (sysexits.h: EX_CONFIG).
pub const EX_CONFIG: u8 = 78;

/// Largest file that is read, bytes.
const MAX_BYTES: u64 = 1024 * 1024;

/// A loss is noticed and reported so long after the last heartbeat that counts, seconds.
const COLLATERAL_MARGIN_S: f64 = 2.0;

/// What happens to an ended trainer's tasks that never ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Each is started and ends at once, so that `afterok` of the array holds.
    Run,
    /// They are cancelled: for sites where starting a node is dear.
    Cancel,
}

/// All settings. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file that holds them.
    pub path: PathBuf,
    /// `host:port` at which the controller listens (TCP, and UDP for hints).
    pub controller: String,
    /// The partition of trainers.
    pub partition: String,
    /// Where the daemon keeps its files.
    pub state_dir: PathBuf,
    /// Munge's socket; `None` for the default one.
    pub munge_socket: Option<PathBuf>,
    /// `host:port` on this host at which page and metrics are shown; `None` for nowhere.
    pub http: Option<String>,
    /// Nodes that are never harvested.
    pub exclude_nodes: Vec<String>,
    /// Time between two looks at slurmctld.
    pub poll_interval_s: f64,
    /// Most tasks of ours that Slurm may hold.
    pub max_tasks: u32,
    /// Most placements a second.
    pub max_starts_per_s: u32,
    /// How long a released task may take to start.
    pub place_timeout_s: f64,
    /// Time between an agent's signs of life; three missed ones are a loss.
    pub heartbeat_s: f64,
    /// Throughput before it is known: Amdahl's law with this parallel part.
    pub parallel_fraction: f64,
    /// Seconds without progress when nodes join, before it is measured.
    pub up_s: f64,
    /// Seconds without progress when nodes leave, before it is measured.
    pub down_s: f64,
    /// What happens to an ended trainer's tasks that never ran.
    pub closing: Closing,
    /// Speeds of nodes, limits and weights of users and accounts.
    pub sharing: Sharing,
    /// How long a decision about nodes that are not alike may take.
    pub solver_limit: Duration,
    /// Address space of the solver's process, MiB.
    pub solver_memory_mb: u64,
    /// The engine's settings.
    pub engine: EngineConfig,
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{path}: {error}; {}", unreadable_advice(error))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file is too large.
    #[error("{path}: larger than {MAX_BYTES} bytes: this is no configuration file")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file's problems, one a line.
    #[error("{}", problems.join("\n"))]
    Problems {
        /// `FILE:LINE: what is wrong, what was expected`.
        problems: Vec<String>,
    },
}

fn unreadable_advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "give its place with --config or BFTRAINER_CONF",
        std::io::ErrorKind::PermissionDenied => {
            "SlurmUser and all users of the bftrainer commands must be able to read it (chmod a+r)"
        }
        _ => "it must be a readable file of TOML",
    }
}

impl Config {
    /// The path to read: the option's, else BFTRAINER_CONF, else the default.
    pub fn path(option: Option<&Path>) -> PathBuf {
        option
            .map(Path::to_path_buf)
            .or_else(|| std::env::var_os("BFTRAINER_CONF").map(PathBuf::from))
            .unwrap_or_else(|| PathBuf::from(DEFAULT_PATH))
    }

    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`] when it can't be read or anything in it is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |error| ConfigError::Unreadable {
            path: path.to_path_buf(),
            error,
        };
        if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_BYTES {
            return Err(ConfigError::TooLarge {
                path: path.to_path_buf(),
            });
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(&text, path)
    }

    /// Checks the text of a file that is named `path` in messages.
    ///
    /// # Errors
    /// [`ConfigError::Problems`] with all that is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(text, path);
        let defaults = EngineConfig::default();
        let exponent = reader.number("exponent", DEFAULT_EXPONENT, 0.05..=1.0);
        let floor = reader.number("efficiency_floor", 0.5, 0.01..=1.0);
        let names = ["speedup", "throughput", "efficiency"];
        let metric = match reader.one_of("metric", "speedup", &names) {
            "throughput" => Metric::Throughput,
            "efficiency" => Metric::Efficiency { floor },
            _ => Metric::Speedup { exponent },
        };
        let heartbeat_s = reader.number("heartbeat_s", 2.0, 0.2..=60.0);
        let engine = EngineConfig {
            horizon_s: reader.number("horizon_s", defaults.horizon_s, 1.0..=86_400.0),
            metric,
            min_trainers: reader.count("min_trainers", defaults.min_trainers as u32, 1..=100_000)
                as usize,
            min_hole_s: reader.number("min_hole_s", defaults.min_hole_s, 60.0..=86_400.0),
            vacate_lead_s: reader.number("vacate_lead_s", defaults.vacate_lead_s, 1.0..=3600.0),
            lease_s: reader.number("lease_s", defaults.lease_s, 120.0..=604_800.0),
            grace_s: reader.number("grace_s", defaults.grace_s, 0.0..=3600.0),
            worker_start_timeout_s: reader.number(
                "worker_start_timeout_s",
                defaults.worker_start_timeout_s,
                10.0..=86_400.0,
            ),
            quarantine_s: reader.number("quarantine_s", defaults.quarantine_s, 1.0..=86_400.0),
            quarantine_max_s: reader.number(
                "quarantine_max_s",
                defaults.quarantine_max_s,
                1.0..=604_800.0,
            ),
            collateral_window_s: defaults
                .collateral_window_s
                .max(heartbeat_s * MISSED_HEARTBEATS + COLLATERAL_MARGIN_S),
            failures: reader.count("failures", defaults.failures as u32, 1..=100) as usize,
            learn: reader.flag("learn", true),
            ..defaults
        };
        let config = Config {
            path: path.to_path_buf(),
            controller: reader.text(
                "controller",
                "127.0.0.1:7115",
                is_host_and_port,
                HOST_AND_PORT,
            ),
            partition: reader.text("partition", "bftrainer", is_name, WORD),
            state_dir: reader
                .text("state_dir", "/var/lib/bftrainer", is_absolute, ABSOLUTE)
                .into(),
            munge_socket: reader
                .optional_text("munge_socket", is_absolute, ABSOLUTE)
                .map(PathBuf::from),
            http: reader.optional_text("http", is_loopback_and_port, LOOPBACK_AND_PORT),
            exclude_nodes: reader.texts("exclude_nodes", is_word, "host lists, as [\"n[1-4]\"]"),
            poll_interval_s: reader.number("poll_interval_s", 2.0, 1.0..=60.0),
            max_tasks: reader.count("max_tasks", 8000, 1..=10_000_000),
            max_starts_per_s: reader.count("max_starts_per_s", 20, 1..=1000),
            place_timeout_s: reader.number("place_timeout_s", 10.0, 2.0..=600.0),
            heartbeat_s,
            parallel_fraction: reader.number("parallel_fraction", 0.98, 0.0..=1.0),
            up_s: reader.number("up_s", 20.0, 0.0..=86_400.0),
            down_s: reader.number("down_s", 10.0, 0.0..=86_400.0),
            closing: match reader.one_of("closing", "run", &["run", "cancel"]) {
                "cancel" => Closing::Cancel,
                _ => Closing::Run,
            },
            sharing: Sharing::read(&mut reader),
            solver_limit: Duration::from_secs_f64(reader.number(
                "solver_limit_s",
                solver::DEFAULT_LIMIT.as_secs_f64(),
                0.05..=5.0,
            )),
            solver_memory_mb: u64::from(reader.count(
                "solver_memory_mb",
                solver::DEFAULT_MEMORY_MB as u32,
                64..=1_048_576,
            )),
            engine,
        };
        let problems = reader.into_problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Problems { problems })
        }
    }
}

impl Config {
    /// Takes from `old` what can't change while the daemon runs, and what follows from it;
    /// the names of those settings that differ.
    pub fn keep_fixed(&mut self, old: &Config) -> Vec<&'static str> {
        let mut kept = Vec::new();
        macro_rules! keep {
            ($($setting:ident),*) => {$(
                if self.$setting != old.$setting {
                    self.$setting = old.$setting.clone();
                    kept.push(stringify!($setting));
                }
            )*};
        }
        keep!(
            controller,
            partition,
            state_dir,
            munge_socket,
            http,
            heartbeat_s
        );
        self.engine.collateral_window_s = old.engine.collateral_window_s;
        kept
    }
}

const HOST_AND_PORT: &str = "HOST:PORT, as \"slurm1:7115\"";
const LOOPBACK_AND_PORT: &str = "a port of this host alone, as \"127.0.0.1:7116\"";
const WORD: &str = "a name without spaces and commas";
const ABSOLUTE: &str = "an absolute path";

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

fn is_loopback_and_port(text: &str) -> bool {
    let is_loopback = |host: &str| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    is_host_and_port(text)
        && text
            .rsplit_once(':')
            .is_some_and(|(host, _)| is_loopback(host))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn is_name(text: &str) -> bool {
    is_word(text) && !text.contains(',')
}

fn is_absolute(text: &str) -> bool {
    Path::new(text).is_absolute()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("b.toml"))
    }

    /// The rows of the guide's table of settings as lines of a file, where the default is a value.
    fn documented_defaults() -> Vec<String> {
        let guide = include_str!("../../docs/admin.md");
        let (_, table) = guide
            .split_once("| setting | meaning | default |\n")
            .unwrap();
        let rows = table.lines().take_while(|line| !line.is_empty());
        let rows = rows.filter_map(|line| line.strip_prefix("| `"));
        let mut lines = Vec::new();
        for row in rows {
            let Some((keys, rest)) = row.split_once("` |") else {
                continue;
            };
            let keys: Vec<&str> = keys.split("`, `").collect();
            let cell = rest.trim_end_matches(" |").rsplit("| ").next();
            let cell = cell.unwrap_or_default().trim_matches('`');
            let values: Vec<&str> = match keys.len() {
                2 if cell.contains(", ") => cell.split(", ").collect(),
                many => vec![cell; many],
            };
            let settings = keys.iter().zip(values);
            lines.extend(settings.map(|(key, value)| format!("{key} = {value}\n")));
        }
        lines
    }

    #[test]
    fn an_empty_file_gives_the_documented_defaults() {
        let lines = documented_defaults();
        let documented: BTreeSet<&str> = lines
            .iter()
            .filter_map(|line| Some(line.split_once(" = ")?.0))
            .collect();
        assert_eq!(
            documented,
            ALL_KEYS_FOR_TESTS
                .iter()
                .copied()
                .collect::<BTreeSet<&str>>()
        );
        // "off", "none" and where munge's socket is found are no values.
        let in_words = ["http", "max_nodes", "munge_socket"];
        let is_value = |line: &&String| {
            !in_words
                .iter()
                .any(|key| line.starts_with(&format!("{key} =")))
        };
        let text: String = lines.iter().filter(is_value).cloned().collect();
        assert_eq!(parse(&text).unwrap(), parse("").unwrap());
    }

    #[test]
    fn all_problems_are_reported_at_once_with_their_lines() {
        let error = parse(
            "controller = 7115\n\
             horizon = 60\n\
             lease_s = \"long\"\n\
             poll_interval_s = 0.1\n\
             closing = \"later\"\n\
             exclude_nodes = [\"n1\", 2]\n\
             http = \"0.0.0.0:7116\"\n",
        )
        .unwrap_err()
        .to_string();
        let lines: Vec<&str> = error.lines().collect();
        for (line, part) in [
            (1, "controller: expected HOST:PORT"),
            (2, "unknown setting \"horizon\""),
            (3, "lease_s: expected a number from 120 to 604800"),
            (4, "poll_interval_s: expected a number from 1 to 60"),
            (5, "closing: expected \"run\" or \"cancel\""),
            (6, "exclude_nodes: expected host lists"),
            (7, "http: expected a port of this host alone"),
        ] {
            let start = format!("b.toml:{line}: {part}");
            assert!(
                lines.iter().any(|text| text.starts_with(&start)),
                "{start} in\n{error}"
            );
        }
        assert_eq!(lines.len(), 7, "{error}");
    }

    #[test]
    fn a_file_that_can_not_be_read_is_told_apart_from_one_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("b.toml");
        let error = Config::read(&missing).unwrap_err().to_string();
        assert!(error.contains("give its place with --config"), "{error}");
        let denied = ConfigError::Unreadable {
            path: missing,
            error: std::io::ErrorKind::PermissionDenied.into(),
        };
        let error = denied.to_string();
        assert!(error.contains("must be able to read it"), "{error}");
        assert!(!error.contains("--config"), "{error}");
        let error = Config::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("must be a readable file"), "{error}");
    }

    #[test]
    fn a_failure_may_be_explained_as_long_as_a_silent_peer_takes_to_be_missed() {
        assert_eq!(parse("").unwrap().engine.collateral_window_s, 8.0);
        let config = parse("heartbeat_s = 30\n").unwrap();
        assert_eq!(config.engine.collateral_window_s, 92.0);
    }

    #[test]
    fn what_follows_from_a_setting_that_needs_a_restart_stays_as_well() {
        let old = parse("").unwrap();
        let mut new = parse("heartbeat_s = 30\nhorizon_s = 90\n").unwrap();
        assert_eq!(new.keep_fixed(&old), ["heartbeat_s"]);
        assert_eq!(new.heartbeat_s, 2.0);
        assert_eq!(new.engine.collateral_window_s, 8.0);
        assert_eq!(new.engine.horizon_s, 90.0);
    }

    #[test]
    fn broken_toml_names_its_line() {
        let error = parse("horizon_s = 60\nlease_s = = 3\n")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("b.toml:2: "), "{error}");
    }

    #[test]
    fn every_setting_refuses_a_value_of_the_wrong_type() {
        for key in ALL_KEYS_FOR_TESTS {
            let error = parse(&format!("{key} = 1979-05-27\n"))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("b.toml:1: {key}: expected")),
                "{error}"
            );
        }
    }
}
