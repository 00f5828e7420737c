//! Nodes by number: names are interned once, and sorted as people sort them
//! (n2 before n10), because neighbours come and go together.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Nodes that a sentence names before it only counts them.
const NAMED_NODES: usize = 4;

/// A node, as an index into [`NodeNames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A class of nodes that are alike: what tasks may ask for is the same on all of them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ClassId(pub u32);

/// What is known of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassInfo {
    /// For people; empty where all nodes are alike.
    pub name: String,
    /// Throughput there over that on a node of speed 1.
    pub speed: f64,
}

/// The names behind the numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct NodeNames {
    names: Vec<String>,
    ids: HashMap<String, NodeId>,
    /// The nodes in host order; renewed by [`NodeNames::sort`].
    order: Vec<u32>,
    /// Position of each node in `order`.
    ranks: Vec<u32>,
}

impl NodeNames {
    /// The number of `name`, new or known.
    pub fn intern(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = NodeId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// The number of `name` when it is known.
    pub fn id(&self, name: &str) -> Option<NodeId> {
        self.ids.get(name).copied()
    }

    /// The name of `node`; empty for a number that was never given out.
    pub fn name(&self, node: NodeId) -> &str {
        self.names.get(node.0 as usize).map_or("", String::as_str)
    }

    /// "n1 and n2", or of more than a few "n1, n2, n3, n4 and 3 more"; nothing for no nodes.
    pub fn list(&self, nodes: &[NodeId]) -> String {
        let (named, others) = nodes.split_at(nodes.len().min(NAMED_NODES));
        let named: Vec<&str> = named.iter().map(|node| self.name(*node)).collect();
        match (&named[..], others.len()) {
            ([first @ .., last], 0) if !first.is_empty() => {
                format!("{} and {last}", first.join(", "))
            }
            (_, 0) => named.concat(),
            (_, more) => format!("{} and {more} more", named.join(", ")),
        }
    }

    /// Brings host order up to date after new names.
    pub fn sort(&mut self) {
        if self.ranks.len() == self.names.len() {
            return;
        }
        // What is in order already makes one run, which a stable sort only merges.
        self.order
            .extend(self.ranks.len() as u32..self.names.len() as u32);
        let name = |index: &u32| &self.names[*index as usize];
        self.order.sort_by(|a, b| natural_order(name(a), name(b)));
        self.ranks.resize(self.names.len(), 0);
        for (rank, index) in (0..).zip(&self.order) {
            self.ranks[*index as usize] = rank;
        }
    }

    /// Position of `node` in host order; nodes newer than the last
    /// [`NodeNames::sort`] come last.
    pub fn rank(&self, node: NodeId) -> u32 {
        self.ranks.get(node.0 as usize).copied().unwrap_or(u32::MAX)
    }
}

impl From<Vec<String>> for NodeNames {
    fn from(names: Vec<String>) -> Self {
        let ids = names
            .iter()
            .zip(0..)
            .map(|(name, index)| (name.clone(), NodeId(index)))
            .collect();
        let mut nodes = NodeNames {
            names,
            ids,
            order: Vec::new(),
            ranks: Vec::new(),
        };
        nodes.sort();
        nodes
    }
}

impl From<NodeNames> for Vec<String> {
    fn from(nodes: NodeNames) -> Self {
        nodes.names
    }
}

/// Compares texts with runs of digits compared as numbers.
pub fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (digits_a, digits_b) = (leading_digits(a), leading_digits(b));
        let order = if digits_a > 0 && digits_b > 0 {
            let (number_a, number_b) = (unpadded(&a[..digits_a]), unpadded(&b[..digits_b]));
            let order = (number_a.len(), number_a).cmp(&(number_b.len(), number_b));
            let order = order.then(digits_a.cmp(&digits_b));
            (a, b) = (&a[digits_a..], &b[digits_b..]);
            order
        } else {
            let (Some((first_a, rest_a)), Some((first_b, rest_b))) =
                (a.split_first(), b.split_first())
            else {
                return a.len().cmp(&b.len());
            };
            (a, b) = (rest_a, rest_b);
            first_a.cmp(first_b)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn leading_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn unpadded(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_host_names_sort_as_numbers() {
        let mut names = vec!["n10", "n2", "c05n06", "c05n1", "n", "c5n7", "n002"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["c5n7", "c05n1", "c05n06", "n", "n2", "n002", "n10"]);
    }

    #[test]
    fn a_few_nodes_are_named_and_the_others_counted() {
        let names: Vec<String> = (1..=6).map(|number| format!("n{number}")).collect();
        let nodes = NodeNames::from(names);
        let list = |count: u32| nodes.list(&(0..count).map(NodeId).collect::<Vec<_>>());
        assert_eq!([0, 1, 2].map(list), ["", "n1", "n1 and n2"]);
        assert_eq!(list(4), "n1, n2, n3 and n4");
        assert_eq!(list(6), "n1, n2, n3, n4 and 2 more");
    }

    #[test]
    fn ranks_follow_host_order_and_survive_a_snapshot() {
        let mut nodes = NodeNames::default();
        let ten = nodes.intern("n10");
        let two = nodes.intern("n2");
        nodes.sort();
        assert!(nodes.rank(two) < nodes.rank(ten));
        let copy = NodeNames::from(Vec::from(nodes.clone()));
        assert_eq!(copy.id("n2"), Some(two));
        assert_eq!(copy.rank(ten), nodes.rank(ten));
    }
}
