"""PyTorch for real: the example under DistributedDataParallel on four nodes learns what it
learns undisturbed, whatever happens to its nodes.

Run: python3 tests/test_torch.py (after cargo build --release --workspace)
"""

import json
import os
import subprocess
import unittest

from cluster import ROOT, ClusterTest

EXAMPLE = ROOT / "examples/torch"
SPECIFICATION = "--bftrainer=nodes=1-4,up=3,down=3"
FOR_EVER = 100000
TOLERANCE = 1e-4  # float32 sums differ in their order.
START_S = 180.0  # Each start imports torch on every node, and all nodes share this machine.

# The number of epochs is read anew by each generation: the test says when to end.
STEERED = 'exec python3 "$TORCH_EXAMPLE_DIR/train.py" --epochs "$(cat epochs)" "$@"\n'


def has_torch():
    """As the cluster's jobs see it: without what is installed in the caller's home."""
    return subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode == 0


# Where tests run unattended, torch must be there: scripts/install-deps installs it.
@unittest.skipUnless(
    os.environ.get("CI") or has_torch(), "there is no python3-torch; scripts/install-deps installs it"
)
class Torch(ClusterTest):
    def test_losses_are_those_of_an_undisturbed_run_after_rescales_and_preemptions(self):
        regular = self.regular("-N2")
        self.wait_state(regular, "RUNNING")
        self.set_epochs(FOR_EVER)
        trainer = self.submit(SPECIFICATION, self.script(STEERED))
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

    def test_losses_are_the_same_under_torchrun(self):
        regular = self.regular("-N1")
        self.wait_state(regular, "RUNNING")
        self.set_epochs(FOR_EVER)
        text = (EXAMPLE / "train-torchrun.sh").read_text()
        script = self.script(text.replace('"$@"\' torchrun', '--epochs "$(cat epochs)" "$@"\' torchrun'))
        trainer = self.submit(SPECIFICATION, script)
        row = self.wait_trains(trainer, 3)
        self.cluster.ok("scancel", regular)
        row = self.wait_trains(trainer, 4, after=row)
        self.set_epochs(int(row["epoch"]) + 3)
        self.regular("-w", row["node_list"][0])
        self.wait_completed(trainer)
        self.assertGreaterEqual(self.show(trainer)["preemptions"], 1)
        self.assert_same_losses()

    # Helpers.

    def submit(self, specification, script):
        return self.sbatch(
            *[specification, script, "--device-ms-per-sample", "4", "--losses", "losses.json"],
            env={"TORCH_EXAMPLE_DIR": str(EXAMPLE)},
        )

    def set_epochs(self, epochs):
        new = self.dir / "epochs.new"
        new.write_text(str(epochs))
        new.rename(self.dir / "epochs")

    def wait_trains(self, trainer, nodes, after=None):
        return super().wait_trains(trainer, nodes, after, START_S)

    def wait_completed(self, trainer):
        self.wait_ended(trainer, "COMPLETED", START_S)

    def assert_same_losses(self):
        """Of each epoch, as a single rank learns them alone."""
        losses = json.loads((self.dir / "losses.json").read_text())
        alone = self.dir / "alone"
        alone.mkdir()
        self.cluster.ok(
            *["python3", EXAMPLE / "train.py", "--epochs", len(losses)],
            *["--losses", alone / "losses.json"],
            cwd=alone,
            timeout_s=300,
        )
        expected = json.loads((alone / "losses.json").read_text())
        self.assertGreaterEqual(len(losses), 3)
        for epoch, (loss, one) in enumerate(zip(losses, expected)):
            self.assertAlmostEqual(loss, one, delta=TOLERANCE, msg="epoch {}".format(epoch + 1))
        self.assertLess(losses[-1], losses[0] / 2)


if __name__ == "__main__":
    unittest.main()
