//! `--constraint` as slurmctld evaluates it for one node (seen with Slurm 22.05): `&` (or `,`)
//! and `|` from left to right, neither before the other, and parentheses.

use std::collections::BTreeSet;

/// Which features a node must have: terms, each with how it is connected to those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint(Vec<(Connective, Term)>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Connective {
    And,
    Or,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Feature(String),
    /// What stands in parentheses, which Slurm does not nest.
    Group(Vec<(Connective, String)>),
}

impl Constraint {
    /// Reads `--constraint`.
    ///
    /// # Errors
    /// A sentence, for brackets and counts, which are about several nodes of one job, and for
    /// what Slurm does not take either.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains(['[', ']', '*', '{', '}']) {
            return Err(format!(
                "its constraint \"{text}\" has brackets or counts, which say how several nodes of \
                 one job go together, but each of its tasks is one node; submit it with features, \
                 & and |, as -C \"a100|h100\""
            ));
        }
        let mut rest = text;
        match connected(&mut rest, term) {
            Some(terms) if rest.is_empty() => Ok(Self(terms)),
            _ => Err(format!(
                "its constraint \"{text}\" can't be read at \"{rest}\"; submit it with features, & \
                 and |, as -C \"a100|h100\""
            )),
        }
    }

    /// Whether a node with these features will do.
    pub fn allows(&self, features: &BTreeSet<String>) -> bool {
        holds(&self.0, |term| match term {
            Term::Feature(feature) => features.contains(feature),
            Term::Group(group) => holds(group, |feature| features.contains(feature)),
        })
    }
}

/// Whether terms hold together, from left to right.
fn holds<T>(terms: &[(Connective, T)], holds: impl Fn(&T) -> bool) -> bool {
    terms
        .iter()
        .fold(false, |before, (connective, term)| match connective {
            Connective::And => before && holds(term),
            Connective::Or => before || holds(term),
        })
}

/// Takes connected terms off the front of `rest`; the first one is joined to nothing by "or".
fn connected<T>(rest: &mut &str, term: fn(&mut &str) -> Option<T>) -> Option<Vec<(Connective, T)>> {
    let mut terms = vec![(Connective::Or, term(rest)?)];
    loop {
        let connective = match rest.chars().next() {
            Some('&' | ',') => Connective::And,
            Some('|') => Connective::Or,
            _ => return Some(terms),
        };
        *rest = &rest[1..];
        if rest.is_empty() {
            // Slurm overlooks a connective at the end.
            return Some(terms);
        }
        terms.push((connective, term(rest)?));
    }
}

fn term(rest: &mut &str) -> Option<Term> {
    let Some(inside) = rest.strip_prefix('(') else {
        return feature(rest).map(Term::Feature);
    };
    *rest = inside;
    let group = connected(rest, feature)?;
    *rest = rest.strip_prefix(')')?;
    Some(Term::Group(group))
}

fn feature(rest: &mut &str) -> Option<String> {
    let end = rest.find(['&', ',', '|', '(', ')']).unwrap_or(rest.len());
    let (feature, after) = rest.split_at(end);
    let is_feature = !feature.is_empty() && !feature.contains(char::is_whitespace);
    is_feature.then(|| {
        *rest = after;
        feature.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes, of n1 with a, n2 with b and c, n3 with a and c, n4 with x, that will do.
    fn allowed(constraint: &str) -> Vec<&'static str> {
        let constraint = Constraint::parse(constraint).unwrap();
        let nodes: [(&str, &[&str]); 4] = [
            ("n1", &["a"]),
            ("n2", &["b", "c"]),
            ("n3", &["a", "c"]),
            ("n4", &["x"]),
        ];
        let may = nodes.iter().filter(|(_, features)| {
            let features = features.iter().map(|feature| (*feature).to_owned());
            constraint.allows(&features.collect())
        });
        may.map(|(name, _)| *name).collect()
    }

    #[test]
    fn nodes_are_allowed_as_slurm_22_05_allows_them() {
        // `srun --test-only -C CONSTRAINT -w NODE` says the same.
        for (constraint, nodes) in [
            ("a", &["n1", "n3"][..]),
            ("a,c", &["n3"]),
            ("a|b&c", &["n2", "n3"]),
            ("b&c|a", &["n1", "n2", "n3"]),
            ("a&c|b", &["n2", "n3"]),
            ("(a|b)&c", &["n2", "n3"]),
            ("c&(a|b)", &["n2", "n3"]),
            ("a|(b&c)", &["n1", "n2", "n3"]),
            ("a|b&c|x", &["n2", "n3", "n4"]),
            ("(a&c)|(x)", &["n3", "n4"]),
            ("x|(a|b)&c", &["n2", "n3"]),
            ("(a|b)&(c|x)", &["n2", "n3"]),
            ("c&(a)|x", &["n3", "n4"]),
            ("x|", &["n4"]),
            ("A", &[]),
        ] {
            assert_eq!(allowed(constraint), nodes, "{constraint}");
        }
    }

    #[test]
    fn what_is_about_several_nodes_or_makes_no_sense_is_refused_with_a_sentence() {
        for constraint in ["[a|b]", "a*1", "[a*1&b*2]", "{a|b}"] {
            let error = Constraint::parse(constraint).unwrap_err();
            assert!(error.contains("brackets or counts"), "{error}");
        }
        for constraint in ["", "((a))", "a&&b", "(a", "a)", "&a", "a & b", "()", "a(b)"] {
            let error = Constraint::parse(constraint).unwrap_err();
            assert!(error.contains("can't be read at"), "{constraint}: {error}");
        }
        let deep = "(a&".repeat(1 << 20);
        assert!(Constraint::parse(&deep).is_err());
        let long = "a|".repeat(1 << 20);
        assert!(Constraint::parse(&long).is_ok());
    }
}
