"""What a flood of forged hints costs: the daemon's processor time, and how late it decides. Started by
scripts/bench-hints.

*Hole to ranks*: from the end of a regular job's script, on all nodes, to the first line of a rank's program
on each of them.
"""

import argparse
import sys
import time

from figures import Progress, machine, table, write_section
from processes import process_cpu_s
from scale import percent, spread
from stage import Stage

from flood import Flood  # the tests' (stage knows the way)

COMMAND = "scripts/bench-hints"
NODES = 8
RATE = 10_000


def main():
    options = parse_options()
    progress = Progress("bench-hints")
    where = machine()
    progress.say("a cluster of {} nodes; {}".format(NODES, where))
    rows = []
    with Stage(NODES) as stage:
        job = stage.start(NODES)
        trainer = stage.train(NODES)
        for rate in (0, RATE):
            with Flood(stage.cluster.controller_address(), rate) as flood:
                found = rounds(stage, trainer, job, options.seconds)
                sent = flood.sent_a_s()
            cpu, looks, delays_s, job = found
            progress.say("{:.0f} hints a second: {}".format(sent, percent(cpu)))
            row = ["{:.0f}".format(sent), percent(cpu), "{:.2f}".format(looks), spread(delays_s)]
            rows.append(row)
        stage.end(job)
        stage.cancel(trainer)
    head = ["forged hints a second", "processor, daemon", "looks a second", "hole to ranks"]
    write_section(COMMAND, ["{} s each; {}.".format(options.seconds, where), "", *table(head, rows)])
    return 0


def parse_options():
    parser = argparse.ArgumentParser(prog=COMMAND, description="what a flood of forged hints costs")
    parser.add_argument("--seconds", type=int, default=30, help="how long each is measured (default 30)")
    return parser.parse_args()


def rounds(stage, trainer, job, seconds):
    """Regular jobs take all nodes and give them back, for so long: the daemon's share of a core, its looks
    a second, from hole to ranks in seconds, and the job that has the nodes then."""
    pid = stage.cluster.pid_of("bftrainerd")
    began_s, cpu_s, looks = time.monotonic(), process_cpu_s(pid), stage.looks()
    delays_s = []
    while time.monotonic() - began_s < seconds:
        opened_s = stage.end(job)
        stage.wait_trains(trainer, NODES)
        delays_s += [start_s - opened_s for start_s in stage.rank_starts(opened_s).values()]
        job = stage.start(NODES)
        stage.wait_seen()
    passed_s = time.monotonic() - began_s
    used, looked = process_cpu_s(pid) - cpu_s, stage.looks() - looks
    return used / passed_s, looked / passed_s, delays_s, job


if __name__ == "__main__":
    sys.exit(main())
