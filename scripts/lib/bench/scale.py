"""What the daemon needs on a large machine. Started by scripts/bench-scale.

The daemon's own loop runs on a slurmctld that is simulated (controller/benches/scale); its agents are
real connections with real proofs. What libslurm itself takes to unpack slurmctld's answers is measured on
a real slurmctld beside it, and the simulation keeps a processor busy for as long for each record.
"""

import argparse
import json
import subprocess
import sys
import time

from figures import Progress, machine, quantile, table, write_section
from processes import thread_cpu_s
from stage import ROOT, Stage

COMMAND = "scripts/bench-scale"
SLURM_THREAD = "slurm"
# The real slurmctld's jobs: so many arrays of so many tasks, each with a record of its own.
ARRAYS = 4
ARRAY_TASKS = 1000
LOOKS = 15


def main():
    options = parse_options()
    progress = Progress("bench-scale")
    where = machine()
    progress.say("a private Slurm, for munge and to measure libslurm; {}".format(where))
    with Stage(1, conf=["MaxArraySize=1001", "MaxJobCount=20000"]) as stage:
        record_s = libslurm_s(stage, progress)
        progress.say("libslurm takes {:.1f} us a record; now the daemon".format(1e6 * record_s))
        stage.cluster.stop_controller()
        found = measure(stage.cluster.dir / "munge/munge.socket", record_s, options.minutes)
    write_section(COMMAND, section(found, record_s, where))
    return 0


def parse_options():
    parser = argparse.ArgumentParser(prog=COMMAND, description="processors and memory for 5,000 nodes")
    parser.add_argument("--minutes", type=float, default=10, help="how long is measured (default 10)")
    return parser.parse_args()


def libslurm_s(stage, progress):
    """Seconds of a processor that the thread for Slurm takes for one job's record."""
    cluster = stage.cluster
    script = stage.dir / "nothing.sh"
    script.write_text("#!/bin/sh\n")
    arrays = []
    for _ in range(ARRAYS):
        last = ARRAY_TASKS - 1
        words = ["--parsable", "--hold", "-p", "bftrainer", "--array=0-{}".format(last)]
        arrays.append(cluster.ok("sbatch", *words, script, cwd=stage.dir).strip())
        # A change of some, not of all at once, gives each task a record of its own.
        split = "JobId={}_[1-{}]".format(arrays[-1], last)
        cluster.ok("scontrol", "update", split, "TimeLimit=2")
    records = len(cluster.jobs())
    progress.say("{} jobs wait in it".format(records))
    stage.wait_seen()
    pid = cluster.pid_of("bftrainerd")
    before_s, looks = thread_cpu_s(pid, SLURM_THREAD), stage.looks()
    while stage.looks() < looks + LOOKS:
        # Without a change slurmctld would send nothing.
        cluster.ok("scontrol", "update", "JobId={}_0".format(arrays[0]), "TimeLimit=2")
        time.sleep(0.5)
    taken_s = (thread_cpu_s(pid, SLURM_THREAD) - before_s) / (stage.looks() - looks)
    for array in arrays:
        cluster.ok("scancel", array)
    return taken_s / records


def measure(munge_socket, record_s, minutes):
    """The figures of the benchmark, in which libslurm is played by as much waste of time."""
    command = ["cargo", "bench", "--quiet", "-p", "bftrainer-controller", "--bench", "scale", "--"]
    command += ["--munge-socket", str(munge_socket), "--minutes", str(minutes)]
    command += ["--record-us", str(1e6 * record_s)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def section(found, record_s, where):
    minutes = found["minutes"]
    shares = [found[name + "_share"] for name in ("cpu", "brain", "slurm")]
    cpu, brain, libslurm = shares
    head = "{:g} min, {} nodes, {} trainers with {} tasks of which {} run, {:.1f} events a second; {}."
    rows = [
        ["processor, all of the daemon", percent(cpu), "< 10 %"],
        ["- deciding and keeping account", percent(brain), ""],
        ["- libslurm, {} records a look at {:.1f} us".format(found["records"], 1e6 * record_s), percent(libslurm), ""],
        ["- network, proofs, state file", percent(cpu - brain - libslurm), ""],
        ["memory, most, simulation included", "{:.0f} MB".format(found["memory_mb"]), "< 200 MB"],
        ["state file grows by", "{:.1f} MB an hour".format(found["store_bytes_per_h"] / 1e6), ""],
        ["looks at Slurm", "{:.2f} a second".format(found["looks"] / (60 * minutes)), "<= 1"],
        ["orders to Slurm", "{:.1f} a second".format(found["orders"] / (60 * minutes)), ""],
        ["look's answer to the first order from it", spread(found["decided_s"]), ""],
        ["node idle after a regular job to the order to use it", spread(found["waits_s"]), ""],
    ]
    return [
        head.format(
            minutes,
            found["nodes"],
            found["trainers"],
            found["tasks"],
            found["running_tasks"],
            found["events"] / (60 * minutes),
            where,
        ),
        "",
        *table(["", "measured", "target"], rows),
    ]


def percent(share):
    return "{:.1f} % of a core".format(100 * share)


def spread(values_s):
    if not values_s:
        return "never"
    parts = [quantile(values_s, q) for q in (0.5, 0.95, 1.0)]
    return "median {:.3f} s, 95 % {:.3f} s, longest {:.3f} s".format(*parts)


if __name__ == "__main__":
    sys.exit(main())
