"""How fast nodes change hands, in bursts of 8, 32 and 64. Started by scripts/bench-latency.

*Hole opened*: a regular job's script ends, on all nodes of the burst. *Hole seen*: the controller's
decision to use it. *Ranks*: the first line of a rank's program on a node. *Regular job*: from before
its sbatch to its script's first line. *Shrink*: from the controller's decision to the first look at
sinfo that shows the node without a job.
"""

import argparse
import sys
import time

from figures import SUMMARY_HEAD, WRITES, Progress, cells, machine, show, summary, table, write_json
from stage import Stage

COMMAND = "scripts/bench-latency"
FULL = {8: 5, 32: 4, 64: 3}  # Rounds by burst.
QUICK = {8: 2}
TARGETS = ["hole to ranks: median 2 s at 8 nodes; 64 nodes within 6 s"]
COLUMNS = {
    "new": "new trainer: hole opened to ranks",
    "opened": "hole opened to ranks",
    "seen": "hole seen to ranks",
    "idle": "regular job, on idle nodes",
    "ours": "regular job, on our nodes",
    "shrink": "shrink ordered to node idle",
}


def main():
    options = parse_options()
    rounds = QUICK if options.quick else FULL
    progress = Progress("bench-latency")
    where = machine()
    progress.say("a cluster of {} nodes; {}".format(max(rounds), where))
    found = {}
    with Stage(max(rounds)) as stage:
        for burst, times in rounds.items():
            found[burst] = Burst(stage, burst, progress).measure(times)
    shown = {
        "schema": "bftrainer.bench-latency/1",
        "bursts": [
            {"nodes": burst, **{name: summary(values) for name, values in samples.items()}}
            for burst, samples in found.items()
        ],
    }
    rows = [
        [str(burst), COLUMNS[name], *cells(summary(values))]
        for burst, samples in found.items()
        for name, values in samples.items()
    ]
    head = ["nodes at once", "seconds from .. to", *SUMMARY_HEAD]
    write_json(shown, options.json)
    show(COMMAND, ["Machine: {}.".format(where), "", *table(head, rows)], options.quick)
    return 0


def parse_options():
    parser = argparse.ArgumentParser(prog=COMMAND, description="; ".join(TARGETS), epilog=WRITES)
    parser.add_argument("--quick", action="store_true", help="one burst of 8 nodes, in a minute, instead of all")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    return parser.parse_args()


class Burst:
    """What is measured with so many nodes at once; a regular job keeps the rest of the cluster."""

    def __init__(self, stage, nodes, progress):
        self.stage = stage
        self.nodes = nodes
        self.progress = progress
        self.samples = {name: [] for name in COLUMNS}

    def measure(self, rounds):
        stage = self.stage
        rest = len(stage.cluster.nodes) - self.nodes
        rest_job = stage.start(rest, "-w", "n[{}-{}]".format(self.nodes + 1, self.nodes + rest)) if rest else None
        for number in range(rounds + 1):
            job = stage.start(self.nodes)
            # The very first one on fresh nodes is slower than any later one.
            if number > 0:
                self.samples["idle"].append(job.delay_s())
            stage.end(job)
            stage.wait_ended(job)
        self.say("idle nodes are measured")
        job = stage.start(self.nodes)
        trainer = stage.train(self.nodes)
        stage.wait_for(lambda: stage.cluster.bftrainer("show", trainer), "the trainer is admitted")
        for number in range(rounds + 1):
            self.fill(job, trainer, first=number == 0)
            job = stage.start(self.nodes)
            self.samples["ours"].append(job.delay_s())
            stage.wait_seen()
            self.say("round {} of {}".format(number + 1, rounds + 1))
        self.fill(job, trainer)
        self.shrink(trainer)
        stage.cancel(trainer)
        if rest_job:
            stage.end(rest_job)
            stage.wait_ended(rest_job)
        stage.wait_for(stage.cluster.are_idle, "all nodes are idle")
        return self.samples

    def say(self, text):
        self.progress.say("{} nodes: {}".format(self.nodes, text))

    def fill(self, job, trainer, first=False):
        """The regular job leaves the nodes to the trainer."""
        opened_s = self.stage.end(job)
        self.stage.wait_trains(trainer, self.nodes)
        starts_s = self.stage.rank_starts(opened_s).values()
        self.samples["new" if first else "opened"] += [start_s - opened_s for start_s in starts_s]
        seen_s = self.stage.decided_s(trainer, opened_s)
        if not first and seen_s:
            self.samples["seen"] += [start_s - seen_s for start_s in starts_s]

    def shrink(self, trainer):
        """Half of the nodes are drained, so the controller orders them vacated."""
        cluster = self.stage.cluster
        half = self.nodes // 2
        names = "n[1-{}]".format(half)
        ordered_s = time.time()
        cluster.ok("scontrol", "update", "NodeName=" + names, "State=DRAIN", "Reason=bench")
        left_s = {}

        def have_left():
            looked_s = time.time()
            for line in cluster.ok("sinfo", "-h", "-N", "-p", "batch", "-n", names, "-o", "%N %T").splitlines():
                node, state = line.split()
                if state.startswith("drained"):
                    left_s.setdefault(node, looked_s)
            return len(left_s) == half

        self.stage.wait_for(have_left, "{} nodes have been given back".format(half))
        decided_s = self.stage.decided_s(trainer, ordered_s)
        self.samples["shrink"] = [time_s - (decided_s or ordered_s) for time_s in left_s.values()]
        cluster.ok("scontrol", "update", "NodeName=" + names, "State=RESUME")


if __name__ == "__main__":
    sys.exit(main())
