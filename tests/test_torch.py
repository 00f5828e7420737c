"""PyTorch for real: the example under DistributedDataParallel on four nodes learns what it
learns undisturbed, whatever happens to its nodes.

Run: python3 tests/test_torch.py (after cargo build --release --workspace)
"""

import os
import subprocess
import unittest

from cluster import ROOT
from training import FOR_EVER, TrainingTest

EXAMPLE = ROOT / "examples/torch"
SPECIFICATION = "--bftrainer=nodes=1-4,up=3,down=3"
START_S = 180.0  # Each start imports torch on every node, and all nodes share this machine.

# Whether torchrun's agents can find each other: from torch 2.4 on their store needs libuv, which
# Debian 13's has not, and no variable turns it off.
STORE = "from torch.distributed import TCPStore; TCPStore('127.0.0.1', 0, 1, True, multi_tenant=True)"


def torch_runs(program):
    """As the cluster's jobs see it: without what is installed in the caller's home."""
    return subprocess.run(["/usr/bin/python3", "-c", program], capture_output=True).returncode == 0


# Where tests run unattended, torch must be there: scripts/install-deps installs it.
@unittest.skipUnless(
    os.environ.get("CI") or torch_runs("import torch"), "there is no python3-torch; scripts/install-deps installs it"
)
class Torch(TrainingTest):
    EXAMPLE = EXAMPLE
    TOLERANCE = 1e-4  # float32 sums differ in their order.

    def test_losses_are_those_of_an_undisturbed_run_after_rescales_and_preemptions(self):
        regular = self.regular("-N2")
        self.wait_state(regular, "RUNNING")
        self.set_epochs(FOR_EVER)
        trainer = self.submit("train.sh", '"$dir/train.py" "$@"')
        row = self.wait_trains(trainer, 2)
        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 4, after=row)
        regular = self.regular("-w", row["node_list"][2])
        row = self.wait_trains(trainer, 3, after=row)
        self.set_epochs(int(row["epoch"]) + 3)
        self.regular("-w", row["node_list"][0])
        self.wait_completed(trainer)
        shown = self.show(trainer)
        self.assertGreaterEqual(shown["rescales"], 3)
        self.assertGreaterEqual(shown["preemptions"], 2)
        self.assert_same_losses()

    @unittest.skipUnless(torch_runs(STORE), "torchrun can't run: this torch is built without libuv")
    def test_losses_are_the_same_under_torchrun(self):
        regular = self.regular("-N1")
        self.wait_state(regular, "RUNNING")
        self.set_epochs(FOR_EVER)
        trainer = self.submit("train-torchrun.sh", '"$TRAIN" "$@"')
        row = self.wait_trains(trainer, 3)
        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 4, after=row)
        self.set_epochs(int(row["epoch"]) + 3)
        self.regular("-w", row["node_list"][0])
        self.wait_completed(trainer)
        self.assertGreaterEqual(self.show(trainer)["preemptions"], 1)
        self.assert_same_losses()

    # Helpers.

    def submit(self, name, start):
        """The example's script, whose generations read the number of epochs anew: the test says
        when to end. `start` is what starts the training in it."""
        text = (EXAMPLE / name).read_text()
        self.assertIn(start, text)
        steered = start.replace('"$@"', '--epochs "$(cat epochs)" "$@"')
        script = self.script(text.replace(start, steered))
        return self.sbatch(
            *[SPECIFICATION, script, "--device-ms-per-sample", "4", "--losses", "losses.json"],
            env={"TORCH_EXAMPLE_DIR": str(EXAMPLE)},
        )

    def wait_trains(self, trainer, nodes, after=None):
        return super().wait_trains(trainer, nodes, after, START_S)

    def wait_completed(self, trainer):
        self.wait_ended(trainer, "COMPLETED", START_S)


if __name__ == "__main__":
    unittest.main()
