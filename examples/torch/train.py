#!/usr/bin/env python3
"""Trains a small network on handwritten digits with PyTorch's DistributedDataParallel.

It shows what a PyTorch program needs so that a trainer may grow, shrink and be stopped
at any moment: `init_method="env://"`, nothing of torch's own elasticity. Alone
(`python3 train.py`) it is one rank; with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
set it is one of several, started by `bftrainer run` or by torchrun.

Batch, learning rate and the order of the samples do not depend on the number of ranks,
so each epoch's loss is the same whatever the rescales were, to the rounding of float32
sums: within 1e-4.

Exit codes: 0 finished, 143 stopped by SIGTERM after saving, 1 anything else.
"""

import argparse
import gzip
import json
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
# Last, so that an installed copy, one in PYTHONPATH or one beside this file goes first.
sys.path.append(os.path.join(HERE, os.pardir, os.pardir, "scripts"))

import bftrainer_progress as bft  # noqa: E402

# Until the ranks are together there is nothing to save, and importing torch takes seconds.
signal.signal(signal.SIGTERM, lambda *_: os._exit(bft.EXIT_PREEMPTED))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

DATA_FILE = os.path.join(HERE, os.pardir, "digits", "digits.csv.gz")
TRAINING_ROWS = 1500  # The other 297 are the test set.
SIGTERM_SKEW_S = 0.5  # How much later than a peer's our own SIGTERM may arrive.


def main():
    options = parse_options()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)  # The same first weights on every rank.
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(options, rank, world)
    try:
        if world > 1:
            dist.init_process_group("gloo", init_method="env://")
        trainer.resume()
        bft.install_sigterm_flag()
        return trainer.run()
    except bft.Fenced as error:
        print("rank {}: {}".format(rank, error), file=sys.stderr, flush=True)
        return 1
    except RuntimeError as error:
        # What gloo says when a peer is gone: it may have got SIGTERM earlier than we.
        if sigterm_comes_within(SIGTERM_SKEW_S):
            return bft.EXIT_PREEMPTED
        print("rank {}: {}".format(rank, error), file=sys.stderr, flush=True)
        return 1


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--batch", type=int, default=60, help="samples per step, over all ranks (%(default)s)"
    )
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (%(default)s)")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument(
        "--device-ms-per-sample",
        type=float,
        default=0.0,
        metavar="MS",
        help="sleep this long for each sample of a rank, in place of an accelerator's work "
        "(%(default)s)",
    )
    parser.add_argument("--losses", metavar="FILE", help="write the loss per epoch here (JSON)")
    return parser.parse_args()


def sigterm_comes_within(wait_s):
    deadline = time.monotonic() + wait_s
    while not bft.stop_requested() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bft.stop_requested()


class Trainer:
    """One rank's part of the training; rank 0 also saves, prints and reports."""

    def __init__(self, options, rank, world):
        self.options = options
        self.rank, self.world = rank, world
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=options.lr, momentum=0.9)
        # All that a resumed run needs beside model and optimizer.
        self.position = {"epoch": 0, "in_epoch": 0, "samples": 0, "loss_sum": 0.0, "losses": []}
        pixels, labels = load_digits()
        self.training = pixels[:TRAINING_ROWS], labels[:TRAINING_ROWS]
        self.test = pixels[TRAINING_ROWS:], labels[TRAINING_ROWS:]
        folder = os.environ.get("BFT_CKPT_DIR", "ckpt")
        self.checkpoint = os.path.join(folder, "digits.pt")

    @property
    def is_first(self):
        return self.rank == 0

    def resume(self):
        """Every rank gets the state that rank 0 finds: on a network file system another node
        may for a while still see an older file."""
        found = [self.checkpoint_found() if self.is_first else None]
        if self.world > 1:
            dist.broadcast_object_list(found)
        if found[0] is not None:
            self.load_state(found[0])
        self.parallel = DistributedDataParallel(self.model) if self.world > 1 else self.model
        self.report()

    def checkpoint_found(self):
        """The state that was saved; None when there is none."""
        os.makedirs(os.path.dirname(os.path.abspath(self.checkpoint)), exist_ok=True)
        return torch.load(self.checkpoint) if os.path.exists(self.checkpoint) else None

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": self.position,
        }

    def load_state(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.position = state["position"]

    def run(self):
        """Trains to the last epoch, or to the stop; returns the exit code."""
        steps = 0
        while self.position["epoch"] < self.options.epochs:
            batch_loss, stop = self.train_batch()
            steps += 1
            self.report(loss=batch_loss)
            if stop and self.position["epoch"] < self.options.epochs:
                self.save()
                self.report(last=True)
                return bft.EXIT_PREEMPTED
            if steps % self.options.save_every == 0:
                self.save()
        self.finish()
        return 0

    def train_batch(self):
        """One step of all ranks; returns (mean loss, whether any rank was told to stop)."""
        batch = self.next_batch()
        loss_sum = self.loss_sum(batch[self.rank :: self.world])

        # DDP averages the ranks' gradients: times the number of ranks over the size of the
        # whole batch that is the gradient of the batch's mean loss, however uneven the shares.
        self.optimizer.zero_grad()
        (loss_sum * self.world / len(batch)).backward()
        sums = torch.tensor([float(bft.stop_requested()), loss_sum.item()], dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(sums)
        stop, loss_sum = sums.tolist()
        self.optimizer.step()
        self.advance(batch, loss_sum)
        return loss_sum / len(batch), stop > 0

    def next_batch(self):
        """The rows that all ranks together train on next."""
        position = self.position
        order = torch.randperm(
            TRAINING_ROWS, generator=seeded("{} {}".format(self.options.seed, position["epoch"]))
        )
        return order[position["in_epoch"] : position["in_epoch"] + self.options.batch]

    def loss_sum(self, rows):
        """Over these rows, to be differentiated."""
        pixels, labels = self.training[0][rows], self.training[1][rows]
        loss_sum = functional.cross_entropy(self.parallel(pixels), labels, reduction="sum")
        time.sleep(len(rows) * self.options.device_ms_per_sample / 1000)
        return loss_sum

    def advance(self, batch, loss_sum):
        """The batch is learnt; loss_sum is that of all ranks."""
        position = self.position
        position["loss_sum"] += loss_sum
        position["in_epoch"] += len(batch)
        position["samples"] += len(batch)
        if position["in_epoch"] == TRAINING_ROWS:
            self.finish_epoch()

    def finish_epoch(self):
        position = self.position
        position["losses"].append(position["loss_sum"] / TRAINING_ROWS)
        position["epoch"] += 1
        position["in_epoch"], position["loss_sum"] = 0, 0.0
        if self.is_first:
            print(
                "epoch {} loss {:.6f} accuracy {:.4f} on {} ranks".format(
                    position["epoch"], position["losses"][-1], self.accuracy(), self.world
                ),
                flush=True,
            )

    def accuracy(self):
        with torch.no_grad():
            guesses = self.model(self.test[0]).argmax(dim=1)
        return (guesses == self.test[1]).float().mean().item()

    def finish(self):
        self.save()
        losses = self.position["losses"]
        if self.is_first and self.options.losses:
            bft.save_atomically(self.options.losses, json.dumps(losses).encode("ascii"))
        self.report(loss=losses[-1], done=True)

    def save(self):
        if self.is_first:
            bft.save_atomically(self.checkpoint, lambda file: torch.save(self.state(), file))

    def report(self, loss=None, done=False, last=False):
        bft.report(
            self.position["samples"],
            loss=loss,
            epoch=self.position["epoch"],
            total=self.options.epochs * TRAINING_ROWS,
            done=done,
            last=last,
        )


def seeded(text):
    """A generator that is the same on every rank and in every run."""
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(text.encode("ascii")[:8].ljust(8), "big") % 2**31)
    return generator


def load_digits():
    """(rows, 64) pixels in 0..1 as float32 and (rows,) labels."""
    with gzip.open(DATA_FILE, "rt") as file:
        rows = torch.tensor([[int(number) for number in row.split(",")] for row in file])
    return rows[:, :64].float() / 16, rows[:, 64]


if __name__ == "__main__":
    code = main()
    # Without torch's destructors, which may wait for peers that are gone.
    sys.stdout.flush()
    os._exit(code)
