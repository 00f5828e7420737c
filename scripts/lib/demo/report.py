"""The figures of a demo: as JSON (SCHEMA "bftrainer.demo/1"), as a table, and what is wrong with them."""

from cluster import NODES
from trainers import DEVICE_MS_PER_SAMPLE, ROWS_PER_EPOCH, SIZES

LEAST_SHARE = 0.80  # Of the usable node-seconds.
LARGEST_LOSS_DIFFERENCE = 1e-6
LARGEST_DISAGREEMENT = 0.15  # Of the controller's node-seconds with what squeue showed.
HANDBACK_WITHIN_S = 10.0  # A preempted node's next job starts within this time, or was not the cause.


class Measured:
    """What was counted over the workload's span."""

    def __init__(self, cluster, start_s):
        self.start_s = start_s
        self.end_s = None
        self._cluster = cluster
        self._totals_before = cluster.totals()
        self.totals = None
        self.node_s = {}
        # From squeue, once a second: nodes without a regular job, nodes with a trainer's task.
        self.sampled_idle_node_s = 0.0
        self.sampled_task_node_s = 0.0
        self.device_s = 0.0
        self.least_wanted_nodes = sum(size.max_nodes for size in SIZES)

    def sample(self, passed_s, idle_nodes, trainers):
        self.sampled_idle_node_s += passed_s * idle_nodes
        self.sampled_task_node_s += passed_s * sum(len(trainer.nodes_held) for trainer in trainers)
        wanted = sum(trainer.wanted_nodes() for trainer in trainers)
        self.least_wanted_nodes = min(wanted, self.least_wanted_nodes)

    def finish(self, end_s, trainers):
        self.end_s = end_s
        self.totals = self._cluster.totals()
        for name in ("pool_node_s", "usable_node_s", "harvested_node_s"):
            self.node_s[name] = self.totals[name] - self._totals_before[name]
        self.device_s = sum(trainer.samples() for trainer in trainers) * DEVICE_MS_PER_SAMPLE / 1000

    def handbacks_s(self, jobs):
        """From each preemption to the start of the regular job that got the node."""
        found = []
        for preempted_s, node in self.totals["preempted"]:
            starts_s = [
                job.started_s() - preempted_s
                for job in jobs
                if node in job.nodes and job.started_s() is not None
            ]
            starts_s = [gap_s for gap_s in starts_s if -1.0 < gap_s < HANDBACK_WITHIN_S]
            if starts_s:
                found.append(min(starts_s))
        return found


def figures(measured, workload, trainers, drained_nodes):
    """The object that --json writes."""
    node_s = measured.node_s
    handbacks_s = measured.handbacks_s(workload.jobs)
    return {
        "schema": "bftrainer.demo/1",
        "idle_node_s": round(node_s["pool_node_s"], 1),
        "usable_node_s": round(node_s["usable_node_s"], 1),
        "harvested_node_s": round(node_s["harvested_node_s"], 1),
        "harvested_share": round(node_s["harvested_node_s"] / max(node_s["usable_node_s"], 1e-9), 4),
        "trainers": [trainer_figures(trainer) for trainer in trainers],
        "regular": {"jobs": len(workload.jobs), "failed": len(workload.failed())},
        "drained_nodes": len(drained_nodes),
        "handback_s": {"p50": quantile(handbacks_s, 0.5), "p95": quantile(handbacks_s, 0.95)},
        "start_s": {name: rounded(measured.totals["start_s"][name]) for name in ("p50", "p95")},
    }


def trainer_figures(trainer):
    losses, undisturbed = trainer.losses(), trainer.undisturbed_losses()
    last = min(len(losses), len(undisturbed)) - 1
    return {
        "array": trainer.array,
        "state": trainer.state(),
        "samples": trainer.samples(),
        "loss": losses[last] if last >= 0 else None,
        "undisturbed_loss": undisturbed[last] if last >= 0 else None,
        "rescales": trainer.row.get("rescales"),
        "preemptions": trainer.row.get("preemptions"),
    }


def problems(measured, workload, trainers, drained_nodes, shown):
    """A sentence for each thing that is not as it must be."""
    found = []
    for trainer in trainers:
        found += trainer_problems(trainer)
    if shown["harvested_share"] < LEAST_SHARE:
        found.append(
            "only {:.1f} % of the usable node-seconds were harvested, not {:.0f} %".format(
                100 * shown["harvested_share"], 100 * LEAST_SHARE
            )
        )
    for job in workload.failed():
        found.append("regular job {} ended as {}".format(job.id, job.state))
    for job in workload.jobs:
        if not job.ended():
            found.append("regular job {} has not ended, it is {}".format(job.id, job.state))
        elif job.state == "COMPLETED" and job.started_s() is None:
            found.append("regular job {} is COMPLETED but left no output".format(job.id))
    waits = len(workload.waited_for_block())
    if waits < workload.large_jobs:
        found.append(
            "only {} multi-node jobs waited, not {}: backfill had no holes to leave".format(waits, workload.large_jobs)
        )
    if drained_nodes:
        found.append("nodes are drained or down: {}".format(", ".join(drained_nodes)))
    return found + plausibility_problems(measured)


def trainer_problems(trainer):
    found = []
    name = "T{} (array {})".format(trainer.number, trainer.array)
    if trainer.state() != "COMPLETED":
        found.append("{} is {}, not COMPLETED".format(name, trainer.state()))
    if trainer.follower_state != "COMPLETED":
        found.append("the job with afterok:{} is {}, not COMPLETED".format(trainer.array, trainer.follower_state))
    epochs = [len(trainer.losses()), len(trainer.undisturbed_losses())]
    if epochs != [trainer.epochs, trainer.epochs]:
        found.append(
            "{}: losses of {} epochs, and {} undisturbed, were written, not of {}".format(name, *epochs, trainer.epochs)
        )
    if trainer.samples() != trainer.epochs * ROWS_PER_EPOCH:
        found.append(
            "{} told of {:,} samples in all, not of {:,}".format(
                name, trainer.samples(), trainer.epochs * ROWS_PER_EPOCH
            )
        )
    difference = trainer.largest_difference()
    if difference is not None and not difference <= LARGEST_LOSS_DIFFERENCE:
        found.append("{}: its loss differs by {:.2g} from the undisturbed run's".format(name, difference))
    return found


def plausibility_problems(measured):
    """The controller's own count must agree with what Slurm and the training programs show, and
    mean something: there must always have been trainers for all nodes."""
    found = []
    if measured.least_wanted_nodes < len(NODES):
        found.append(
            "trainers ended before the workload did: those left could use only {} nodes".format(
                measured.least_wanted_nodes
            )
        )
    counted = measured.node_s
    gap = abs(counted["pool_node_s"] - measured.sampled_idle_node_s)
    if gap > LARGEST_DISAGREEMENT * measured.sampled_idle_node_s:
        found.append(
            "the controller counts {:.0f} idle node-seconds, squeue showed {:.0f}".format(
                counted["pool_node_s"], measured.sampled_idle_node_s
            )
        )
    most = (1 + LARGEST_DISAGREEMENT) * measured.sampled_task_node_s
    if not measured.device_s <= counted["harvested_node_s"] <= most:
        found.append(
            "the controller counts {:.0f} harvested node-seconds; they should be between the {:.0f} that the "
            "training took and the {:.0f} of the tasks in squeue".format(
                counted["harvested_node_s"], measured.device_s, measured.sampled_task_node_s
            )
        )
    return found


def table(measured, workload, trainers, shown):
    """The figures for people, as lines."""
    waits_s = workload.waited_for_block()
    lines = [
        "",
        "Over the {:.0f} s of the workload, in node-seconds:".format(measured.end_s - measured.start_s),
        "  idle       {:>6.0f}   left by the regular jobs".format(shown["idle_node_s"]),
        "  usable     {:>6.0f}   of these: no planned end, or one a minute away when it was taken".format(shown["usable_node_s"]),
        "  harvested  {:>6.0f}   ranks running: {:.1f} % of the usable".format(
            shown["harvested_node_s"], 100 * shown["harvested_share"]
        ),
        "  (from squeue: {:.0f} idle, {:.0f} with a trainer's task; devices at work: {:.0f})".format(
            measured.sampled_idle_node_s, measured.sampled_task_node_s, measured.device_s
        ),
        "",
        "Trainer  array  nodes  state       samples  final loss  undisturbed  difference  rescales  preemptions",
    ]
    for trainer, row in zip(trainers, shown["trainers"]):
        lines.append(
            "T{:<7} {:<6} {:<6} {:<10} {:>8,}  {:>10}  {:>11}  {:>10}  {:>8}  {:>11}".format(
                trainer.number,
                trainer.array,
                "{}-{}".format(trainer.size.min_nodes, trainer.size.max_nodes),
                row["state"],
                row["samples"],
                decimals(row["loss"], 6),
                decimals(row["undisturbed_loss"], 6),
                exponent(trainer.largest_difference()),
                row["rescales"] if row["rescales"] is not None else "-",
                row["preemptions"] if row["preemptions"] is not None else "-",
            )
        )
    lines += [
        "(difference: the largest over all epochs; a job with afterok of the array started after each)",
        "",
        "Regular jobs: {}, {} failed; {} multi-node jobs waited for a larger block, {}".format(
            shown["regular"]["jobs"],
            shown["regular"]["failed"],
            len(waits_s),
            "up to {:.0f} s".format(waits_s[-1]) if waits_s else "none",
        ),
        "Nodes given back: {} times; to the regular job's start {}".format(
            len(measured.handbacks_s(workload.jobs)), quantile_text(shown["handback_s"])
        ),
        "Nodes taken: from the decision to ranks running {}".format(quantile_text(shown["start_s"])),
        "Nodes drained: {}".format(shown["drained_nodes"]),
        "",
    ]
    return lines


def quantile_text(quantiles):
    return "median {} s, 95 % within {} s".format(decimals(quantiles["p50"], 2), decimals(quantiles["p95"], 2))


def decimals(number, count):
    return "-" if number is None else "{:.{}f}".format(number, count)


def exponent(number):
    return "-" if number is None else "{:.0e}".format(number)


def quantile(values, q):
    """Nearest rank; None when there are none."""
    ordered = sorted(values)
    return rounded(ordered[round((len(ordered) - 1) * q)]) if ordered else None


def rounded(number):
    return None if number is None else round(number, 3)
