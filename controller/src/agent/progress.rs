//! Progress: the one-line datagrams of ranks, their relay to the controller,
//! and `bftrainer progress`, which sends one from a shell.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bftrainer::wire::Progress;
use tokio::net::UnixDatagram;
use tokio::time::Instant;

use super::log::say;
use super::report_folder::SOCKET;
use crate::clock;

/// Every line starts with this; a later grammar gets another number.
const PREFIX: &str = "bft1 ";

/// Longest datagram that is read, in bytes.
const MAX_BYTES: usize = 1024;

/// The controller gets the newest line at most so often.
const RELAY_EVERY: Duration = Duration::from_millis(500);

/// Reads a line; unknown keys and values that don't fit are left out. `None`
/// when it is no progress line or has no `samples`.
pub fn parse(line: &[u8]) -> Option<Progress> {
    let text = std::str::from_utf8(line).ok()?.trim_end_matches('\0');
    let (mut progress, mut samples) = (Progress::default(), None);
    for pair in text.strip_prefix(PREFIX)?.split_ascii_whitespace() {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        match key {
            "samples" => samples = count(value),
            "t" => progress.time_s = number(value).filter(|time_s| *time_s > 0.0),
            "gen" => progress.generation = value.parse().ok(),
            "loss" => progress.loss = number(value),
            "epoch" => progress.epoch = number(value),
            "total" => progress.total = count(value),
            "done" => progress.done = value == "1",
            _ => {}
        }
    }
    progress.samples = samples?;
    Some(progress)
}

/// Writes the line that [`parse`] reads.
pub fn format(progress: &Progress) -> String {
    let mut line = format!("{PREFIX}samples={}", progress.samples);
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {key}={value}"));
        }
    };
    add("t", progress.time_s.map(|time_s| format!("{time_s:.3}")));
    add(
        "gen",
        progress.generation.map(|generation| generation.to_string()),
    );
    add("loss", progress.loss.map(|loss| loss.to_string()));
    add("epoch", progress.epoch.map(|epoch| epoch.to_string()));
    add("total", progress.total.map(|total| total.to_string()));
    add("done", progress.done.then(|| "1".to_owned()));
    line
}

/// Samples; programs that count in floating point may write 30000.0 or 3e4.
fn count(value: &str) -> Option<u64> {
    const MOST: f64 = 1e18;
    value.parse().ok().or_else(|| {
        number(value)
            .filter(|count| (0.0..=MOST).contains(count))
            .map(|count| count as u64)
    })
}

fn number(value: &str) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite())
}

/// The agent's datagram socket, in a private folder with a short path.
#[derive(Debug)]
pub struct Inbox {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Inbox {
    /// Listens in `folder`.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(SOCKET);
        let socket = UnixDatagram::bind(&path)?;
        Ok(Inbox { socket, path })
    }

    /// For `BFT_REPORT`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next datagram. Cancel safe.
    pub async fn next(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; MAX_BYTES];
        let bytes = self.socket.recv(&mut buffer).await?;
        buffer.truncate(bytes);
        Ok(buffer)
    }

    /// A datagram that is there already.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; MAX_BYTES];
        let bytes = self.socket.try_recv(&mut buffer).ok()?;
        buffer.truncate(bytes);
        Some(buffer)
    }
}

/// The newest line of the running generation, on its way to the controller.
#[derive(Debug, Default)]
pub struct Relay {
    newest: Option<Progress>,
    next: Option<Instant>,
    has_complained: bool,
}

impl Relay {
    /// Takes a datagram that came while `generation` ran; lines of another one
    /// are dropped, but those of live ranks, which may not know which it is.
    pub fn take(&mut self, datagram: &[u8], generation: u64, is_live: bool) {
        let Some(mut progress) = parse(datagram) else {
            if !self.has_complained {
                self.has_complained = true;
                let shown = String::from_utf8_lossy(&datagram[..datagram.len().min(80)]);
                say!("not a progress line (bft1 samples=N ...), ignored: {shown:?}");
            }
            return;
        };
        progress.generation = progress.generation.filter(|_| !is_live);
        if *progress.generation.get_or_insert(generation) == generation {
            progress.time_s.get_or_insert_with(clock::now_s);
            self.newest = Some(progress);
        }
    }

    /// The line to send now, if one is due.
    pub fn due(&mut self, now: Instant) -> Option<Progress> {
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        let newest = self.newest.take()?;
        self.next = Some(now + RELAY_EVERY);
        Some(newest)
    }

    /// The line that has not been sent, due or not.
    pub fn rest(&mut self) -> Option<Progress> {
        self.newest.take()
    }

    /// When [`due`](Self::due) gives a line.
    pub fn wake_at(&self) -> Option<Instant> {
        self.newest.as_ref().and(self.next)
    }
}

/// `bftrainer progress`: tells the agent how far the training is.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Samples processed so far, over all generations
    #[arg(long)]
    samples: u64,
    /// The loss
    #[arg(long, allow_negative_numbers = true)]
    loss: Option<f64>,
    /// The epoch
    #[arg(long)]
    epoch: Option<f64>,
    /// Samples to process in all
    #[arg(long)]
    total: Option<u64>,
    /// The training is complete
    #[arg(long)]
    done: bool,
}

/// Sends one line to the agent of this rank. Outside of a trainer it does
/// nothing; it never waits and never fails a script.
pub fn run(args: &Args) -> ExitCode {
    let address = std::env::var_os("BFT_REPORT").unwrap_or_default();
    if let Some(path) = address.as_bytes().strip_prefix(b"unix://") {
        let progress = Progress {
            samples: args.samples,
            time_s: Some(clock::now_s()),
            generation: std::env::var("BFT_GENERATION")
                .ok()
                .and_then(|generation| generation.parse().ok()),
            loss: args.loss.filter(|loss| loss.is_finite()),
            epoch: args.epoch,
            total: args.total,
            done: args.done,
        };
        let line = format(&progress);
        let sent = std::os::unix::net::UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(line.as_bytes(), OsStr::from_bytes(path))
        });
        if let Err(error) = sent {
            say!("progress was not taken: {error}");
        }
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_contracts_line_is_read() {
        let line =
            b"bft1 samples=30000 t=1796036332.49 gen=4 loss=0.12 epoch=20 total=90000 done=1";
        let expected = Progress {
            samples: 30_000,
            time_s: Some(1_796_036_332.49),
            generation: Some(4),
            loss: Some(0.12),
            epoch: Some(20.0),
            total: Some(90_000),
            done: true,
        };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn unknown_keys_are_ignored_and_lines_without_samples_are_none() {
        let progress = parse(b"bft1 colour=red samples=5.0 loss=nan x\n").unwrap();
        assert_eq!((progress.samples, progress.loss), (5, None));
        for bad in [
            "",
            "bft1 ",
            "bft2 samples=5",
            "bft1 samples=-5",
            "bft1 samples=x",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse(&[0xff, 0xfe]), None);
    }

    #[test]
    fn the_newest_line_goes_out_at_most_twice_a_second_and_the_last_always() {
        let mut relay = Relay::default();
        let start = Instant::now();
        relay.take(b"bft1 samples=1", 4, false);
        assert_eq!(relay.due(start).map(|line| line.samples), Some(1));
        relay.take(b"bft1 samples=2", 4, false);
        relay.take(b"bft1 samples=3", 4, false);
        relay.take(b"bft1 samples=9 gen=3", 4, false);
        relay.take(b"noise", 4, false);
        assert_eq!(relay.due(start + RELAY_EVERY / 2), None);
        assert_eq!(relay.wake_at(), Some(start + RELAY_EVERY));
        let rest = relay.rest().unwrap();
        assert_eq!((rest.samples, rest.generation), (3, Some(4)));
        assert_eq!(relay.rest(), None);
        relay.take(b"bft1 samples=9 gen=3", 4, true);
        assert_eq!(relay.rest().unwrap().generation, Some(4));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            samples in 0u64..1_000_000_000, generation in proptest::option::of(0u64..99),
            loss in proptest::option::of(-1e6f64..1e6), done in any::<bool>(),
        ) {
            let progress = Progress { samples, generation, loss, done, ..Progress::default() };
            prop_assert_eq!(parse(format(&progress).as_bytes()), Some(progress));
        }

        #[test]
        fn no_datagram_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes);
            parse(&[b"bft1 samples=1 ".as_slice(), &bytes].concat());
        }
    }
}
