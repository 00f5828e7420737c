//! Takes settings out of a TOML text one by one and collects what is wrong.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A TOML text whose settings are taken out one by one.
pub struct Reader<'t> {
    text: &'t str,
    path: &'t Path,
    table: DeTable<'t>,
    syntax_errors: Vec<(usize, String)>,
    problems: Vec<(usize, String)>,
}

impl<'t> Reader<'t> {
    /// Parses `text`; when that fails, the syntax errors are all the problems.
    pub fn new(text: &'t str, path: &'t Path) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        let syntax_errors = errors
            .iter()
            .map(|error| {
                let at = error.span().map_or(0, |span| span.start);
                (at, error.message().to_owned())
            })
            .collect();
        Reader {
            text,
            path,
            table: table.into_inner(),
            syntax_errors,
            problems: Vec::new(),
        }
    }

    /// A number in `range`.
    pub fn number(&mut self, key: &str, default: f64, range: RangeInclusive<f64>) -> f64 {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let value = self.take(key, &expected, |value| {
            number(value).filter(|number| range.contains(number))
        });
        value.unwrap_or(default)
    }

    /// A whole number in `range`.
    pub fn count(&mut self, key: &str, default: u32, range: RangeInclusive<u32>) -> u32 {
        self.optional_count(key, range).unwrap_or(default)
    }

    /// The same when it is there.
    pub fn optional_count(&mut self, key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.take(key, &expected, |value| {
            count(value).filter(|number| range.contains(number))
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &str, default: bool) -> bool {
        self.take(key, "true or false", DeValue::as_bool)
            .unwrap_or(default)
    }

    /// One of some words.
    pub fn one_of(
        &mut self,
        key: &str,
        default: &'static str,
        words: &[&'static str],
    ) -> &'static str {
        let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let value = self.take(key, &quoted.join(" or "), |value| {
            words
                .iter()
                .copied()
                .find(|word| value.as_str() == Some(word))
        });
        value.unwrap_or(default)
    }

    /// A text that `is_valid`.
    pub fn text(
        &mut self,
        key: &str,
        default: &str,
        is_valid: fn(&str) -> bool,
        expected: &str,
    ) -> String {
        self.optional_text(key, is_valid, expected)
            .unwrap_or_else(|| default.to_owned())
    }

    /// A text that `is_valid`, when it is there.
    pub fn optional_text(
        &mut self,
        key: &str,
        is_valid: fn(&str) -> bool,
        expected: &str,
    ) -> Option<String> {
        self.take(key, expected, |value| {
            value
                .as_str()
                .filter(|text| is_valid(text))
                .map(str::to_owned)
        })
    }

    /// An array of texts that are each valid.
    pub fn texts(&mut self, key: &str, is_valid: fn(&str) -> bool, expected: &str) -> Vec<String> {
        self.take(key, expected, |value| match value {
            DeValue::Array(items) => items
                .iter()
                .map(|item| {
                    let text = item.get_ref().as_str().filter(|text| is_valid(text));
                    text.map(str::to_owned)
                })
                .collect(),
            _ => None,
        })
        .unwrap_or_default()
    }

    /// A table of numbers in `range`, by names of the administrator's choice.
    pub fn numbers(
        &mut self,
        key: &str,
        range: RangeInclusive<f64>,
        example: &str,
    ) -> BTreeMap<String, f64> {
        let expected = format!(
            "numbers from {} to {} by name, as {example}",
            range.start(),
            range.end()
        );
        self.by_name(key, &expected, |value| {
            number(value).filter(|number| range.contains(number))
        })
    }

    /// A table of whole numbers in `range`, by names of the administrator's choice.
    pub fn counts(
        &mut self,
        key: &str,
        range: RangeInclusive<u32>,
        example: &str,
    ) -> BTreeMap<String, u32> {
        let expected = format!(
            "whole numbers from {} to {} by name, as {example}",
            range.start(),
            range.end()
        );
        self.by_name(key, &expected, |value| {
            count(value).filter(|number| range.contains(number))
        })
    }

    fn by_name<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl Fn(&DeValue<'t>) -> Option<T>,
    ) -> BTreeMap<String, T> {
        let entries = self.take(key, expected, |value| match value {
            DeValue::Table(table) => Some(table.clone()),
            _ => None,
        });
        let mut read_entries = BTreeMap::new();
        for (name, value) in entries.into_iter().flatten() {
            match read(value.get_ref()) {
                Some(number) => {
                    read_entries.insert(name.get_ref().to_string(), number);
                }
                None => self.problem(&format!("{key}.{}", name.get_ref()), expected, &value),
            }
        }
        read_entries
    }

    /// The problems, `FILE:LINE: sentence`; what was not taken is unknown.
    pub fn into_problems(mut self) -> Vec<String> {
        for key in self.table.keys() {
            let sentence = format!(
                "unknown setting \"{}\": see bftrainer.toml's list of settings in docs/admin.md",
                key.get_ref()
            );
            self.problems.push((key.span().start, sentence));
        }
        if !self.syntax_errors.is_empty() {
            // What could not be parsed has no values to speak of.
            self.problems = self.syntax_errors;
        }
        self.problems.sort();
        let line_of = |at: usize| 1 + self.text[..at.min(self.text.len())].matches('\n').count();
        self.problems
            .iter()
            .map(|(at, sentence)| format!("{}:{}: {sentence}", self.path.display(), line_of(*at)))
            .collect()
    }

    fn take<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&DeValue<'t>) -> Option<T>,
    ) -> Option<T> {
        let found = self
            .table
            .keys()
            .find(|name| name.get_ref() == key)?
            .clone();
        let value: Spanned<DeValue<'t>> = self.table.remove(&found)?;
        let result = read(value.get_ref());
        if result.is_none() {
            self.problem(key, expected, &value);
        }
        result
    }

    fn problem(&mut self, key: &str, expected: &str, value: &Spanned<DeValue<'t>>) {
        let written: String = self.text[value.span()].chars().take(60).collect();
        let sentence = format!("{key}: expected {expected}, found {written}");
        self.problems.push((value.span().start, sentence));
    }
}

fn number(value: &DeValue) -> Option<f64> {
    match value {
        DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
        DeValue::Integer(number) if number.radix() == 10 => {
            number.as_str().replace('_', "").parse().ok()
        }
        _ => None,
    }
}

fn count(value: &DeValue) -> Option<u32> {
    match value {
        DeValue::Integer(number) if number.radix() == 10 => {
            number.as_str().replace('_', "").parse().ok()
        }
        _ => None,
    }
}

/// Every setting, for the test that each is checked.
#[cfg(test)]
pub const ALL_KEYS_FOR_TESTS: &[&str] = &[
    "controller",
    "partition",
    "state_dir",
    "munge_socket",
    "http",
    "exclude_nodes",
    "poll_interval_s",
    "max_tasks",
    "max_starts_per_s",
    "place_timeout_s",
    "heartbeat_s",
    "parallel_fraction",
    "up_s",
    "down_s",
    "closing",
    "metric",
    "efficiency_floor",
    "exponent",
    "horizon_s",
    "min_trainers",
    "min_hole_s",
    "vacate_lead_s",
    "lease_s",
    "grace_s",
    "worker_start_timeout_s",
    "quarantine_s",
    "quarantine_max_s",
    "failures",
    "learn",
    "speed",
    "max_nodes",
    "max_nodes_per_user",
    "max_nodes_per_account",
    "weight_per_user",
    "weight_per_account",
    "solver_limit_s",
    "solver_memory_mb",
];
