//! Generic resources as Slurm writes them: `gpu:a100:4(S:0-1),shard:8` of nodes, `gres:gpu:a100:2`
//! or `gres/gpu:2` of jobs.

use std::collections::BTreeMap;

/// TRES that are no generic resources.
const OTHER_TRES: [&str; 9] = [
    "cpu", "mem", "node", "billing", "energy", "license", "bb", "fs", "pages",
];

/// Counts of generic resources by name and type; those without a type have an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gres(BTreeMap<(String, String), u64>);

impl Gres {
    /// Reads a list; what is no generic resource is left out.
    pub fn parse(list: &str) -> Self {
        let mut gres = Self::default();
        for piece in without_parentheses(list).split(',') {
            let piece = piece.trim().replace('=', ":");
            let named = piece
                .strip_prefix("gres:")
                .or_else(|| piece.strip_prefix("gres/"));
            let fields: Vec<&str> = named.unwrap_or(&piece).split(':').collect();
            let fields: Vec<&str> = fields
                .into_iter()
                .filter(|field| *field != "no_consume")
                .collect();
            let (name, kind, number) = match fields[..] {
                [name] => (name, "", Some(1)),
                [name, last] => match count(last) {
                    Some(number) => (name, "", Some(number)),
                    None => (name, last, Some(1)),
                },
                [name, kind, last, ..] => (name, kind, count(last)),
                [] => continue,
            };
            let base = name.split('/').next().unwrap_or_default();
            let is_gres = named.is_some() || !OTHER_TRES.contains(&base);
            if let Some(number) = number
                && is_gres
                && !matches!(name, "" | "(null)" | "none")
            {
                *gres
                    .0
                    .entry((name.to_owned(), kind.to_owned()))
                    .or_default() += number;
            }
        }
        gres
    }

    /// So many times as much.
    pub fn times(mut self, factor: u64) -> Self {
        for number in self.0.values_mut() {
            *number = number.saturating_mul(factor);
        }
        self
    }

    /// Of everything the larger count.
    pub fn larger(mut self, other: Self) -> Self {
        for (kind, number) in other.0 {
            let have = self.0.entry(kind).or_default();
            *have = number.max(*have);
        }
        self
    }

    /// Whether there is as much of everything as in `wanted`; what is wanted of any type may be
    /// of several.
    pub fn covers(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|((name, kind), number)| {
            let fits = |(of, as_kind): &(String, String)| {
                of == name && (kind.is_empty() || as_kind == kind)
            };
            let fitting = self.0.iter().filter(|(have, _)| fits(have));
            fitting.map(|(_, number)| number).sum::<u64>() >= *number
        })
    }
}

impl std::fmt::Display for Gres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pieces = self.0.iter().map(|((name, kind), number)| match &kind[..] {
            "" => format!("{name}:{number}"),
            kind => format!("{name}:{kind}:{number}"),
        });
        f.write_str(&pieces.collect::<Vec<String>>().join(","))
    }
}

/// The sockets of a resource, which may hold commas, are of no interest.
fn without_parentheses(list: &str) -> String {
    let mut depth = 0_u32;
    let outside = list.chars().filter(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    });
    outside.collect()
}

/// A count, perhaps in K, M, G or T.
fn count(text: &str) -> Option<u64> {
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let upper = text.to_ascii_uppercase();
    let (digits, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((upper.strip_suffix(unit)?, *shift)))
        .unwrap_or((&upper, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(node: &str, job: &str) -> bool {
        Gres::parse(node).covers(&Gres::parse(job))
    }

    #[test]
    fn nodes_resources_are_read_with_types_sockets_and_units() {
        for (list, read) in [
            ("gpu:a100:2(S:0,1),gpu:v100:1", "gpu:a100:2,gpu:v100:1"),
            ("gpu:4(S:0-1),shard:8", "gpu:4,shard:8"),
            ("gpu", "gpu:1"),
            ("gpu:a100", "gpu:a100:1"),
            (
                "bandwidth:lustre:no_consume:4G",
                "bandwidth:lustre:4294967296",
            ),
            ("(null)", ""),
            ("", ""),
        ] {
            assert_eq!(Gres::parse(list).to_string(), read, "{list}");
        }
    }

    #[test]
    fn jobs_resources_are_read_as_every_slurm_writes_them() {
        for list in [
            "gres:gpu:a100:2",
            "gres/gpu:a100:2",
            "gres/gpu:a100=2",
            "gpu:a100:2",
        ] {
            assert_eq!(Gres::parse(list).to_string(), "gpu:a100:2", "{list}");
        }
        assert_eq!(
            Gres::parse("cpu:4,gres/gpu:1,license/x:2").to_string(),
            "gpu:1"
        );
        assert_eq!(Gres::parse("gres:none").to_string(), "");
    }

    #[test]
    fn a_type_is_only_matched_when_it_is_asked_for() {
        let node = "gpu:a100:2,gpu:v100:1";
        assert!(covers(node, "gres:gpu:3"));
        assert!(!covers(node, "gres:gpu:4"));
        assert!(covers(node, "gres:gpu:a100:2"));
        assert!(!covers(node, "gres:gpu:v100:2"));
        assert!(!covers("gpu:4", "gres:gpu:a100"));
        assert!(!covers("", "gres:gpu"));
        assert!(covers("", ""));
        assert!(!Gres::parse("gpu:4").covers(&Gres::parse("gres:gpu:2").times(3)));
    }
}
