"""What the user sees while the demo runs: on a terminal a picture of the nodes over time that is
redrawn, elsewhere a line every ten seconds. And the same picture at the end."""

import shutil
import sys

from cluster import ACTIVE, NODES

PLAIN_EVERY_S = 10.0
REGULAR, STARTING, IDLE = "#", "+", "."
LEGEND = "# regular job   1 2 3 trainer   + trainer starting or leaving   . idle"
COLOURS = {REGULAR: "37;100", STARTING: "33", "1": "30;42", "2": "30;46", "3": "30;45"}


class Screen:
    def __init__(self):
        self.is_terminal = sys.stdout.isatty()
        self.columns = []  # One a second: a character per node.
        self.drawn_lines = 0
        self.next_plain_s = 0.0

    def say(self, text):
        self.drawn_lines = 0
        print("demo: " + text, flush=True)

    def show(self, now_s, column, workload, trainers):
        """`now_s` since the workload's start."""
        self.columns.append(column)
        jobs = jobs_text(workload)
        if self.is_terminal:
            lines = self.picture(self.width(), coloured=True)
            lines.append("{:4.0f} s   {}".format(now_s, jobs))
            lines += [trainer_text(trainer) for trainer in trainers]
            self._redraw(lines)
        elif now_s >= self.next_plain_s:
            self.next_plain_s = now_s + PLAIN_EVERY_S
            words = ["{:4.0f} s".format(now_s), column, jobs] + [short_text(t) for t in trainers]
            print("   ".join(words), flush=True)

    def _redraw(self, lines):
        up = "\x1b[{}A".format(self.drawn_lines) if self.drawn_lines else ""
        sys.stdout.write(up + "".join("\x1b[2K" + line + "\n" for line in lines))
        sys.stdout.flush()
        self.drawn_lines = len(lines)

    def width(self):
        return max(20, shutil.get_terminal_size().columns - 5)

    def picture(self, width, coloured=False, whole=False):
        """A line per node; `whole`: all of the time, thinned out, else its last seconds."""
        columns = self.columns
        if whole:
            step = -(-len(columns) // width) or 1
            columns = columns[::step]
        columns = columns[-width:]
        lines = []
        for index, node in enumerate(NODES):
            row = "".join(column[index] for column in columns)
            lines.append("{:>3} {}".format(node, paint(row) if coloured else row))
        return lines


def paint(row):
    painted, last = [], None
    for mark in row:
        colour = COLOURS.get(mark, "0")
        if colour != last:
            painted.append("\x1b[0;{}m".format(colour))
            last = colour
        painted.append(mark)
    return "".join(painted) + "\x1b[0m"


def column(slurm_jobs, node_rows, trainers):
    """The nodes at one moment, a character each."""
    marks = dict.fromkeys(NODES, IDLE)
    numbers = {trainer.array: str(trainer.number) for trainer in trainers}
    for row in node_rows:
        if row["jobid"] in numbers and row["node"] in marks:
            training = row["use"] == "training"
            marks[row["node"]] = numbers[row["jobid"]] if training else STARTING
    for job in slurm_jobs:
        if job.partition == "batch" and job.state in ACTIVE:
            marks.update(dict.fromkeys(job.nodes, REGULAR))
    return "".join(marks[node] for node in NODES)


def jobs_text(workload):
    states = [job.state for job in workload.jobs]
    running = sum(state in ACTIVE for state in states)
    waiting = states.count("PENDING")
    return "regular jobs: {} ended, {} running, {} waiting".format(
        len(states) - running - waiting, running, waiting
    )


def trainer_text(trainer):
    row = trainer.row
    return "     T{} ({}-{} nodes) {:>9}: {} nodes, {:,} of {:,} samples{}".format(
        trainer.number,
        trainer.size.min_nodes,
        trainer.size.max_nodes,
        (row.get("state") or "-").lower(),
        row.get("nodes") or 0,
        trainer.samples(),
        row.get("total") or 0,
        loss_text(row),
    )


def short_text(trainer):
    return "T{} {:,} samples{}".format(trainer.number, trainer.samples(), loss_text(trainer.row))


def loss_text(row):
    return ", loss {:.3f}".format(row["loss"]) if row.get("loss") is not None else ""
