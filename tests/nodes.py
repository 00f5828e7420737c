"""What runs on a node of a cluster, which is a machine of its own only by name, and stopping it;
and the controller's solver."""

import os
import pathlib
import re
import signal


def node_of(pid):
    """The Slurm node that a process of a job runs on; None when it is none's."""
    try:
        environment = pathlib.Path("/proc/{}/environ".format(pid)).read_bytes()
    except OSError:
        return None
    found = re.search(rb"(?:^|\0)SLURMD_NODENAME=([^\0]*)", environment)
    return found and found[1].decode()


def pids_on(cluster, node):
    """The processes of jobs there."""
    return [pid for pid, _ in cluster.processes() if node_of(pid) == node]


def freeze(cluster, node):
    """Stops everything on a node, as when a machine hangs: slurmd, steps, agents, ranks."""
    pids = pids_on(cluster, node)
    steps = {parent_of(pid) for pid in pids} - set(pids)
    steps = {pid for pid in steps if command_name(pid).startswith("slurmstepd")}
    frozen = [cluster.pid_of("slurmd-" + node), *sorted(steps), *pids]
    signal_all(frozen, signal.SIGSTOP)
    return frozen


def thaw(frozen):
    signal_all(frozen, signal.SIGCONT)


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def solver_of(cluster):
    """The solver's process, a child of the controller; None when there is none."""
    try:
        controller = cluster.pid_of("bftrainerd")
    except (OSError, ValueError):
        return None
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_solver = b"solver-child" in (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_solver and parent_of(folder.name) == controller:
            return int(folder.name)
    return None


def parent_of(pid):
    """None when it has ended."""
    try:
        return int(pathlib.Path("/proc/{}/stat".format(pid)).read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def command_name(pid):
    try:
        return pathlib.Path("/proc/{}/comm".format(pid)).read_text().strip()
    except OSError:
        return ""
