"""Planned holes: what a regular job that waits for others finds when its time has come. Started by
scripts/bench-planned.

The same seeded jobs on two private clusters at once, one without us, one with a trainer on whatever is
idle. Each group of nodes has a partition of its own, in which a *first* job takes some nodes and uses its
time limit up, and a *planned* job wants more than are left: backfill plans it for the first one's end,
and the rest of the group is a hole with a known end. Counted is what Slurm's own log calls a preemption
for a planned job.
"""

import argparse
import random
import re
import sys
import time
from collections import namedtuple

from figures import SUMMARY_HEAD, Progress, cells, machine, summary, table, write_json
from stage import DEFAULTS, Stage

SEED = 2106
GROUP_NODES = 4
GROUPS = 8
WAVES = 3
WAVE_S = 240.0  # From one first job of a group to the next.
PLANNED_AFTER_S = 3.0  # From a group's first job to its planned one.
UNUSED_S = 2.0  # Of its limit a first job leaves so much.
PLANNED_RUN_S = 5.0
LOOK_S = 0.25
NODES_LOOK_S = 1.0
PREEMPTED = re.compile(r"preempted JobId=\S+ has been requeued to reclaim resources for JobId=(\d+)")

# `at_s` after the start; sizes in nodes.
Wave = namedtuple("Wave", "group at_s first_nodes limit_min planned_nodes")


def waves(count):
    """The workload, by time."""
    chance = random.Random(SEED)
    found = []
    for group in range(GROUPS):
        phase_s = round(chance.uniform(0, 30), 1)
        for number in range(count):
            first_nodes = chance.randint(1, GROUP_NODES - 1)
            found.append(
                Wave(
                    group=group,
                    at_s=phase_s + number * WAVE_S,
                    first_nodes=first_nodes,
                    limit_min=chance.choice([2, 3]),
                    # More than are left, and not only those that the first one leaves behind.
                    planned_nodes=chance.randint(max(first_nodes, GROUP_NODES - first_nodes) + 1, GROUP_NODES),
                )
            )
    return sorted(found, key=lambda wave: wave.at_s)


def main():
    options = parse_options()
    count = 1 if options.quick else WAVES
    progress = Progress("bench-planned")
    progress.say("{} planned jobs; {}".format(count * GROUPS, machine()))
    conf = ["PartitionName={} Nodes=n[{}-{}] PriorityTier=10 PreemptMode=OFF MaxTime=UNLIMITED State=UP".format(
        partition(group), group * GROUP_NODES + 1, (group + 1) * GROUP_NODES) for group in range(GROUPS)]
    nodes = GROUPS * GROUP_NODES
    with Stage(nodes, conf) as without, Stage(nodes, conf, DEFAULTS) as ours:
        trainer = ours.train(nodes)
        ours.wait_trains(trainer, nodes)
        sides = [Side(without, waves(count)), Side(ours, waves(count), trainer)]
        play(sides, progress)
        shown = figures(*sides)
        ours.cancel(trainer)
    show(shown)
    write_json(shown, options.json)
    return 0


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/bench-planned", description="regular jobs that backfill plans")
    parser.add_argument("--quick", action="store_true", help="one planned job a group, in five minutes")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    return parser.parse_args()


def partition(group):
    return "group{}".format(group + 1)


def play(sides, progress):
    """Until all jobs have ended."""
    began_s = time.time()
    told = 0
    while not all(side.is_done() for side in sides):
        for side in sides:
            side.advance(time.time() - began_s)
        started = min(side.started() for side in sides)
        if started > told:
            told = started
            progress.say("{} planned jobs have started".format(started))
        time.sleep(LOOK_S)


class Side:
    """One cluster and its jobs."""

    def __init__(self, stage, waiting, trainer=None):
        self.stage = stage
        self.waiting = waiting
        self.trainer = trainer
        self.groups = []
        self.looked_s = 0.0
        self.trained_s = {}  # By node: when ranks were last seen there.

    def advance(self, since_start_s):
        while self.waiting and self.waiting[0].at_s <= since_start_s:
            self.groups.append(Pair(self, self.waiting.pop(0)))
        for pair in self.groups:
            pair.advance()
        now_s = time.time()
        if self.trainer and now_s > self.looked_s + NODES_LOOK_S:
            self.looked_s = now_s
            rows = self.stage.cluster.bftrainer("show", self.trainer)
            for node in rows[0]["node_list"] if rows else []:
                self.trained_s[node] = now_s

    def started(self):
        return sum(pair.planned is not None and pair.planned.said_s("start") is not None for pair in self.groups)

    def is_done(self):
        return not self.waiting and all(pair.is_done() for pair in self.groups)

    def preemptors(self):
        """The regular jobs for which Slurm has preempted tasks."""
        log = self.stage.cluster.dir / "log/slurmctld.log"
        return {int(job) for job in PREEMPTED.findall(log.read_text(errors="replace"))}


class Pair:
    """A group's first job and the one that is planned behind it."""

    def __init__(self, side, wave):
        self.side = side
        self.wave = wave
        self.submitted_s = time.time()
        self.first = self.submit(wave.first_nodes, wave.limit_min)
        self.planned = None
        self.was_harvested = False
        self.ended = set()

    def submit(self, nodes, limit_min):
        return self.side.stage.submit(nodes, "-p", partition(self.wave.group), "-t", limit_min)

    def advance(self):
        if not self.planned and time.time() > self.submitted_s + PLANNED_AFTER_S:
            self.planned = self.submit(self.wave.planned_nodes, 1)
        self.end_after(self.first, self.wave.limit_min * 60 - UNUSED_S)
        if self.planned:
            self.end_after(self.planned, PLANNED_RUN_S)

    def end_after(self, job, run_s):
        started_s = job.said_s("start")
        if started_s and job.id not in self.ended and time.time() > started_s + run_s:
            if job is self.planned:
                self.was_harvested = self.saw_ranks_before(job)
            self.side.stage.end(job)
            self.ended.add(job.id)

    def saw_ranks_before(self, job):
        """Whether ranks trained on its nodes while it waited."""
        cluster = self.side.stage.cluster
        names = cluster.ok("scontrol", "show", "hostnames", cluster.job(job.id)["NodeList"])
        return any(self.side.trained_s.get(node, 0) > job.submitted_s for node in names.split())

    def is_done(self):
        return len(self.ended) == 2

    def delay_s(self):
        """From the end of the job that it waited for to its start."""
        return self.planned.said_s("start") - self.first.said_s("ended")


def figures(without, ours):
    """What is shown."""
    preemptors = ours.preemptors()
    pairs = ours.groups
    preempting = [pair for pair in pairs if pair.planned.id in preemptors]
    alone_s = {pair.wave: pair.delay_s() for pair in without.groups}
    return {
        "schema": "bftrainer.bench-planned/1",
        "planned": len(pairs),
        "in_harvested_holes": sum(pair.was_harvested for pair in pairs),
        "preempting": len(preempting),
        "first_jobs_preempting": sum(pair.first.id in preemptors for pair in pairs),
        "without_us": summary(list(alone_s.values())),
        "with_us": summary([pair.delay_s() for pair in pairs]),
        "added": summary([pair.delay_s() - alone_s[pair.wave] for pair in pairs]),
    }


def show(shown):
    rows = [[name.replace("_", " "), *cells(shown[name])] for name in ("without_us", "with_us", "added")]
    print("\n".join(table(["a planned job's start after the end that it waited for, seconds", *SUMMARY_HEAD], rows)))
    clean = shown["planned"] - shown["preempting"]
    print(
        "\nOf {} planned jobs {} had ranks of ours on their nodes while they waited; {} of {} ({:.0f} %) started "
        "with no preemption. Of the jobs before them, which come unannounced, {} preempted.".format(
            shown["planned"],
            shown["in_harvested_holes"],
            clean,
            shown["planned"],
            100.0 * clean / shown["planned"],
            shown["first_jobs_preempting"],
        )
    )


if __name__ == "__main__":
    sys.exit(main())
