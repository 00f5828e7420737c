//! bftrainerd's log on standard error: one line a message, whatever the message holds.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use log::{Level, Record};
use nix::sys::stat::fstat;

/// A longer message is cut there: agents and users choose parts of some, and may send 64 KiB,
/// bytes.
const LONGEST_MESSAGE: usize = 4096;

/// Warnings of one kind that others can cause at will come no more often.
const SELDOM: Duration = Duration::from_secs(60);

/// Has the log written to standard error from now on, at the levels of RUST_LOG (default: info).
pub fn start() {
    let for_journal = is_journal();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format(move |out, record| {
            let time = (!for_journal).then(|| out.timestamp_millis());
            write_line(out, time, record)
        })
        .init();
}

/// Writes what ends the program to standard error, whatever RUST_LOG says.
pub fn fatal(message: &dyn Display) {
    let priority = match is_journal() {
        true => format!("<{}>", priority(Level::Error)),
        false => String::new(),
    };
    eprintln!("{priority}bftrainerd: {}", printable(&message.to_string()));
}

/// Whether standard error is the journal (systemd.exec(5), JOURNAL_STREAM).
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let status = fstat(io::stderr()).ok();
    stream.is_some() && stream == status.map(|s| format!("{}:{}", s.st_dev, s.st_ino))
}

/// One line: with `time`, or without one as the journal takes it (sd-daemon(3)).
fn write_line(
    out: &mut impl Write,
    time: Option<impl Display>,
    record: &Record<'_>,
) -> io::Result<()> {
    let level = record.level();
    match time {
        Some(time) => write!(out, "[{time} ")?,
        None => write!(out, "<{}>[", priority(level))?,
    }
    let message = printable(&record.args().to_string());
    writeln!(out, "{level:<5} {}] {message}", record.target())
}

/// syslog's severity (RFC 5424, 6.2.1).
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// `text` with control characters escaped, and cut where it is too long.
fn printable(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars() {
        if line.len() >= LONGEST_MESSAGE {
            line += &format!("... (cut: {} bytes)", text.len());
            break;
        }
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

/// When a warning of one kind is due: once a minute at most.
#[derive(Debug, Default)]
pub struct Seldom {
    said: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// Whether to warn now: if so, with the words on those left out since the last time.
    pub fn due(&mut self) -> Option<String> {
        self.due_at(Instant::now())
    }

    fn due_at(&mut self, now: Instant) -> Option<String> {
        if self.said.is_some_and(|said| now - said < SELDOM) {
            self.left_out += 1;
            return None;
        }
        self.said = Some(now);
        Some(match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            left_out => format!("; {left_out} more since the last such warning"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: Level, time: Option<&str>, message: &str) -> String {
        let mut out = Vec::new();
        let mut record = Record::builder();
        record.level(level).target("t");
        write_line(
            &mut out,
            time,
            &record.args(format_args!("{message}")).build(),
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_journal_gets_each_level_s_priority_and_no_time() {
        for (level, begin) in [
            (Level::Error, "<3>[ERROR t] "),
            (Level::Warn, "<4>[WARN  t] "),
            (Level::Info, "<6>[INFO  t] "),
            (Level::Debug, "<7>[DEBUG t] "),
            (Level::Trace, "<7>[TRACE t] "),
        ] {
            assert_eq!(line(level, None, "said"), format!("{begin}said\n"));
        }
        assert_eq!(
            line(Level::Warn, Some("now"), "said"),
            "[now WARN  t] said\n"
        );
    }

    #[test]
    fn a_message_can_neither_begin_a_line_nor_steer_a_terminal() {
        for time in [None, Some("now")] {
            let written = line(Level::Info, time, "n1\n<0>x\r\u{1b}[2J\u{9b}1mä\0");
            assert!(
                written.ends_with("] n1\\n<0>x\\r\\u{1b}[2J\\u{9b}1mä\\u{0}\n"),
                "{written}"
            );
            assert_eq!(written.lines().count(), 1);
        }
    }

    #[test]
    fn a_long_message_is_cut_escaped_or_not() {
        let whole = "x".repeat(LONGEST_MESSAGE);
        assert_eq!(printable(&whole), whole);
        for part in ["x", "ä", "\u{1b}"] {
            let text = part.repeat(60_000);
            let cut = printable(&text);
            assert!(cut.len() < LONGEST_MESSAGE + 50, "{}", cut.len());
            assert!(cut.ends_with(&format!("... (cut: {} bytes)", text.len())));
        }
    }

    #[test]
    fn a_warning_comes_once_a_minute_with_the_number_of_those_left_out() {
        let mut seldom = Seldom::default();
        let began = Instant::now();
        let mut due = |after_s| seldom.due_at(began + Duration::from_secs(after_s));
        assert_eq!(due(0).as_deref(), Some(""));
        assert_eq!((due(0), due(59)), (None, None));
        let said = due(60).unwrap();
        assert!(said.contains("2 more"), "{said}");
        assert_eq!(due(119), None);
        let said = due(500).unwrap();
        assert!(said.contains("1 more"), "{said}");
        assert_eq!(due(600).as_deref(), Some(""));
    }
}
