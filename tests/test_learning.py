"""How trainers scale is learned from their progress, and known when they come again.

Run: python3 tests/test_learning.py (after cargo build --release --workspace)
"""

import time
import unittest

from cluster import ROOT, ClusterTest

SCALING = ROOT / "tests/scaling.py"
PER_S = 200.0
PROFILE_S = 400.0  # No trainer is profiled for longer.


class Learning(ClusterTest):
    BFTRAINER_CONF = ("learn = true",)

    def test_curves_are_learned_and_known_to_the_next_submission(self):
        """Two programs compete for four nodes: one scales well, the other hardly."""
        exponents = {"good": 0.95, "bad": 0.2}
        trainers = {name: self.submit(name, exponents[name]) for name in exponents}
        began = time.monotonic()
        for name, trainer in trainers.items():
            self.wait_for(
                lambda trainer=trainer: self.is_profiled(trainer),
                "T{} is profiled".format(trainer),
                PROFILE_S + 100.0,
            )
        self.assertLess(time.monotonic() - began, PROFILE_S + 60.0)
        for name, trainer in trainers.items():
            self.assert_learned(trainer, exponents[name])
            reasons = [row["reason"] for row in self.cluster.bftrainer("why", trainer)]
            self.assertTrue(any("it is measured for 30 s" in reason for reason in reasons), reasons)
        self.wait_trains(trainers["good"], 3)

        # Kept by the daemon's successor, and used for the same script of the same user.
        for trainer in trainers.values():
            self.cluster.ok("scancel", trainer)
            self.wait_ended(trainer, "CANCELLED")
        self.cluster.stop_controller()
        self.cluster.start_controller()
        again = {name: self.submit(name, exponents[name]) for name in exponents}
        row = self.wait_trains(again["good"], 3)
        self.assertIsNone(row["profiled_at"])
        for name, trainer in again.items():
            self.assert_learned(trainer, exponents[name])

    def submit(self, name, exponent):
        text = 'export PYTHONPATH="{}/scripts"\nexec python3 "{}" "$@"\n'.format(ROOT, SCALING)
        script = self.script(text, name + ".sh")
        return self.sbatch("--bftrainer=nodes=1-4,up=1,down=1", script, PER_S, exponent)

    def is_profiled(self, trainer):
        """Its row once it has trained on two counts and is not being profiled any more."""
        row = self.show(trainer)
        if row and row["profiled_at"] is None and len(row["measured"]) >= 2:
            return row
        return None

    def assert_learned(self, trainer, exponent):
        row = self.show(trainer)
        known = {nodes: rate for nodes, rate, seconds in row["measured"] if seconds >= 20}
        self.assertGreaterEqual(len(known), 2, row)
        curve = dict(map(tuple, row["curve"]))
        for nodes, rate in known.items():
            expected = PER_S * nodes**exponent
            self.assertAlmostEqual(rate / expected, 1.0, delta=0.1, msg=row)
            self.assertAlmostEqual(curve[nodes] / expected, 1.0, delta=0.1, msg=row)


if __name__ == "__main__":
    unittest.main()
