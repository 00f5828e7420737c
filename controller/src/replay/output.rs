//! A replay's result as JSON and as text.

use serde_json::{Value, json};

use super::run::{Outcome, Setup};

/// The result in the form `bftrainer.replay/1`.
pub fn json(setup: &Setup, outcome: &Outcome, watts: Option<f64>) -> Value {
    let tally = &outcome.tally;
    let residence_s = tally.residence_s();
    let speedup = tally.speedup();
    let mut value = json!({
        "schema": "bftrainer.replay/1",
        "policy": setup.policy.name(),
        "nodes": outcome.nodes,
        "horizon_s": setup.horizon_s,
        "trainers": {"admitted": tally.admitted, "completed": tally.finished.len()},
        "from": outcome.start_s,
        "span_s": tally.span_s,
        "events": outcome.events,
        "idle_node_s": tally.idle_node_s,
        "usable_node_s": tally.usable_node_s,
        "used_node_s": tally.used_node_s,
        "samples": tally.samples,
        "gross_samples": tally.gross_samples,
        "dedicated_samples": outcome.dedicated_samples,
        "efficiency": outcome.efficiency(),
        "loss": {
            "overshoot": tally.overshoot_samples,
            "preemption": tally.preemption_samples,
            "rescale": tally.rescale_samples,
            "unused_node_s": tally.idle_node_s - tally.used_node_s,
            "unused_above_max_node_s": tally.idle_node_s - tally.usable_node_s,
        },
        "residence_s": {"mean": residence_s.map(|it| it.mean), "p95": residence_s.map(|it| it.p95)},
        "speedup": {
            "slowest": speedup.map(|it| it.min),
            "p5": speedup.map(|it| it.p5),
            "mean": speedup.map(|it| it.mean),
        },
        "rescales": tally.rescales,
        "preemptions": tally.preemptions,
        "decisions": tally.decisions,
        "seconds": outcome.seconds,
        "seconds_per_event": per_event_s(outcome),
    });
    if let Some(share) = outcome.decision_value() {
        value["decision_value"] = json!(share);
    }
    if let Some(watts) = watts {
        value["used_kwh"] = json!(kwh(tally.used_node_s, watts));
        value["idle_kwh"] = json!(kwh(tally.idle_node_s, watts));
    }
    value
}

/// The result for people.
pub fn text(setup: &Setup, outcome: &Outcome, watts: Option<f64>) -> String {
    let tally = &outcome.tally;
    let hours = |node_s: f64| node_s / 3600.0;
    let share = |part: f64, whole: f64| {
        if whole > 0.0 {
            100.0 * part / whole
        } else {
            0.0
        }
    };
    let of_gross = |samples: f64| share(samples, tally.gross_samples);
    let mut lines = vec![
        format!(
            "{}: {} nodes over {:.2} days, {} events, horizon {} s",
            setup.policy.name(),
            outcome.nodes,
            tally.span_s / 86_400.0,
            outcome.events,
            setup.horizon_s
        ),
        format!(
            "idle        {:.1} node-hours, {:.1} nodes on average",
            hours(tally.idle_node_s),
            outcome.mean_pool()
        ),
        format!(
            "used        {:.1} node-hours ({:.1} %)",
            hours(tally.used_node_s),
            share(tally.used_node_s, tally.idle_node_s)
        ),
        format!(
            "unused      {:.1} node-hours above the trainers' maxima, {:.1} otherwise",
            hours(tally.idle_node_s - tally.usable_node_s),
            hours(tally.usable_node_s - tally.used_node_s)
        ),
        format!("samples     {:.4e}", tally.samples),
    ];
    if let Some(efficiency) = outcome.efficiency() {
        lines.push(format!(
            "efficiency  {efficiency:.4} of the same trainers on {:.1} dedicated nodes",
            outcome.mean_pool()
        ));
    }
    if let Some(share) = outcome.decision_value() {
        lines.push(format!(
            "decisions   {share:.4} of the best for the same trainers and nodes"
        ));
    }
    lines.push(format!(
        "lost        {:.2} % after completion, {:.2} % by preemption, {:.2} % by rescaling",
        of_gross(tally.overshoot_samples),
        of_gross(tally.preemption_samples),
        of_gross(tally.rescale_samples)
    ));
    lines.push(format!(
        "trainers    {} admitted, {} done after {} h on average, 95 % after {} h",
        tally.admitted,
        tally.finished.len(),
        or_dash(tally.residence_s().map(|it| it.mean / 3600.0)),
        or_dash(tally.residence_s().map(|it| it.p95 / 3600.0))
    ));
    lines.push(format!(
        "speed-up    {} over one node on average, slowest trainer {}",
        or_dash(tally.speedup().map(|it| it.mean)),
        or_dash(tally.speedup().map(|it| it.min))
    ));
    if let Some(watts) = watts {
        lines.push(format!(
            "energy      {:.0} kWh used, of {:.0} kWh had all idle nodes been at {watts} W",
            kwh(tally.used_node_s, watts),
            kwh(tally.idle_node_s, watts)
        ));
    }
    lines.push(format!(
        "took        {:.2} s, {:.0} us an event",
        outcome.seconds,
        1e6 * per_event_s(outcome)
    ));
    lines.join("\n")
}

/// What no trainer that is done has is not zero.
fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn kwh(node_s: f64, watts: f64) -> f64 {
    node_s * watts / 3.6e6
}

fn per_event_s(outcome: &Outcome) -> f64 {
    outcome.seconds / (outcome.events as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use bftrainer_core::replay::{Finished, Tally};
    use clap::Parser;

    use super::super::args::Args;
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn with_no_trainer_done_there_is_no_residence_and_no_speed_up() {
        let setup = Command::parse_from(["replay", "log", "--trainers", "t"])
            .args
            .setup()
            .unwrap();
        let with = |finished| Outcome {
            tally: Tally {
                admitted: 2,
                finished,
                ..Tally::default()
            },
            start_s: 0.0,
            nodes: 1,
            events: 1,
            dedicated_samples: None,
            seconds: 0.0,
        };
        let none = with(Vec::new());
        let value = json(&setup, &none, None);
        assert_eq!(value["residence_s"], json!({"mean": null, "p95": null}));
        assert!(value["speedup"]["mean"].is_null());
        let lines = text(&setup, &none, None);
        assert!(
            lines.contains("2 admitted, 0 done after - h on average, 95 % after - h"),
            "{lines}"
        );
        assert!(
            lines.contains("speed-up    - over one node on average, slowest trainer -"),
            "{lines}"
        );

        let one = with(vec![Finished {
            name: "resnet".to_owned(),
            submit_s: 0.0,
            admitted_s: 600.0,
            done_s: 6000.0,
            samples: 1e6,
            speedup: 3.0,
        }]);
        let value = json(&setup, &one, None);
        assert_eq!(value["residence_s"], json!({"mean": 5400.0, "p95": 5400.0}));
        let lines = text(&setup, &one, None);
        assert!(
            lines.contains("1 done after 1.50 h on average, 95 % after 1.50 h"),
            "{lines}"
        );
    }
}
