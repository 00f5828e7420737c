//! Lanes of a chart in which trainers are shown one upon the other.

/// Most trainers that are shown apart from each other at one time; more than the eye tells apart.
pub const MOST: usize = 48;

/// Whose each lane is. A trainer keeps its lane as long as it has nodes, then it is another's;
/// the last lane is shared by those that find none.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    owners: Vec<Option<u64>>,
}

impl Lanes {
    /// The lane of each of the trainers that have nodes now, by their numbers. Lanes are opened
    /// as they are needed.
    pub fn of(&mut self, running: &[u64]) -> Vec<usize> {
        for owner in &mut self.owners {
            *owner = owner.filter(|number| running.contains(number));
        }
        let lane_of = |number: &u64| {
            let own = self
                .owners
                .iter()
                .position(|it| it.as_ref() == Some(number));
            let free = || self.owners.iter().position(Option::is_none);
            let lane = own.or_else(free).unwrap_or(self.owners.len());
            let lane = lane.min(MOST - 1);
            if lane == self.owners.len() {
                self.owners.push(None);
            }
            self.owners[lane].get_or_insert(*number);
            lane
        };
        running.iter().map(lane_of).collect()
    }

    /// Lanes that were ever opened.
    pub fn opened(&self) -> usize {
        self.owners.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_keeps_its_lane_and_many_share_the_last() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.of(&[1, 2]), [0, 1]);
        assert_eq!(lanes.of(&[2, 3]), [1, 0]);
        let many: Vec<u64> = (2..102).collect();
        let found = lanes.of(&many);
        assert_eq!(found[..3], [1, 0, 2]);
        assert_eq!(found.iter().filter(|lane| **lane == MOST - 1).count(), 53);
        assert_eq!(lanes.opened(), MOST);
    }
}
