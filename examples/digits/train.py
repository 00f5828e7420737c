#!/usr/bin/env python3
"""Trains softmax regression on handwritten digits on any number of ranks.

A small but real data-parallel training in nothing but the Python standard library: it
shows all that a program needs to do so that a trainer may grow, shrink and be stopped
at any moment. Alone (`python3 train.py`) it is one rank on a laptop; with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT set it is one of several.

The data order does not depend on the number of ranks, so the loss of each epoch is the
same, to rounding, whatever the rescales were.

Exit codes: 0 finished, 143 stopped by SIGTERM after saving, 1 anything else: a peer
vanished, or a newer generation of this trainer exists.
"""

import argparse
import functools
import gzip
import json
import math
import os
import random
import select
import signal
import socket
import sys
import time
from array import array
from operator import add, mul

HERE = os.path.dirname(os.path.realpath(__file__))
# Last, so that an installed copy, one in PYTHONPATH or one beside this file goes first.
sys.path.append(os.path.join(HERE, os.pardir, os.pardir, "scripts"))

import bftrainer_progress as bft  # noqa: E402

DATA_FILE = os.path.join(HERE, "digits.csv.gz")
TRAINING_ROWS = 1500  # The other 297 are the test set.
CLASSES = 10
INPUTS = 65  # 8x8 pixels and a constant 1, whose weight is the bias.

SIGNAL_CHECK_S = 0.1  # How often one who waits looks whether SIGTERM has come.
STOP_PATIENCE_S = 5.0  # How long one with SIGTERM waits for peers that don't answer.
HELLO_BYTES = 64  # What ranks say first is padded to this.
SIGTERM_SKEW_S = 0.5  # How much later than a peer's our own SIGTERM may arrive.


def main():
    options = parse_options()
    bft.install_sigterm_flag()
    collective = Collective(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        timeout_s=options.peer_timeout_s,
    )
    try:
        return train(Trainer(options, collective), collective)
    except (bft.Fenced, UnusableCheckpoint) as error:
        complain(collective.rank, error)
        return 1
    finally:
        collective.close()
        # Python drops its handlers as it ends: a late SIGTERM would spoil the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def train(trainer, collective):
    """Returns the exit code."""
    try:
        collective.join(os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
        trainer.resume()
        return trainer.run()
    except PeersLost as error:
        collective.close()  # Now, not after the wait: the peers learn of it by this.
        if not sigterm_comes_within(SIGTERM_SKEW_S):
            complain(collective.rank, error)
            return 1
        trainer.save_last_step()
        return bft.EXIT_PREEMPTED


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--batch", type=int, default=48, help="samples per step, over all ranks (%(default)s)"
    )
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the data order (%(default)s)")
    parser.add_argument(
        "--save-every",
        type=int,
        default=20,
        metavar="STEPS",
        help="steps from one checkpoint to the next (%(default)s)",
    )
    parser.add_argument(
        "--device-ms-per-sample",
        type=float,
        default=0.0,
        metavar="MS",
        help="sleep this long for each sample that a rank handles, in place of the work of "
        "an accelerator: so the throughput grows with the ranks on a small machine too "
        "(%(default)s)",
    )
    parser.add_argument(
        "--peer-timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="longest wait for the other ranks, at the start and in a step (%(default)s)",
    )
    parser.add_argument("--losses", metavar="FILE", help="write the loss per epoch here (JSON)")
    options = parser.parse_args()
    if min(options.epochs, options.batch, options.save_every) < 1:
        parser.error("--epochs, --batch and --save-every must be at least 1")
    return options


def sigterm_comes_within(wait_s):
    """All ranks get SIGTERM, but one that got it first may already have gone."""
    deadline = time.monotonic() + wait_s
    while not bft.stop_requested() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bft.stop_requested()


def complain(rank, what):
    print("rank {}: {}".format(rank, what), file=sys.stderr, flush=True)


# --- the training ---------------------------------------------------------------------


class UnusableCheckpoint(Exception):
    pass


class State:
    """All that a checkpoint holds, and all that a resumed run needs."""

    def __init__(self, seed, batch, lr):
        self.seed = seed
        self.batch = batch
        self.lr = lr
        self.weights = [[0.0] * INPUTS for _ in range(CLASSES)]
        self.epoch = 0  # Epochs finished.
        self.position = 0  # Samples of the epoch at hand that are learnt.
        self.samples = 0  # Samples learnt in all.
        self.loss_sum = 0.0  # Over the epoch at hand.
        self.losses = []  # Mean loss of each finished epoch.

    def to_json(self):
        """Exact: Python writes a float so that reading gives the same one."""
        return json.dumps(vars(self)).encode("ascii")

    def load_json(self, content):
        """Raises UnusableCheckpoint where resuming would change the loss curve."""
        loaded = json.loads(content.decode("ascii"))
        for name in ("seed", "batch", "lr"):
            if loaded[name] != getattr(self, name):
                raise UnusableCheckpoint(
                    "the checkpoint was made with --{0} {1}, not {2}: give --{0} {1}, or "
                    "remove the checkpoint".format(name, loaded[name], getattr(self, name))
                )
        vars(self).update(loaded)


class Trainer:
    """One rank's part of the training; rank 0 also saves, prints and reports."""

    def __init__(self, options, collective):
        self.options = options
        self.collective = collective
        self.state = State(options.seed, options.batch, options.lr)
        self.steps = 0  # Since this process started.
        digits = load_digits(DATA_FILE)
        self.training, self.test = digits[:TRAINING_ROWS], digits[TRAINING_ROWS:]
        self.checkpoint = os.path.join(os.environ.get("BFT_CKPT_DIR", "ckpt"), "digits.json")

    @property
    def is_first(self):
        return self.collective.rank == 0

    def resume(self):
        """Every rank gets the state that rank 0 found.

        Only rank 0 reads the file: on a network file system another node may for a
        while still see an older one.
        """
        if self.is_first:
            self.load_checkpoint()
            self.report()
        self.state.load_json(self.collective.broadcast(self.state.to_json()))

    def load_checkpoint(self):
        os.makedirs(os.path.dirname(self.checkpoint), exist_ok=True)
        try:
            with open(self.checkpoint, "rb") as file:
                self.state.load_json(file.read())
        except FileNotFoundError:
            pass

    def run(self):
        """Trains to the last epoch, or to the stop; returns the exit code."""
        while self.state.epoch < self.options.epochs:
            batch_loss, stop = self.train_batch()
            self.steps += 1
            if self.state.position == len(self.training):
                self.finish_epoch()
            if self.is_first:
                self.report(loss=batch_loss)
            if stop and self.state.epoch < self.options.epochs:
                self.save_last_step()
                return bft.EXIT_PREEMPTED
            if self.is_first and self.steps % self.options.save_every == 0:
                self.save()
        if self.is_first:
            self.finish()
        return 0

    def train_batch(self):
        """One step of all ranks; returns (mean loss, whether any rank was told to stop).

        The state changes only once the sums over all ranks are there: so it is the
        same on every rank, and always that of a whole step.
        """
        state = self.state
        order = epoch_order(state.seed, state.epoch, len(self.training))
        batch = order[state.position : state.position + state.batch]
        own = batch[self.collective.rank :: self.collective.world_size]
        shard = [self.training[i] for i in own]
        loss_sum, gradient = loss_and_gradient_sums(state.weights, shard)
        time.sleep(len(shard) * self.options.device_ms_per_sample / 1000)

        stop = float(self.must_stop())
        stop, loss_sum, *gradient = self.collective.all_reduce([stop, loss_sum] + gradient)

        descend(state.weights, gradient, state.lr / len(batch))
        state.loss_sum += loss_sum
        state.position += len(batch)
        state.samples += len(batch)
        return loss_sum / len(batch), stop > 0

    def must_stop(self):
        """Whether this rank wants all to stop after the step at hand."""
        return bft.stop_requested()

    def finish_epoch(self):
        state = self.state
        state.losses.append(state.loss_sum / len(self.training))
        state.epoch += 1
        state.position = 0
        state.loss_sum = 0.0
        if self.is_first:
            print(
                "epoch {} loss {:.6f} accuracy {:.4f} samples {}".format(
                    state.epoch, state.losses[-1], accuracy(state.weights, self.test), state.samples
                ),
                flush=True,
            )

    def finish(self):
        self.save()
        if self.options.losses:
            bft.save_atomically(self.options.losses, json.dumps(self.state.losses).encode("ascii"))
        self.report(loss=self.state.losses[-1], done=True)

    def save_last_step(self):
        """Before leaving: saves, on rank 0, what the last whole step gave.

        Without a step nothing is saved: the checkpoint may not even have been read.
        """
        if self.is_first and self.steps > 0:
            self.save()
            self.report(last=True)

    def save(self):
        bft.save_atomically(self.checkpoint, self.state.to_json())

    def report(self, loss=None, done=False, last=False):
        bft.report(
            self.state.samples,
            loss=loss,
            epoch=self.state.epoch,
            total=self.options.epochs * len(self.training),
            done=done,
            last=last,
        )


# --- data and model -------------------------------------------------------------------


def load_digits(path):
    """(inputs, label) of each row; inputs are the pixels in 0..1 and the constant 1."""
    digits = []
    with gzip.open(path, "rt") as rows:
        for row in rows:
            *pixels, label = map(int, row.split(","))
            digits.append(([pixel / 16 for pixel in pixels] + [1.0], label))
    return digits


@functools.lru_cache(maxsize=1)
def epoch_order(seed, epoch, count):
    """The order of the samples in an epoch, the same on every rank."""
    order = list(range(count))
    random.Random("{} {}".format(seed, epoch)).shuffle(order)
    return order


def scores(weights, inputs):
    return [sum(map(mul, row, inputs)) for row in weights]


def loss_and_gradient_sums(weights, shard):
    """Cross entropy summed over the shard, and its gradient (classes * inputs, flat)."""
    loss_sum = 0.0
    gradient = [[0.0] * INPUTS for _ in weights]
    for inputs, label in shard:
        logits = scores(weights, inputs)
        highest = max(logits)
        exponentials = [math.exp(logit - highest) for logit in logits]
        total = sum(exponentials)
        loss_sum += math.log(total) - (logits[label] - highest)
        for k, exponential in enumerate(exponentials):
            error = exponential / total - (k == label)
            gradient[k] = [g + error * x for g, x in zip(gradient[k], inputs)]
    return loss_sum, [g for row in gradient for g in row]


def descend(weights, gradient_sums, rate):
    for k, row in enumerate(weights):
        row_sums = gradient_sums[k * INPUTS : (k + 1) * INPUTS]
        weights[k] = [w - rate * g for w, g in zip(row, row_sums)]


def accuracy(weights, digits):
    """The share of digits whose highest score is their label's."""
    hits = 0
    for inputs, label in digits:
        logits = scores(weights, inputs)
        hits += logits.index(max(logits)) == label
    return hits / len(digits)


# --- the ranks together ---------------------------------------------------------------


class PeersLost(Exception):
    """The other ranks can't be reached: nothing can be done together any more."""


class Collective:
    """Sums over all ranks, by plain TCP: a star with rank 0 in the middle.

    Every wait ends: by what was waited for, by a peer that vanished, by the time-out,
    or soon after SIGTERM; all but the first raise PeersLost.
    """

    def __init__(self, rank, world_size, timeout_s):
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.generation = os.environ.get("BFT_GENERATION", "-")
        self.stop_patience_s = 0.0  # Until the ranks are together there is nothing to save.
        self.peers = []  # Rank 0: sockets to ranks 1, 2, ...; others: the one to rank 0.

    def join(self, master_address, master_port):
        """Returns when this rank is connected: rank 0 to all, the others to rank 0."""
        if self.world_size == 1:
            return
        deadline = time.monotonic() + self.timeout_s
        master = (master_address, int(master_port))
        if self.rank == 0:
            with self._listen(master, deadline) as listener:
                self._accept_peers(listener, deadline)
        else:
            self.peers = [self._connect(lambda: master, deadline)]

    def broadcast(self, content):
        """Rank 0's bytes, on every rank. The first call tells that all have come."""
        if self.rank == 0:
            for peer in self.peers:
                self._send_message(peer, content)
        else:
            content = self._receive_message(self.peers[0])
        self.stop_patience_s = STOP_PATIENCE_S
        return content

    def all_reduce(self, numbers):
        """The sums over all ranks, the very same on each (ranks add up in their order)."""
        if self.rank == 0:
            for peer in self.peers:
                numbers = list(map(add, numbers, self._receive_floats(peer, len(numbers))))
            message = array("d", numbers).tobytes()
            for peer in self.peers:
                self._send(peer, message)
            return numbers
        self._send(self.peers[0], array("d", numbers).tobytes())
        return self._receive_floats(self.peers[0], len(numbers))

    def close(self):
        for peer in self.peers:
            peer.close()
        self.peers = []

    # Meeting.

    def _accept_peers(self, listener, deadline):
        found = {}
        while len(found) < self.world_size - 1:
            here = "{} of {} ranks are here".format(len(found) + 1, self.world_size)
            self._check_wait(deadline, here)
            if not is_readable(listener):
                continue
            peer, _ = listener.accept()
            rank = self._greet(peer)
            if rank is None:
                peer.close()
            else:
                found[rank] = peer
        self.peers = [found[rank] for rank in sorted(found)]

    def _listen(self, master, deadline):
        """A port may still be taken for a moment, by the generation before."""
        host, port = master
        told = False
        while True:
            # Any address of this host: a host's own name often means the loopback only.
            listener = socket.socket(address_family(host), socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
                listener.listen(self.world_size)
                return listener
            except OSError as error:
                listener.close()
                if not told:
                    complain(0, "port {}: {}; trying on".format(port, error))
                    told = True
            self._check_wait(deadline, "port {} is taken".format(port))
            time.sleep(SIGNAL_CHECK_S)

    def _connect(self, find_master, deadline):
        """Rank 0 may not listen yet, or a stranger may: so try on."""
        while True:
            master = find_master()
            self._check_wait(deadline, "no rank 0 at {}:{}".format(*master))
            peer = None
            try:
                peer = socket.create_connection(master, timeout=1.0)
                # TCP may connect a socket to itself where no one listens.
                if peer.getsockname() != peer.getpeername():
                    self._prepare(peer)
                    self._send(peer, self._hello(self.rank))
                    wait_s = deadline - time.monotonic()
                    if self._receive(peer, HELLO_BYTES, wait_s) == self._hello(0):
                        return peer
            except (OSError, PeersLost):
                pass
            if peer is not None:
                peer.close()
            time.sleep(0.05)

    def _greet(self, peer):
        """The rank that has connected, None for a stranger or one of another generation."""
        try:
            self._prepare(peer)
            heard = self._receive(peer, HELLO_BYTES, timeout_s=1.0)
            for rank in range(1, self.world_size):
                if heard == self._hello(rank):
                    self._send(peer, self._hello(0))
                    return rank
        except (OSError, PeersLost):
            pass
        return None

    def _hello(self, rank):
        """What ranks say first: shows that both belong to the same generation."""
        trainer = os.environ.get("BFT_TRAINER_ID", "-")
        line = "digits {:.20} {:.20} {} {}".format(
            trainer, self.generation, rank, self.world_size
        )
        return line.encode("utf-8")[:HELLO_BYTES].ljust(HELLO_BYTES)

    def _prepare(self, peer):
        peer.settimeout(self.timeout_s)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that went down sends no farewell: have the kernel look every second.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", 1),
            ("TCP_KEEPINTVL", 1),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 4000),
        ):
            if hasattr(socket, name):  # Linux has them all.
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _check_wait(self, deadline, state):
        if bft.stop_requested():
            raise PeersLost("told to stop before all ranks had come ({})".format(state))
        if time.monotonic() > deadline:
            raise PeersLost("not all ranks came within {:g} s ({})".format(self.timeout_s, state))

    # Talking.

    def _send(self, peer, content):
        try:
            peer.sendall(content)
        except OSError as error:
            raise PeersLost("a peer is gone: {}".format(error))

    def _send_message(self, peer, content):
        self._send(peer, array("q", [len(content)]).tobytes() + content)

    def _receive_message(self, peer):
        (length,) = array("q", self._receive(peer, 8))
        return self._receive(peer, length)

    def _receive_floats(self, peer, count):
        return array("d", self._receive(peer, 8 * count))

    def _receive(self, peer, size_bytes, timeout_s=None):
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        hurried = False
        received = bytearray()
        while len(received) < size_bytes:
            self._check_members()
            if bft.stop_requested() and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + self.stop_patience_s)
            if is_readable(peer):
                received += self._receive_some(peer, size_bytes - len(received))
            elif time.monotonic() >= deadline:
                raise PeersLost("a peer said nothing for {:g} s".format(timeout_s))
        return bytes(received)

    def _check_members(self):
        """Raises PeersLost when it is known that peers won't answer: never, here."""

    def _receive_some(self, peer, size_bytes):
        try:
            content = peer.recv(size_bytes)
        except OSError as error:
            raise PeersLost("a peer is gone: {}".format(error))
        if not content:
            raise PeersLost("a peer is gone: it closed the connection")
        return content


def address_family(host):
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except OSError:
        return socket.AF_INET


def is_readable(waiting):
    """Waits a moment; short, as Python goes on waiting after a signal."""
    return bool(select.select([waiting], [], [], SIGNAL_CHECK_S)[0])


if __name__ == "__main__":
    sys.exit(main())
