"""Somebody sets the clock: no trainer is lost, none is told to leave, and decisions come on time.

Run: python3 tests/test_clock.py (after cargo build --release --workspace)
"""

import glob
import unittest

from cluster import ClusterTest

HOUR = "+1h"


def libfaketime():
    """The library that a program with threads is given to see another time."""
    (path,) = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    return path


class SetClock(ClusterTest):
    """Controller, agents and ranks see the time that the file `clock` says; Slurm sees the true one."""

    def setUp(self):
        super().setUp()
        self.clock = self.cluster.folder / "clock"
        self.set_clock("+0")
        self.env = {
            "LD_PRELOAD": libfaketime(),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_NO_CACHE": "1",
            # Who sets the clock does not set the time since the start, nor that of files.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        self.addCleanup(self.cluster.start_controller)
        self.addCleanup(self.cluster.stop_controller)

    def start_controller(self):
        """One that sees the time of `clock`."""
        self.cluster.stop_controller()
        self.cluster.start_controller(self.env)

    def test_a_clock_that_is_set_forward_and_back_loses_and_delays_nothing(self):
        self.start_controller()
        trainer = self.counter("1-4", env=self.env)
        row = self.wait_trains(trainer, 4)
        for offset in (HOUR, "+0"):
            starts = self.starts()
            self.set_clock(offset)
            looks = self.looks()
            self.wait_for(lambda: self.looks() > looks + 10, "the controller looks on")
            after = self.wait_for(
                lambda: self.later(self.trains(trainer, 4), row), "it trains on 4 nodes, and on"
            )
            self.assertEqual(after["generation"], row["generation"])
            self.assertEqual(self.starts(), starts)
            row = self.lend_a_node(trainer, after)
        self.assert_completes(trainer)

    def test_where_all_clocks_but_slurmctlds_are_minutes_off_its_is_gone_by(self):
        # From 300 s on munge does not work, and the daemon does not start.
        for offset, said in (("+200s", "slurmctld's clock is -"), ("-200s", "slurmctld's clock is +")):
            with self.subTest(offset):
                self.set_clock(offset)
                self.start_controller()
                self.assertIn(said, self.cluster.controller_log())
                trainer = self.counter("1-4", env=self.env)
                self.lend_a_node(trainer, self.wait_trains(trainer, 4))
                self.assert_completes(trainer)
                self.clean()
                for name in ("end", "starts.log", "counted.log"):
                    (self.dir / name).unlink()

    # Helpers.

    def set_clock(self, offset):
        """To so much from the true time."""
        new = self.clock.with_suffix(".new")
        new.write_text(offset + "\n")
        new.chmod(0o644)
        new.rename(self.clock)

    def later(self, row, before):
        return row if row and row["samples"] > before["samples"] else None

    def lend_a_node(self, trainer, row):
        """A regular job takes a node and gives it back; the trainer's row then."""
        regular = self.regular("-w", row["node_list"][1])
        self.wait_state(regular, "RUNNING")
        fewer = self.wait_trains(trainer, 3, after=row)
        self.cluster.ok("scancel", regular)
        return self.wait_trains(trainer, 4, after=fewer)

    def assert_completes(self, trainer):
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()
        self.assertNotIn("panicked", self.cluster.controller_log())

    def looks(self):
        return self.cluster.bftrainer("show")[0]["slurm_looks"]


if __name__ == "__main__":
    unittest.main()
