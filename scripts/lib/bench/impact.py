"""What trainers cost the regular jobs: the same jobs, one after the other, on a cluster whose idle nodes
train and on the same cluster without us, in turns. Started by scripts/bench-impact.

A job's delay: from before its sbatch to its script's first line. Added: its delay with a trainer on the
idle nodes, less that of the same job of the same round without. Sizes, run times and the pauses between
jobs are drawn from a seed; a pause may be over before the trainer has its nodes back.
"""

import argparse
import random
import sys
import time
from collections import namedtuple

from figures import SUMMARY_HEAD, WRITES, Progress, cells, machine, show, summary, table, write_json
from stage import Stage

COMMAND = "scripts/bench-impact"
SEED = 2106
KILL_WAIT_S = 5.0  # Of scripts/dev-cluster.

# The ranks of `kind` "stubborn" ignore SIGTERM.
Part = namedtuple("Part", "nodes kind jobs rounds")
FULL = [Part(8, "", 10, 3), Part(32, "", 8, 2), Part(8, "stubborn", 5, 1)]
QUICK = [Part(8, "", 5, 1), Part(8, "stubborn", 2, 1)]

Request = namedtuple("Request", "nodes run_s pause_s")


def requests(part):
    """The part's jobs; each second one wants all nodes."""
    chance = random.Random(SEED)
    return [
        Request(
            nodes=part.nodes if number % 2 else chance.randint(1, part.nodes),
            run_s=round(chance.uniform(0.5, 3.0), 2),
            pause_s=round(chance.uniform(1.0, 8.0), 2),
        )
        for number in range(part.jobs)
    ]


def main():
    options = parse_options()
    parts = QUICK if options.quick else FULL
    progress = Progress("bench-impact")
    where = machine()
    progress.say(where)
    found = [measure(part, progress) for part in parts]
    shown = {"schema": "bftrainer.bench-impact/1", "kill_wait_s": KILL_WAIT_S, "parts": found}
    rows = [
        [str(part["nodes"]), part["ranks"], name.replace("_", " "), *cells(part[name])]
        for part in found
        for name in ("without_us", "with_us", "added")
    ]
    failed = sum(part["failed"] for part in found)
    damage = "Regular jobs that did not complete: {}; nodes drained or down: {}.".format(
        failed, sum(part["bad_nodes"] for part in found))
    head = ["nodes", "ranks", "a regular job's delay, seconds", *SUMMARY_HEAD]
    lines = ["Machine: {}.".format(where), "", *table(head, rows), "", damage]
    write_json(shown, options.json)
    show(COMMAND, lines, options.quick)
    return 1 if failed else 0


def parse_options():
    parser = argparse.ArgumentParser(prog=COMMAND, description="added delay of regular jobs", epilog=WRITES)
    parser.add_argument("--quick", action="store_true", help="8 nodes, few jobs, in two minutes")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    return parser.parse_args()


def measure(part, progress):
    """A part's figures."""
    name = "{} nodes, {} ranks".format(part.nodes, part.kind or "obedient")
    without_s, with_s = [], []
    with Stage(part.nodes) as stage:
        # The very first job on fresh nodes is slower than any later one.
        finish(stage, stage.start(part.nodes))
        for number in range(part.rounds):
            round_of = "round {} of {}".format(number + 1, part.rounds)
            progress.say("{}: {}, without us".format(name, round_of))
            without_s += run(stage, part)
            progress.say("{}: {}, with us".format(name, round_of))
            trainer = stage.train(part.nodes, part.kind)
            stage.wait_trains(trainer, part.nodes)
            with_s += run(stage, part, trainer)
            stage.cancel(trainer)
            stage.wait_for(stage.cluster.are_idle, "all nodes are idle")
        jobs = [job for job in stage.cluster.jobs() if "ArrayJobId" not in job]
        failed = sum(job["JobState"] != "COMPLETED" for job in jobs)
        states = stage.cluster.node_states().values()
        bad_nodes = sum(state != "idle" for state in states)
    return {
        "nodes": part.nodes,
        "ranks": part.kind or "obedient",
        "without_us": summary(without_s),
        "with_us": summary(with_s),
        "added": summary([ours - alone for ours, alone in zip(with_s, without_s)]),
        "failed": failed,
        "bad_nodes": bad_nodes,
    }


def run(stage, part, trainer=None):
    """The delays of the part's jobs, seconds."""
    delays_s = []
    for number, request in enumerate(requests(part)):
        # Half of the jobs meet a trainer that has all nodes, the others one that is getting them.
        if trainer and number % 4 < 2:
            stage.wait_trains(trainer, part.nodes)
        else:
            time.sleep(request.pause_s)
        job = stage.start(request.nodes)
        delays_s.append(job.delay_s())
        time.sleep(request.run_s)
        finish(stage, job)
    return delays_s


def finish(stage, job):
    stage.end(job)
    stage.wait_ended(job)


if __name__ == "__main__":
    sys.exit(main())
