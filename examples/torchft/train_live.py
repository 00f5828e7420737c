#!/usr/bin/env python3
"""Trains as ../torch/train.py does, with torchft handling membership: for `bftrainer run --live`.

Each node is one torchft replica group of one process. Processes that stay keep model and
optimizer in memory when others come or go; newcomers heal from a peer, by torchft; a step in
which a peer vanished is not committed, and trained again without it. What torchft leaves
open is here: where its lighthouse is (on the node of rank 0, found by the host file), and
where the state comes from when nobody has one in memory (rank 0 reads the checkpoint).

As in ../torch a step is one batch of fixed size, whatever the number of replicas, so each
epoch's loss is that of one undisturbed rank to 1e-4.

Exit codes: 0 finished, 143 told to leave, 1 anything else.
"""

import gc
import os
import signal
import sys
import time
from datetime import timedelta

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "torch"))
os.environ.setdefault("RUST_LOG", "warn")  # Else torchft tells of each step, twice.

import train  # noqa: E402
from train import bft  # noqa: E402

import torch  # noqa: E402
import torchft  # noqa: E402
from torch.distributed import ReduceOp, TCPStore  # noqa: E402
from torch.nn.utils import parameters_to_vector, vector_to_parameters  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402

LOOK_S = 1.0  # How often the host file is looked at without a signal.
GIVE_UP_S = 180.0  # Longest time without a step.
# Longer than a step, and than healing takes: a peer silent for longer is taken for lost.
PEER_TIMEOUT = timedelta(seconds=20)
# Longer than the others wait between two steps, while the first saves: a lighthouse silent for
# longer is taken for lost. So long all pause when the first node is taken away.
QUORUM_TIMEOUT = timedelta(seconds=5)
CONNECT_TIMEOUT = timedelta(seconds=2)
HEARTBEAT_TIMEOUT_MS = 2000  # A replica silent for longer is left out: the pause when one leaves.
# What torchft raises when its lighthouse does not answer.
LIGHTHOUSE_LOST = (RuntimeError, TimeoutError, ConnectionError)


def main():
    options = train.parse_options()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    trainer = LiveTrainer(options)
    bft.install_sigterm_flag()
    return trainer.run()


class LiveTrainer(train.Trainer):
    """A Trainer whose ranks are torchft's replicas, as many as there are at each step."""

    def __init__(self, options):
        super().__init__(options, rank=0, world=1)
        self.position["steps"] = 0  # Counted as torchft does: who has most is healed from.
        self.replicas = Replicas(self.state, self.load_state)
        self.parallel = self.model  # The gradients are summed in train_batch.
        self.trained_s = time.monotonic()

    @property
    def is_first(self):
        return self.replicas.is_first

    def run(self):
        """Trains to the last epoch, or until told to leave; returns the exit code."""
        while not self.is_finished():
            if bft.stop_requested():
                self.save_if_nobody_goes_on()
                return bft.EXIT_PREEMPTED
            loss = self.try_step()
            if loss is not None:
                self.after_step(loss)
            elif time.monotonic() > self.trained_s + GIVE_UP_S:
                print("no step for {:g} s".format(GIVE_UP_S), file=sys.stderr, flush=True)
                return 1
        self.finish()
        return 0

    def is_finished(self):
        return self.position["epoch"] >= self.options.epochs

    def try_step(self):
        """The batch's mean loss; None when nothing was learnt, and the step is to be repeated."""
        if self.replicas.must_join() and self.is_first and not self.position["steps"]:
            self.read_checkpoint()
        try:
            # May bring a peer's state, so what is next is known only after it.
            manager = self.replicas.start_quorum(self.position["steps"])
        except LIGHTHOUSE_LOST as error:
            self.replicas.leave(error)
            time.sleep(0.1)
            return None
        return None if self.is_finished() else self.train_batch(manager)

    def train_batch(self, manager):
        rank, self.world = manager.participating_rank(), manager.num_participants()
        batch = self.next_batch()
        mean_loss = self.loss_sum(batch[rank :: self.world]) / len(batch)
        self.optimizer.zero_grad()
        mean_loss.backward()
        mean_loss = self.sum_over_replicas(manager, mean_loss)
        # Where a peer was lost the sums may be wrong: then there is no step.
        if not manager.should_commit():
            return None
        self.optimizer.step()
        self.position["steps"] += 1
        self.advance(batch, mean_loss * len(batch))
        return mean_loss

    def sum_over_replicas(self, manager, mean_loss):
        """Makes the gradients those of the whole batch's mean loss, and returns that.

        Not with torchft's DistributedDataParallel: a peer that is lost while gloo sums up is
        an AssertionError there (torchft 0.2.0), and an uncommitted step here.
        """
        parts = [*(parameter.grad for parameter in self.model.parameters()), mean_loss.detach()]
        sums = parameters_to_vector(parts)
        manager.allreduce(sums, reduce_op=ReduceOp.SUM).wait()
        vector_to_parameters(sums, parts)
        return parts[-1].item()

    def after_step(self, loss):
        self.trained_s = time.monotonic()
        self.replicas.publish()
        self.report(loss=loss)
        if self.position["steps"] % self.options.save_every == 0:
            self.save()

    def read_checkpoint(self):
        found = self.checkpoint_found()
        if found is not None:
            self.load_state(found)
        self.report()

    def save(self):
        """Who has just been replaced as the first does not write over what the new one writes."""
        self.replicas.look()
        super().save()

    def save_if_nobody_goes_on(self):
        if self.position["steps"]:
            self.save()
            self.report(last=True)

    def report(self, **progress):
        if self.is_first:
            super().report(**progress)


class Replicas:
    """This node as one of torchft's replicas, at the lighthouse of the host file's first node.

    That node's state is what counts: the others join once it has trained a step, and heal
    from it. So all have the very same state even if they were a step apart when the first
    node before it went.
    """

    def __init__(self, state, load_state):
        self.state, self.load_state = state, load_state
        self.node, self.address = os.environ["BFT_NODE"], os.environ["BFT_NODE_ADDR"]
        self.folder = os.path.join(os.environ["BFT_CONTROL_DIR"], "lighthouses")
        self.manager = self.store = None
        self.server = self.joined = self.told = None
        self.first, self.is_first, self.is_member = None, False, False
        self.is_published = False
        self.looked_s, self.is_notified = 0.0, True
        signal.signal(signal.SIGUSR1, self._on_notified)
        os.makedirs(self.folder, exist_ok=True)

    def look(self):
        """Who is first now?"""
        self.is_notified, self.looked_s = False, time.monotonic()
        with open(os.environ["BFT_HOSTFILE"]) as file:
            hosts = [line.rsplit(":", 1)[0] for line in file if not line.startswith("#")]
        self.first = hosts[0] if hosts else None
        self.is_first, self.is_member = self.first == self.node, self.node in hosts

    def must_join(self):
        """Whether this is no replica, or no longer at the right lighthouse."""
        if self.is_notified or time.monotonic() > self.looked_s + LOOK_S or not self.manager:
            self.look()
        return not self.manager or not self.is_member or self.joined != self.first

    def start_quorum(self, steps):
        """The manager of the step that begins. steps: how many the state at hand has learnt.

        Raises one of LIGHTHOUSE_LOST; then `leave`."""
        if self.must_join():
            self._join(steps)
        self.manager.start_quorum()
        return self.manager

    def leave(self, why):
        if str(why) != self.told:
            self.told = str(why)
            print("{} is in no quorum: {}".format(self.node, why), file=sys.stderr, flush=True)
        if self.manager:
            self.manager.shutdown()
            self.manager = self.store = None
            # Connections are closed with the last reference to the group, which a failed sum's
            # traceback may be: by that a peer that still waits for this one learns of it.
            gc.collect()

    def publish(self):
        """Tells the others where the lighthouse is, once there is a state to heal from."""
        if self.server and not self.is_published:
            content = self._own_lighthouse().encode("ascii")
            bft.save_atomically(os.path.join(self.folder, self.node), content)
            self.is_published = True

    # Details.

    def _join(self, steps):
        if self.manager:
            self.leave("the first node is {}".format(self.first))
        if not self.is_member:
            # SIGTERM is on its way, or a newer host file.
            raise ConnectionError("the host file does not name {}".format(self.node))
        lighthouse = self._own_lighthouse() if self.is_first else self._found_lighthouse()
        # Anew each time: another lighthouse counts its quorums from 1, and so do the keys in it.
        store = TCPStore(self.address, 0, is_master=True, wait_for_workers=False)
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=PEER_TIMEOUT),
            state_dict=self.state,
            load_state_dict=self.load_state,
            min_replica_size=1,
            # Newcomers heal before the step and take part in it: a step's replicas are
            # known, and all have the same state, when its batch is dealt out.
            use_async_quorum=False,
            timeout=PEER_TIMEOUT,
            quorum_timeout=QUORUM_TIMEOUT,
            connect_timeout=CONNECT_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=self.address,
            store_port=store.port,
            lighthouse_addr=lighthouse,
            replica_id=self.node,
            hostname=self.address,
        )
        # Only the first node's state counts.
        steps = steps if self.is_first else 0
        manager.load_state_dict({"step": steps, "batches_committed": steps})
        self.manager, self.store = manager, store
        self.joined, self.told = self.first, None

    def _on_notified(self, _number, _frame):
        self.is_notified = True

    def _own_lighthouse(self):
        if not self.server:
            self.server = LighthouseServer(
                bind="{}:0".format(self.address),
                min_replicas=1,
                join_timeout_ms=HEARTBEAT_TIMEOUT_MS,
                heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
            )
        port = self.server.address().rsplit(":", 1)[1]
        return "http://{}:{}".format(self.address, port)

    def _found_lighthouse(self):
        """That of the first node; or of a process there before, which answers no more."""
        try:
            with open(os.path.join(self.folder, str(self.first))) as file:
                return file.read()
        except FileNotFoundError:
            raise ConnectionError("no lighthouse on {} yet".format(self.first)) from None


if __name__ == "__main__":
    code = main()
    # Without the destructors of torch and torchft, which may wait for peers that are gone.
    sys.stdout.flush()
    os._exit(code)
