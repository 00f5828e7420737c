//! What the site's administrators say about who gets how much: speeds of nodes, limits and weights
//! of users and accounts.

use std::collections::{BTreeMap, BTreeSet};

use bftrainer_core::trainer::NodeCap;

use super::reader::Reader;

/// The name that stands for everybody who is not named.
const DEFAULT: &str = "default";

/// Smallest and largest speed of a node, its factors multiplied.
const SPEEDS: (f64, f64) = (0.001, 1000.0);

/// Speeds, limits and weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    /// Speed factors by feature.
    speed: BTreeMap<String, f64>,
    /// Most nodes of all trainers together.
    max_nodes: Option<u32>,
    /// Most nodes of each user's trainers together.
    max_nodes_per_user: BTreeMap<String, u32>,
    /// Most nodes of each account's trainers together.
    max_nodes_per_account: BTreeMap<String, u32>,
    /// Weight of each user's trainers together.
    weight_per_user: BTreeMap<String, f64>,
    /// By what an account's trainers' weights are multiplied.
    weight_per_account: BTreeMap<String, f64>,
}

impl Sharing {
    /// Takes the settings out of the file.
    pub(super) fn read(reader: &mut Reader) -> Self {
        let nodes = 0..=10_000_000;
        let per_user = "{ default = 64, ann = 128 }";
        let per_account = "{ default = 64, physics = 256 }";
        let weights = 0.001..=1000.0;
        Self {
            speed: reader.numbers("speed", 0.01..=100.0, "{ h100 = 1.8 }"),
            max_nodes: reader.optional_count("max_nodes", nodes.clone()),
            max_nodes_per_user: reader.counts("max_nodes_per_user", nodes.clone(), per_user),
            max_nodes_per_account: reader.counts("max_nodes_per_account", nodes, per_account),
            weight_per_user: reader.numbers("weight_per_user", weights.clone(), "{ ann = 2.0 }"),
            weight_per_account: reader.numbers("weight_per_account", weights, "{ physics = 2.0 }"),
        }
    }

    /// How fast nodes with these features are: the product of their factors.
    pub fn speed(&self, features: &BTreeSet<String>) -> f64 {
        let factors = features.iter().filter_map(|name| self.speed.get(name));
        factors.product::<f64>().clamp(SPEEDS.0, SPEEDS.1)
    }

    /// By what the weights of a user's trainers in an account are multiplied.
    pub fn weight(&self, user: &str, account: &str) -> f64 {
        let user = of(&self.weight_per_user, user).unwrap_or(1.0);
        user * of(&self.weight_per_account, account).unwrap_or(1.0)
    }

    /// The limits that a trainer of this user and account shares with others.
    pub fn caps(&self, user: &str, account: &str) -> Vec<NodeCap> {
        let all = self.max_nodes.map(|most| ("all trainers".to_owned(), most));
        let user = of(&self.max_nodes_per_user, user).map(|most| (format!("user {user}"), most));
        let account = of(&self.max_nodes_per_account, account)
            .map(|most| (format!("account {account}"), most));
        let caps = [all, user, account].into_iter().flatten();
        caps.map(|(name, max_nodes)| NodeCap { name, max_nodes })
            .collect()
    }
}

/// The value for `name`, else for everybody.
fn of<T: Copy>(table: &BTreeMap<String, T>, name: &str) -> Option<T> {
    table.get(name).or_else(|| table.get(DEFAULT)).copied()
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError};
    use super::*;

    fn parse(text: &str) -> Result<Sharing, ConfigError> {
        let config = Config::parse(text, std::path::Path::new("b.toml"))?;
        Ok(config.sharing)
    }

    fn caps(sharing: &Sharing, user: &str, account: &str) -> Vec<(String, u32)> {
        let caps = sharing.caps(user, account).into_iter();
        caps.map(|cap| (cap.name, cap.max_nodes)).collect()
    }

    #[test]
    fn without_settings_nothing_is_limited_and_all_are_equal() {
        let sharing = parse("").unwrap();
        assert_eq!(sharing.caps("ann", "physics"), []);
        assert_eq!(sharing.weight("ann", "physics"), 1.0);
        assert_eq!(sharing.speed(&BTreeSet::from(["h100".to_owned()])), 1.0);
    }

    #[test]
    fn a_nodes_speed_is_the_product_of_its_features_factors() {
        let sharing = parse("[speed]\nh100 = 1.5\nnvlink = 1.2\nslow = 0.01\n").unwrap();
        let speed = |features: &[&str]| {
            sharing.speed(&features.iter().map(|name| (*name).to_owned()).collect())
        };
        assert_eq!(speed(&[]), 1.0);
        assert_eq!(speed(&["h100", "rack1"]), 1.5);
        assert!((speed(&["h100", "nvlink"]) - 1.8).abs() < 1e-12);
        assert_eq!(speed(&["slow"]), 0.01);
    }

    #[test]
    fn limits_hold_for_all_for_a_user_and_for_an_account() {
        let sharing = parse(
            "max_nodes = 400\n\
             max_nodes_per_user = { default = 64, ann = 128 }\n\
             [max_nodes_per_account]\n\
             physics = 0\n",
        )
        .unwrap();
        let all = ("all trainers".to_owned(), 400);
        assert_eq!(
            caps(&sharing, "ann", "physics"),
            [
                all.clone(),
                ("user ann".to_owned(), 128),
                ("account physics".to_owned(), 0)
            ]
        );
        assert_eq!(
            caps(&sharing, "bob", "chemistry"),
            [all, ("user bob".to_owned(), 64)]
        );
    }

    #[test]
    fn weights_of_user_and_account_are_multiplied() {
        let sharing =
            parse("[weight_per_user]\nann = 2\n[weight_per_account]\ndefault = 0.5\nphysics = 3\n")
                .unwrap();
        assert_eq!(sharing.weight("ann", "physics"), 6.0);
        assert_eq!(sharing.weight("ann", "chemistry"), 1.0);
        assert_eq!(sharing.weight("bob", "physics"), 3.0);
    }

    #[test]
    fn every_bad_entry_is_reported_with_its_line() {
        let error = parse(
            "max_nodes_per_user = 64\n\
             [speed]\n\
             h100 = 1.8\n\
             a100 = \"fast\"\n\
             v100 = 0\n\
             [weight_per_account]\n\
             physics = -1\n",
        )
        .unwrap_err()
        .to_string();
        let lines: Vec<&str> = error.lines().collect();
        for (line, start) in lines.iter().zip([
            "b.toml:1: max_nodes_per_user: expected whole numbers from 0 to 10000000 by name, as {",
            "b.toml:4: speed.a100: expected numbers from 0.01 to 100 by name",
            "b.toml:5: speed.v100: expected",
            "b.toml:7: weight_per_account.physics: expected",
        ]) {
            assert!(line.starts_with(start), "{start} in\n{error}");
        }
        assert_eq!(lines.len(), 4, "{error}");
    }
}
