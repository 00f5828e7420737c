//! The trainer specification, as users write it: `nodes=1-16,samples=90000`.
//! One grammar for `--bftrainer=SPEC` and for `bftrainer:SPEC` in a job's comment.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// What a job's comment starts with when the job is a trainer.
pub const COMMENT_PREFIX: &str = "bftrainer:";

/// Longest specification in bytes.
pub const MAX_BYTES: usize = 4096;

/// Most points that `curve=` may have.
pub const MAX_CURVE_POINTS: usize = 64;

/// Shown by `--bftrainer=help` and quoted in errors.
pub const HELP: &str = "\
bftrainer: --bftrainer=KEY=VALUE[,KEY=VALUE...]
  nodes=MIN-MAX   fewest and most nodes to train on (or nodes=MAX, from 1); required
  samples=N       samples to process in all
  weight=W        importance among your own trainers, from 0.000001 to 1000 (default 1)
  curve=N:R/N:R   throughput R in samples per second on N nodes, as 1:7115.3/2:13071.7
  up=S            seconds without progress when nodes join
  down=S          seconds without progress when nodes leave
example: sbatch --bftrainer=nodes=1-16,samples=90000 train.sh
";

/// One trainer's specification.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Spec {
    /// Fewest nodes to train on, at least 1.
    pub min_nodes: u32,
    /// Most nodes to train on, at least `min_nodes`.
    pub max_nodes: u32,
    /// Samples to process in all.
    pub samples: Option<u64>,
    /// Importance among the owner's trainers, from 10^-6 to 1000.
    pub weight: f64,
    /// (nodes, samples per second), nodes strictly rising; empty when unknown.
    pub curve: Vec<(u32, f64)>,
    /// Seconds without progress when nodes join.
    pub up_s: Option<f64>,
    /// Seconds without progress when nodes leave.
    pub down_s: Option<f64>,
}

/// Why a specification was refused.
#[derive(Debug, Error, PartialEq)]
pub enum SpecError {
    /// No text at all.
    #[error("the specification is empty: write nodes=MIN-MAX, as nodes=1-16")]
    Empty,
    /// More than [`MAX_BYTES`].
    #[error("the specification has {0} bytes: at most {MAX_BYTES} are read")]
    TooLong(usize),
    /// `nodes=` is missing.
    #[error("nodes= is missing: write nodes=MIN-MAX, as nodes=1-16")]
    NoNodes,
    /// A piece without `=`.
    #[error("\"{0}\" is not KEY=VALUE: write for instance nodes=1-16")]
    NotKeyValue(String),
    /// An unknown key.
    #[error("unknown key \"{0}\": expected nodes, samples, weight, curve, up or down")]
    UnknownKey(String),
    /// A key given twice.
    #[error("{0}= stands twice: write it once")]
    Twice(&'static str),
    /// A value that does not fit its key.
    #[error("{key}={value}: expected {expected}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// The value as it was written.
        value: String,
        /// What it should have been.
        expected: &'static str,
    },
}

const NODES: &str = "MIN-MAX or MAX, whole numbers with 1 <= MIN <= MAX <= 100000, as nodes=1-16";
const SAMPLES: &str = "a whole number of samples from 1 to 10^18, as samples=90000";
const WEIGHT: &str = "a number from 0.000001 to 1000, as weight=2";
const CURVE: &str = "at most 64 NODES:SAMPLES_PER_SECOND joined by \"/\", nodes rising from 1, \
                     rates from 10^-9 to 10^15, as curve=1:7115.3/2:13071.7";
const SECONDS: &str = "seconds from 0 to 86400, as 18.5";

impl Spec {
    /// The specification in a job's comment: `None` when the comment does not
    /// start with [`COMMENT_PREFIX`], an error when it does and what follows is bad.
    pub fn from_comment(comment: &str) -> Option<Result<Self, SpecError>> {
        comment.strip_prefix(COMMENT_PREFIX).map(str::parse)
    }

    /// This specification with the keys in `changes` set anew, as in `weight=2,nodes=1-4`.
    pub fn changed(&self, changes: &str) -> Result<Self, SpecError> {
        let given: Given = changes.parse()?;
        let (min_nodes, max_nodes) = given.nodes.unwrap_or((self.min_nodes, self.max_nodes));
        Ok(Spec {
            min_nodes,
            max_nodes,
            samples: given.samples.or(self.samples),
            weight: given.weight.unwrap_or(self.weight),
            curve: given.curve.unwrap_or_else(|| self.curve.clone()),
            up_s: given.up_s.or(self.up_s),
            down_s: given.down_s.or(self.down_s),
        })
    }

    /// The comment that carries this specification.
    pub fn to_comment(&self) -> String {
        format!("{COMMENT_PREFIX}{self}")
    }
}

/// What the controller keeps in the AdminComment of an admitted trainer's array,
/// where its owner can't change it.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminComment {
    /// The accepted specification.
    pub spec: Spec,
    /// When the array was submitted, epoch seconds. It tells two trainers of one
    /// job number apart; Slurm's own submit time can't, it moves at each requeue.
    pub submitted_s: i64,
    /// The time limit that its owner asked for, minutes: the longest stay on one
    /// node. Slurm's own limit of a task is the one that we set last.
    pub stay_min: Option<u32>,
    /// The exit code with which the trainer ended.
    pub exit_code: Option<i32>,
    /// Why it failed.
    pub reason: Option<String>,
}

impl AdminComment {
    /// Reads an AdminComment; `None` when it is not one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(COMMENT_PREFIX)?.split(';');
        let spec = parts.next()?.parse().ok()?;
        let submitted_s = parts.next()?.strip_prefix("submitted=")?.parse().ok()?;
        let mut part = parts.next();
        let stay_min = match part.and_then(|part| part.strip_prefix("stay=")) {
            Some(minutes) => {
                part = parts.next();
                Some(minutes.parse().ok()?)
            }
            None => None,
        };
        let exit_code = match part {
            Some(part) => Some(part.strip_prefix("exit=")?.parse().ok()?),
            None => None,
        };
        let reason: Vec<&str> = parts.collect();
        Some(AdminComment {
            spec,
            submitted_s,
            stay_min,
            exit_code,
            reason: (!reason.is_empty()).then(|| reason.join(";")),
        })
    }
}

impl fmt::Display for AdminComment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdminComment {
            spec, submitted_s, ..
        } = self;
        write!(f, "{COMMENT_PREFIX}{spec};submitted={submitted_s}")?;
        if let Some(minutes) = self.stay_min {
            write!(f, ";stay={minutes}")?;
        }
        if let Some(exit_code) = self.exit_code {
            write!(f, ";exit={exit_code}")?;
            if let Some(reason) = &self.reason {
                write!(f, ";{reason}")?;
            }
        }
        Ok(())
    }
}

/// The keys of a specification that were given.
#[derive(Debug, Default)]
struct Given {
    nodes: Option<(u32, u32)>,
    samples: Option<u64>,
    weight: Option<f64>,
    curve: Option<Vec<(u32, f64)>>,
    up_s: Option<f64>,
    down_s: Option<f64>,
}

impl FromStr for Given {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SpecError::Empty);
        }
        if text.len() > MAX_BYTES {
            return Err(SpecError::TooLong(text.len()));
        }
        let mut given = Given::default();
        for piece in text.split(',') {
            let Some((key, value)) = piece.split_once('=') else {
                return Err(SpecError::NotKeyValue(shown(piece)));
            };
            match key.trim() {
                "nodes" => set(&mut given.nodes, "nodes", value, NODES, parse_nodes)?,
                "samples" => set(&mut given.samples, "samples", value, SAMPLES, parse_samples)?,
                "weight" => set(&mut given.weight, "weight", value, WEIGHT, parse_weight)?,
                "curve" => set(&mut given.curve, "curve", value, CURVE, parse_curve)?,
                "up" => set(&mut given.up_s, "up", value, SECONDS, parse_seconds)?,
                "down" => set(&mut given.down_s, "down", value, SECONDS, parse_seconds)?,
                other => return Err(SpecError::UnknownKey(shown(other))),
            }
        }
        Ok(given)
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let given: Given = text.parse()?;
        let (min_nodes, max_nodes) = given.nodes.ok_or(SpecError::NoNodes)?;
        Ok(Spec {
            min_nodes,
            max_nodes,
            samples: given.samples,
            weight: given.weight.unwrap_or(1.0),
            curve: given.curve.unwrap_or_default(),
            up_s: given.up_s,
            down_s: given.down_s,
        })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nodes={}-{}", self.min_nodes, self.max_nodes)?;
        if let Some(samples) = self.samples {
            write!(f, ",samples={samples}")?;
        }
        if self.weight != 1.0 {
            write!(f, ",weight={}", self.weight)?;
        }
        for (index, (nodes, rate)) in self.curve.iter().enumerate() {
            let lead = if index == 0 { ",curve=" } else { "/" };
            write!(f, "{lead}{nodes}:{rate}")?;
        }
        if let Some(up_s) = self.up_s {
            write!(f, ",up={up_s}")?;
        }
        if let Some(down_s) = self.down_s {
            write!(f, ",down={down_s}")?;
        }
        Ok(())
    }
}

/// Parses `value` into `slot`, refusing a second one.
fn set<T>(
    slot: &mut Option<T>,
    key: &'static str,
    value: &str,
    expected: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<(), SpecError> {
    if slot.is_some() {
        return Err(SpecError::Twice(key));
    }
    *slot = parse(value.trim());
    if slot.is_none() {
        return Err(SpecError::BadValue {
            key,
            value: shown(value),
            expected,
        });
    }
    Ok(())
}

/// `text` as an error message may quote it: printable and short.
fn shown(text: &str) -> String {
    const MOST_CHARS: usize = 60;
    let mut out: String = text
        .chars()
        .take(MOST_CHARS)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > MOST_CHARS {
        out.push_str("...");
    }
    out
}

fn parse_nodes(value: &str) -> Option<(u32, u32)> {
    let (min, max) = match value.split_once('-') {
        Some((min, max)) => (parse_count(min)?, parse_count(max)?),
        None => (1, parse_count(value)?),
    };
    (1 <= min && min <= max && max <= 100_000).then_some((min, max))
}

fn parse_samples(value: &str) -> Option<u64> {
    let samples = digits(value)?.parse().ok()?;
    (1..=1_000_000_000_000_000_000)
        .contains(&samples)
        .then_some(samples)
}

fn parse_weight(value: &str) -> Option<f64> {
    parse_number(value).filter(|weight| (1e-6..=1000.0).contains(weight))
}

fn parse_seconds(value: &str) -> Option<f64> {
    parse_number(value).filter(|seconds| (0.0..=86_400.0).contains(seconds))
}

fn parse_curve(value: &str) -> Option<Vec<(u32, f64)>> {
    let mut points: Vec<(u32, f64)> = Vec::new();
    for point in value.split('/') {
        let (nodes, rate) = point.split_once(':')?;
        let (nodes, rate) = (parse_count(nodes)?, parse_number(rate)?);
        let rises = points.last().is_none_or(|(last, _)| *last < nodes);
        if !rises || nodes == 0 || nodes > 100_000 || !(1e-9..=1e15).contains(&rate) {
            return None;
        }
        points.push((nodes, rate));
    }
    (points.len() <= MAX_CURVE_POINTS).then_some(points)
}

fn parse_count(value: &str) -> Option<u32> {
    digits(value)?.parse().ok()
}

/// Plain digits only: no sign, no inner space.
fn digits(value: &str) -> Option<&str> {
    let value = value.trim();
    value
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(value)
}

fn parse_number(value: &str) -> Option<f64> {
    let number: f64 = value.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_key_is_read() {
        let spec: Spec =
            "nodes=2-16,samples=90000,weight=2.5,curve=1:7115.3/2:13071.7,up=18,down=0.5"
                .parse()
                .unwrap();
        assert_eq!((spec.min_nodes, spec.max_nodes), (2, 16));
        assert_eq!(spec.samples, Some(90_000));
        assert_eq!(spec.weight, 2.5);
        assert_eq!(spec.curve, vec![(1, 7115.3), (2, 13071.7)]);
        assert_eq!((spec.up_s, spec.down_s), (Some(18.0), Some(0.5)));
    }

    #[test]
    fn one_number_of_nodes_is_the_maximum() {
        let spec: Spec = "nodes=16".parse().unwrap();
        assert_eq!((spec.min_nodes, spec.max_nodes), (1, 16));
    }

    #[test]
    fn bad_specifications_are_refused_with_what_was_expected() {
        for (text, part) in [
            ("", "nodes=MIN-MAX"),
            ("samples=5", "nodes= is missing"),
            ("nodes", "not KEY=VALUE"),
            ("nodes=0-4", "nodes=0-4: expected"),
            ("nodes=0", "1 <= MIN"),
            ("nodes=4-2", "1 <= MIN"),
            ("nodes=+4", "whole numbers"),
            ("nodes=-4", "whole numbers"),
            ("nodes=1-99999999999", "whole numbers"),
            ("nodes=1-4,nodes=2", "stands twice"),
            ("nodes=1-4,size=3", "unknown key \"size\""),
            ("nodes=1-4,", "not KEY=VALUE"),
            ("nodes=1-4,samples=1e5", "whole number of samples"),
            ("nodes=1-4,weight=0", "from 0.000001"),
            ("nodes=1-4,weight=1e-320", "from 0.000001"),
            ("nodes=1-4,curve=1:1e-300", "rates from"),
            ("nodes=1-4,weight=NaN", "from 0.000001"),
            ("nodes=1-4,weight=inf", "from 0.000001"),
            ("nodes=1-4,curve=2:10/1:20", "nodes rising"),
            ("nodes=1-4,curve=1:-3", "rates from"),
            ("nodes=1-4,up=-1", "seconds from 0"),
        ] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn changes_set_their_keys_and_leave_the_others() {
        let spec: Spec = "nodes=2-16,samples=5,curve=1:10/2:19".parse().unwrap();
        let changed = spec.changed("weight=3,nodes=2-8").unwrap();
        let expected: Spec = "nodes=2-8,samples=5,weight=3,curve=1:10/2:19"
            .parse()
            .unwrap();
        assert_eq!(changed, expected);
        assert!(spec.changed("weight=0").is_err());
        assert!(spec.changed("").is_err());
    }

    #[test]
    fn a_comment_without_our_prefix_is_no_specification() {
        assert!(Spec::from_comment("nodes=1-4").is_none());
        assert!(Spec::from_comment("bftrainer:nodes=1-4").unwrap().is_ok());
        assert!(Spec::from_comment("bftrainer:nods=1-4").unwrap().is_err());
    }

    #[test]
    fn an_admin_comment_is_read_back() {
        let spec: Spec = "nodes=1-4,samples=5".parse().unwrap();
        let mut comment = AdminComment {
            spec,
            submitted_s: 1_796_043_852,
            stay_min: None,
            exit_code: None,
            reason: None,
        };
        let text = comment.to_string();
        assert_eq!(text, "bftrainer:nodes=1-4,samples=5;submitted=1796043852");
        assert_eq!(AdminComment::parse(&text), Some(comment.clone()));
        comment.stay_min = Some(20);
        assert_eq!(
            AdminComment::parse(&comment.to_string()),
            Some(comment.clone())
        );
        comment.exit_code = Some(7);
        comment.reason = Some("failed 3 times; last: exit 7".to_owned());
        assert_eq!(AdminComment::parse(&comment.to_string()), Some(comment));
        for text in [
            "bftrainer:nodes=1-4",
            "submitted=5",
            "bftrainer:nodes=1-4;exit=0",
            "",
        ] {
            assert_eq!(AdminComment::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused_in_one_short_line(text in "\\PC{0,200}|[a-z0-9=,:/.-]{0,80}") {
            if let Err(error) = text.parse::<Spec>() {
                let line = error.to_string();
                prop_assert!(!line.contains('\n') && line.len() < 2000);
            }
        }

        #[test]
        fn what_is_written_is_read_back(
            min in 1u32..100, more in 0u32..100, samples in proptest::option::of(1u64..1_000_000),
            weight in 0.001f64..1000.0, rates in proptest::collection::vec(0.1f64..1e9, 0..8),
            up in proptest::option::of(0.0f64..100.0),
        ) {
            let spec = Spec {
                min_nodes: min,
                max_nodes: min + more,
                samples,
                weight,
                curve: (1u32..).zip(rates).collect(),
                up_s: up,
                down_s: up,
            };
            prop_assert_eq!(Spec::from_comment(&spec.to_comment()).unwrap().unwrap(), spec);
        }
    }
}
