#!/usr/bin/env python3
"""Trains as train.py does, but handles membership itself: for `bftrainer run --live`.

Processes that stay keep their state in memory when others come or go. The host file says
who belongs together: its first host is rank 0, and its generation changes with every
change of members. All leave their group at the end of a step and meet again in the next
one; whoever has trained furthest gives its state to all. Only where nobody has one, the
checkpoint is read.

Exit codes: 0 finished, 143 told to leave, 1 anything else.
"""

import os
import signal
import socket
import sys
import time

import train
from train import PeersLost, bft

LOOK_S = 1.0  # How often the host file is looked at without a signal.
SILENCE_S = 1.0  # A peer that is silent for longer may have been taken off the host file.


def main():
    options = train.parse_options()
    bft.install_sigterm_flag()
    group = Group(options.peer_timeout_s)
    trainer = LiveTrainer(options, group)
    try:
        return live(trainer, group)
    except train.UnusableCheckpoint as error:
        train.complain(group.rank, error)
        return 1
    finally:
        group.close()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def live(trainer, group):
    """Trains in one group after the other; returns the exit code."""
    failing_since_s = None
    while True:
        try:
            group.meet()
            trainer.resume()
            failing_since_s = None
            if trainer.run() == 0:
                return 0
        except PeersLost as error:
            if failing_since_s is None:
                failing_since_s = time.monotonic()
            print("rank {}: {}".format(group.rank, error), file=sys.stderr, flush=True)
        group.close()
        if train.sigterm_comes_within(0):
            trainer.save_if_nobody_goes_on()
            return bft.EXIT_PREEMPTED
        if (failing_since_s or time.monotonic()) + group.timeout_s < time.monotonic():
            train.complain(group.rank, "no group for {:g} s".format(group.timeout_s))
            return 1


class LiveTrainer(train.Trainer):
    """A Trainer whose run ends, besides, when the group's members change."""

    has_state = False

    def resume(self):
        """Every rank gets the newest state that one of them has."""
        newest = self.collective.furthest(self.state.samples if self.has_state else None)
        if newest is None and self.is_first:
            self.load_checkpoint()
        elif newest is not None:
            content = self.collective.fetch(newest, self.state.to_json())
            if content is not None:
                self.state.load_json(content)
        self.state.load_json(self.collective.broadcast(self.state.to_json()))
        self.has_state = True
        if self.is_first:
            self.report()

    def must_stop(self):
        return bft.stop_requested() or self.collective.has_changed()

    def save_last_step(self):
        """The others carry the state on."""

    def save_if_nobody_goes_on(self):
        """Who leaves does not write over what those write who stay."""
        if self.has_state and self.is_first and self.collective.is_member():
            self.save()
            self.report(last=True)


class Group(train.Collective):
    """The members of one generation after the other, found by the host file.

    Each process listens on a port of its own and writes the address into the control
    folder, under its node's name.
    """

    def __init__(self, timeout_s):
        super().__init__(rank=0, world_size=1, timeout_s=timeout_s)
        self.node = os.environ["BFT_NODE"]
        self.hosts = []
        self.folder = os.path.join(os.environ["BFT_CONTROL_DIR"], "peers")
        self.looked_s = self.heard_s = time.monotonic()
        self.is_notified = True
        signal.signal(signal.SIGUSR1, self._on_notified)
        address = os.environ["BFT_NODE_ADDR"]
        self.listener = socket.socket(train.address_family(address), socket.SOCK_STREAM)
        self.listener.bind((address, 0))
        self.listener.listen(64)
        os.makedirs(self.folder, exist_ok=True)
        place = "{} {}".format(address, self.listener.getsockname()[1])
        bft.save_atomically(os.path.join(self.folder, self.node), place.encode("ascii"))

    def meet(self):
        """Returns when all members of the newest generation are connected."""
        self.close()
        deadline = time.monotonic() + self.timeout_s
        self.generation, self.hosts = read_hostfile()
        while self.node not in self.hosts:
            # This node is left out: SIGTERM is on its way, or a newer host file, which
            # raises PeersLost.
            self._check_wait(deadline, "the host file does not name {}".format(self.node))
            time.sleep(train.SIGNAL_CHECK_S)
        self.rank, self.world_size = self.hosts.index(self.node), len(self.hosts)
        self.stop_patience_s = 0.0
        if self.rank == 0:
            self._accept_peers(self.listener, deadline)
        else:
            self.peers = [self._connect(self._first_place, deadline)]

    def has_changed(self):
        """Whether the host file is another generation's; looked at when it may be."""
        now_s = time.monotonic()
        if not self.is_notified and now_s < self.looked_s + LOOK_S:
            return False
        self.is_notified = False
        self.looked_s = now_s
        return read_hostfile()[0] != self.generation

    def is_member(self):
        """Whether the newest generation has this node."""
        return self.node in read_hostfile()[1]

    def furthest(self, samples):
        """The rank with the most samples; None when no rank has a state."""
        own = [0.0] * self.world_size
        own[self.rank] = 0.0 if samples is None else samples + 1.0
        all_samples = self.all_reduce(own)
        return all_samples.index(max(all_samples)) if any(all_samples) else None

    def fetch(self, rank, content):
        """On rank 0 what `rank` has as `content`; None elsewhere."""
        if self.rank == 0:
            return self._receive_message(self.peers[rank - 1]) if rank > 0 else content
        if self.rank == rank:
            self._send_message(self.peers[0], content)
        return None

    # Details.

    def _on_notified(self, _number, _frame):
        self.is_notified = True

    def _first_place(self):
        """Where rank 0 listens; an address of nobody until it has said so."""
        try:
            with open(os.path.join(self.folder, self.hosts[0])) as file:
                address, port = file.read().split()
                return address, int(port)
        except (OSError, ValueError):
            return "localhost", 0

    def _check_wait(self, deadline, state):
        super()._check_wait(deadline, state)
        if self.has_changed():
            raise PeersLost("the members have changed ({})".format(state))

    def _receive(self, peer, size_bytes, timeout_s=None):
        self.heard_s = time.monotonic()
        return super()._receive(peer, size_bytes, timeout_s)

    def _check_members(self):
        """A node that hangs keeps its connections: the host file knows better."""
        is_silent = time.monotonic() > self.heard_s + SILENCE_S
        if is_silent and self.has_changed():
            raise PeersLost("the members have changed during a step")


def read_hostfile():
    """(generation, hosts in rank order)."""
    with open(os.environ["BFT_HOSTFILE"]) as file:
        lines = file.read().splitlines()
    hosts = [line.rsplit(":", 1)[0] for line in lines if not line.startswith("#")]
    return lines[0].split()[-1], hosts


if __name__ == "__main__":
    sys.exit(main())
