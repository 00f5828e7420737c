"""The tables of docs/results.md, section Replay: runs `bftrainer replay` and writes them there."""

import json
import os
import pathlib
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = pathlib.Path(os.environ.get("BFTRAINER_DATA", ROOT.parent / "shared" / "data"))
BFTRAINER = ROOT / "target" / "release" / "bftrainer"
RESULTS = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- begin: scripts/bench-replay -->", "<!-- end: scripts/bench-replay -->"

# Where the authors' replays begin.
START = "1612988475"
# Scenario, its name in the tables, the paper's best horizon, ours.
SCENARIOS = [
    ("hps-shufflenet-1000J", "ShuffleNet", 600, 600),
    ("ImageNet-imgps-1001J", "ImageNet, by images", 10, 10),
    ("ImageNet-spdup-1001J", "ImageNet, by speed-up", 30, 36),
]
NEARBY = [0.8, 0.9, 1.0, 1.12, 1.25]


def replay(scenario, nodes, horizon, *options):
    """One replay's JSON."""
    command = [
        BFTRAINER, "replay", DATA / "summit-2021-idle-events.csv.gz",
        "--node-list", DATA / "summit-2021-nodes.txt", "--from", START,
        "--trainers", DATA / f"trainers-{scenario}.json", "--nodes", str(nodes),
        "--horizon", f"{horizon:g}", "--metric", "file", "--repeat", "--json", *options,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def percent(run, loss):
    return 100 * run["loss"][loss] / run["gross_samples"]


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def efficiency(pool):
    """U of the paper's policy and of ours, as means over nearby horizons."""
    lines = [
        row("trainers", "nodes", "paper, U", "ours, U", "samples", "preemption", "rescaling"),
        row(*["---"] * 7),
    ]
    for nodes in (1024, 4734):
        for scenario, name, theirs, ours in SCENARIOS:
            limit = ("--max-trainers", "30")
            paper = pool.submit(replay, scenario, nodes, theirs, *limit, "--policy", "paper")
            runs = [
                run.result()
                for run in [
                    pool.submit(replay, scenario, nodes, ours * factor, *limit)
                    for factor in NEARBY
                ]
            ]
            paper = paper.result()
            gain = mean(run["samples"] for run in runs) / paper["samples"] - 1
            lines.append(row(
                name, nodes, f"{paper['efficiency']:.4f} at {theirs} s",
                f"{mean(run['efficiency'] for run in runs):.4f} at {ours} s",
                f"{100 * gain:+.1f} %",
                f"{percent(paper, 'preemption'):.2f} -> "
                f"{mean(percent(run, 'preemption') for run in runs):.2f} %",
                f"{percent(paper, 'rescale'):.2f} -> "
                f"{mean(percent(run, 'rescale') for run in runs):.2f} %",
            ))
    return lines


def admission(pool):
    """As many trainers as the pool can feed, against the paper's thirty."""
    lines = [
        row("trainers", "samples", "residence, mean (paper)", "residence, 95 % (paper)"),
        row(*["---"] * 4),
    ]
    for scenario, name, theirs, ours in SCENARIOS:
        runs = [
            pool.submit(replay, scenario, 4734, theirs, "--max-trainers", "30", "--policy",
                        "paper", "--no-efficiency"),
            pool.submit(replay, scenario, 4734, ours, "--admission", "open", "--no-efficiency"),
        ]
        paper, open_ = (run.result() for run in runs)
        hours = [run["residence_s"][key] / 3600 for key in ("mean", "p95") for run in (open_, paper)]
        lines.append(row(
            name, f"{100 * (open_['samples'] / paper['samples'] - 1):+.1f} %",
            f"{hours[0]:.2f} h ({hours[1]:.2f})", f"{hours[2]:.2f} h ({hours[3]:.2f})",
        ))
    return lines


def cost():
    """Time and memory of one replay of the whole log, alone on the machine."""
    run = replay("hps-shufflenet-1000J", 4734, 600, "--max-trainers", "30", "--no-efficiency")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return (
        f"The whole log ({run['events']} events, {run['nodes']} nodes, 30 trainers) took "
        f"{run['seconds']:.1f} s, {1e6 * run['seconds_per_event']:.0f} us an event; no replay "
        f"took more than {peak:.0f} MB."
    )


def main():
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tables = [efficiency(pool), admission(pool)]
    text = "\n".join([
        BEGIN,
        "Efficiency U with at most 30 trainers, means over horizons 0.8 to 1.25 times ours; losses",
        "in % of what the held nodes would have given:", "", *tables[0], "",
        "Open admission on all nodes against the paper's 30 trainers:", "", *tables[1], "",
        cost(), END,
    ])
    old = RESULTS.read_text(encoding="utf-8")
    head, rest = old.split(BEGIN)
    RESULTS.write_text(head + text + rest.split(END)[1], encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
