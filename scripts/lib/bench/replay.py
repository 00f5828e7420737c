"""The tables of docs/results.md, section Replay: runs `bftrainer replay` and writes them there."""

import argparse
import json
import os
import pathlib
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor

from figures import write_section

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = pathlib.Path(os.environ.get("BFTRAINER_DATA", ROOT.parent / "shared" / "data"))
BFTRAINER = ROOT / "target" / "release" / "bftrainer"
# Sections and the commands that their marks name.
SECTIONS = {"replay": "scripts/bench-replay", "learning": "scripts/bench-replay learning"}

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
    """One replay's JSON; `scenario` is a trainers' file, or the name of a recorded one."""
    if isinstance(scenario, str):
        scenario = DATA / f"trainers-{scenario}.json"
        options = ("--metric", "file", *options)
    command = [
        BFTRAINER, "replay", DATA / "summit-2021-idle-events.csv.gz",
        "--node-list", DATA / "summit-2021-nodes.txt", "--from", START,
        "--trainers", scenario, "--nodes", str(nodes),
        "--horizon", f"{horizon:g}", "--repeat", "--json", *options,
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


def learning(pool):
    """Curves that the engine is not told: samples by speed-up, decisions' value by throughput."""
    files = [
        ("ImageNet", DATA / "trainers-ImageNet-spdup-1001J.json"),
        ("ShuffleNet", DATA / "trainers-hps-shufflenet-1000J.json"),
        ("poor scalers", ROOT / "examples" / "replay" / "poor-scalers.toml"),
    ]
    ways = [
        ("known", []),
        ("learned, shared by program", ["--learn", "program", "--noise", "0.05"]),
        ("learned, each trainer alone", ["--learn", "trainer", "--noise", "0.05"]),
        ("guessed: Amdahl, 98 % parallel", ["--learn", "never"]),
        ("guessed: linear", ["--learn", "never", "--guess", "linear"]),
        ("equal share", ["--policy", "equal-share"]),
    ]
    common = ["--exponent", "1", "--max-trainers", "30", "--no-efficiency"]

    def table(metric, figure, ways, *options):
        asked = ["--metric", metric, *common, *options]
        runs = {
            (way, name): pool.submit(replay, file, 1024, 36, *asked, *what)
            for way, what in ways
            for name, file in files
        }
        figures = {key: run.result()[figure] for key, run in runs.items()}
        yield row("curves", *(name for name, _ in files))
        yield row(*["---"] * (1 + len(files)))
        for way, _ in ways:
            shares = (100 * figures[way, name] / figures["known", name] for name, _ in files)
            yield row(way, *(f"{share:.2f} %" for share in shares))

    return [
        *table("speedup", "samples", ways), "",
        "The same with the metric throughput. There samples mislead, as those that are given most",
        "are not those that gain most by it; what is compared is the rate of what the trainers hold,",
        "by their real curves, over the best for the same trainers and nodes (`--judge`):", "",
        *table("throughput", "decision_value", ways[:-1], "--judge"),
    ]


def cost():
    """Time and memory of one replay of the whole log."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = replay("hps-shufflenet-1000J", 4734, 600, "--max-trainers", "30", "--no-efficiency")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (
        f"The whole log ({run['events']} events, {run['nodes']} nodes, 30 trainers) took "
        f"{cpu_s:.1f} s of a processor ({run['seconds']:.1f} s beside what else ran, load "
        f"{os.getloadavg()[0]:.0f} on {os.cpu_count()}), {1e6 * cpu_s / run['events']:.0f} us an "
        f"event; no replay took more than {after.ru_maxrss / 1024:.0f} MB."
    )


def main():
    """Writes all sections, or the one that is named."""
    parser = argparse.ArgumentParser(prog="scripts/bench-replay", description=main.__doc__)
    parser.add_argument("section", nargs="?", choices=SECTIONS)
    section = parser.parse_args().section
    chosen = [section] if section else list(SECTIONS)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in chosen:
            write_section(SECTIONS[name], WRITERS[name](pool))


def replays(pool):
    """The section Replay."""
    efficiencies, admissions = efficiency(pool), admission(pool)
    return [
        "Efficiency U with at most 30 trainers, means over horizons 0.8 to 1.25 times ours; losses",
        "in % of what the held nodes would have given:", "", *efficiencies, "",
        "Open admission on all nodes against the paper's 30 trainers:", "", *admissions, "",
        cost(),
    ]


WRITERS = {"replay": replays, "learning": learning}


if __name__ == "__main__":
    main()
