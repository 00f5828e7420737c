//! What a sweep's report draws: efficiency and samples over one of the settings that were swept, a
//! line for each combination of the others.

use serde::Serialize;

use super::super::run::Outcome;
use super::super::sweep::{Axis, Value};

/// Lines over one setting.
#[derive(Debug, Serialize)]
pub struct Curves {
    /// The setting's name.
    setting: String,
    /// Its values, ascending; of one that has no numbers the positions of its values' names.
    at: Vec<f64>,
    /// Names of the values, when they are not numbers.
    names: Option<Vec<String>>,
    lines: Vec<Line>,
}

/// One combination of the other settings. Values by position, `None` where there is none.
#[derive(Debug, Serialize)]
struct Line {
    label: String,
    efficiency: Vec<Option<f64>>,
    samples: Vec<Option<f64>>,
}

impl Curves {
    /// The outcomes of a sweep over `axes`, one for each of `combinations`. They are drawn over the
    /// first setting that has numbers, or over the first if none has.
    pub fn of(axes: &[Axis], combinations: &[Vec<Value>], outcomes: &[Outcome]) -> Self {
        let along = axes.iter().position(Axis::is_numeric).unwrap_or(0);
        let mut curves = Curves::over(axes, combinations, along);
        for (combination, outcome) in combinations.iter().zip(outcomes) {
            let others = axes.iter().zip(combination).enumerate();
            let others = others.filter(|(index, _)| *index != along);
            let label: Vec<String> = others
                .map(|(_, (axis, value))| format!("{} {value}", axis.name()))
                .collect();
            if let Some(position) = curves.position(combination[along]) {
                let line = curves.line(label.join(", "));
                line.efficiency[position] = outcome.efficiency();
                line.samples[position] = Some(outcome.tally.samples);
            }
        }
        curves
    }

    /// No lines yet, over the setting with this index.
    fn over(axes: &[Axis], combinations: &[Vec<Value>], along: usize) -> Self {
        let values = || combinations.iter().map(|combination| combination[along]);
        let setting = axes[along].name().to_owned();
        if axes[along].is_numeric() {
            let mut at: Vec<f64> = values().filter_map(Value::number).collect();
            at.sort_by(f64::total_cmp);
            at.dedup();
            let (names, lines) = (None, Vec::new());
            return Curves {
                setting,
                at,
                names,
                lines,
            };
        }
        let mut names: Vec<String> = Vec::new();
        for name in values().map(|value| value.to_string()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Curves {
            setting,
            at: (0..names.len()).map(|position| position as f64).collect(),
            names: Some(names),
            lines: Vec::new(),
        }
    }

    /// Whether the efficiency is known anywhere.
    pub fn have_efficiency(&self) -> bool {
        let mut all = self.lines.iter().flat_map(|line| &line.efficiency);
        all.any(Option::is_some)
    }

    fn position(&self, value: Value) -> Option<usize> {
        match (&self.names, value.number()) {
            (None, number) => self.at.iter().position(|at| Some(*at) == number),
            (Some(names), _) => names.iter().position(|name| *name == value.to_string()),
        }
    }

    fn line(&mut self, label: String) -> &mut Line {
        let old = self.lines.iter().position(|line| line.label == label);
        let index = old.unwrap_or(self.lines.len());
        if index == self.lines.len() {
            let nothing = vec![None; self.at.len()];
            self.lines.push(Line {
                label,
                efficiency: nothing.clone(),
                samples: nothing,
            });
        }
        &mut self.lines[index]
    }
}

#[cfg(test)]
mod tests {
    use bftrainer_core::replay::Tally;

    use super::super::super::sweep::combinations;
    use super::*;

    /// A sweep whose replays gain 0, 1, 2, ... samples, half of what dedicated nodes would.
    fn swept(axes: &[&str]) -> Curves {
        let axes: Vec<Axis> = axes.iter().map(|text| Axis::parse(text).unwrap()).collect();
        let combinations = combinations(&axes).unwrap();
        let outcome = |samples| Outcome {
            tally: Tally {
                samples,
                ..Tally::default()
            },
            start_s: 0.0,
            nodes: 1,
            events: 1,
            dedicated_samples: Some(2.0 * samples),
            seconds: 0.0,
        };
        let outcomes = (0..combinations.len()).map(|number| outcome(number as f64));
        Curves::of(&axes, &combinations, &outcomes.collect::<Vec<_>>())
    }

    #[test]
    fn a_line_for_each_combination_of_the_others_over_the_first_numbers() {
        let curves = swept(&["policy=paper,bftrainer", "horizon=30,10,30", "nodes=8,9"]);
        assert_eq!((curves.setting.as_str(), &curves.names), ("horizon", &None));
        assert_eq!(curves.at, [10.0, 30.0]);
        let labels = curves.lines.iter().map(|line| line.label.as_str());
        let expected = [
            "policy paper, nodes 8",
            "policy paper, nodes 9",
            "policy bftrainer, nodes 8",
            "policy bftrainer, nodes 9",
        ];
        assert_eq!(labels.collect::<Vec<_>>(), expected);
        assert_eq!(curves.lines[1].samples, [Some(3.0), Some(5.0)]);
        assert_eq!(curves.lines[1].efficiency, [Some(0.5), Some(0.5)]);
    }

    #[test]
    fn policies_alone_are_named_below_the_axis() {
        let curves = swept(&["policy=paper,bftrainer"]);
        let names = curves.names.as_deref().unwrap();
        assert_eq!(names, ["paper", "bftrainer"]);
        assert_eq!(curves.at, [0.0, 1.0]);
        assert_eq!(curves.lines[0].samples, [Some(0.0), Some(1.0)]);
        assert_eq!(curves.lines[0].efficiency, [None, Some(0.5)]);
    }
}
