"""Seconds of a processor that processes and their threads have used, from /proc (proc(5))."""

import os
import pathlib


def cpu_s(folder):
    """Name and seconds, user and system, of the process or thread whose folder in /proc this is."""
    head, _, tail = pathlib.Path(folder, "stat").read_text().rpartition(")")
    fields = tail.split()
    # utime and stime are the 14th and 15th field; the state, first here, is the third.
    ticks = int(fields[11]) + int(fields[12])
    return head.partition("(")[2], ticks / os.sysconf("SC_CLK_TCK")


def process_cpu_s(pid):
    return cpu_s("/proc/{}".format(pid))[1]


def thread_cpu_s(pid, name):
    """Of the process's threads of that name."""
    threads = pathlib.Path("/proc/{}/task".format(pid)).iterdir()
    return sum(seconds for thread_name, seconds in map(cpu_s, threads) if thread_name == name)
