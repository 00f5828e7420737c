"""Programs that are slow, stubborn, or break: no other training, job or node suffers.

Run: python3 tests/test_programs.py (after cargo build --release --workspace)
"""

import os
import pathlib
import time
import unittest

from cluster import COUNT, KILL_WAIT_S, ClusterTest

SPECIFICATION = "--bftrainer=nodes=1-4,up=1,down=1"


class ProgramTest(ClusterTest):
    def train(self, text, name="script.sh"):
        """Submits a trainer whose script begins with `text` and then counts."""
        return self.sbatch(SPECIFICATION, self.script(text + COUNT.read_text(), name))

    def train_after(self, prelude):
        """Submits a trainer that counts after a prelude of its own."""
        text = "{}\nsrun bftrainer run -- {}\n".format(prelude, COUNT)
        return self.sbatch(SPECIFICATION, self.script(text))

    def assert_finishes(self, trainer):
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()

    def quarantined(self):
        rows = self.cluster.bftrainer("nodes")
        return [row["node"] for row in rows if row["use"] == "quarantine"]

    def wait_quick_start(self, regular, submitted_s):
        """Until the regular job has started, which it must in time."""
        start = self.dir / "start-{}".format(regular)
        started_s = self.wait_for(
            lambda: start.exists() and start.read_text(), "the regular job has started"
        )
        self.assertLess(float(started_s) - submitted_s, KILL_WAIT_S + 3)


class Preludes(ProgramTest):
    BFTRAINER_CONF = ["worker_start_timeout_s = 10", "quarantine_s = 600"]

    def test_a_newcomer_that_never_gets_ready_is_given_up(self):
        trainer = self.train_after('[ "$SLURM_ARRAY_TASK_ID" != 3 ] || sleep 1000')
        row = self.wait_trains(trainer, 3)
        bad = self.wait_for(self.quarantined, "the silent worker's node is left alone")
        self.assertEqual(len(bad), 1)
        self.assertNotIn(bad[0], row["node_list"])
        self.wait_for(self.is_idle(bad[0]), "nothing runs there any more")
        self.assertIsNotNone(self.trains(trainer, 3))
        self.assert_finishes(trainer)

    def is_idle(self, node):
        return lambda: self.cluster.node_states()[node] == "idle"


class Changes(ProgramTest):
    BFTRAINER_CONF = ["grace_s = 3", "quarantine_s = 600"]

    def growing(self, text):
        """A trainer on two nodes that is about to get two more, and its row."""
        regular = self.regular("-N2", "-w", "n[1-2]")
        self.wait_state(regular, "RUNNING")
        trainer = self.train(text)
        row = self.wait_trains(trainer, 2)
        self.cluster.ok("scancel", regular)
        return trainer, row

    def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(self):
        trainer, row = self.growing("trap '' TERM\n")
        self.wait_trains(trainer, 4, after=row)
        self.assertEqual(self.quarantined(), [])
        self.assert_finishes(trainer)

    def test_a_node_is_taken_from_a_prelude(self):
        prelude = '[ "$SLURMD_NODENAME" != n4 ] || {{ {}; }}'.format(
            "touch copying; cat /dev/zero > /dev/null"
        )
        trainer = self.train_after(prelude)
        self.wait_for((self.dir / "copying").exists, "the prelude runs on n4")
        submitted_s = time.time()
        regular = self.regular("-w", "n4")
        self.wait_quick_start(regular, submitted_s)
        row = self.wait_trains(trainer, 3)
        self.assertNotIn("n4", row["node_list"])
        self.assert_finishes(trainer)

    def test_a_member_is_lost_while_ranks_stop(self):
        # The last rank takes its time, so that all are waiting for it.
        text = "[ $RANK != 1 ] || trap 'touch stopping; sleep 2; exit 143' TERM\n"
        trainer, row = self.growing(text)
        self.wait_for((self.dir / "stopping").exists, "the ranks are being stopped")
        self.regular("-w", row["node_list"][0])
        row = self.wait_trains(trainer, 3, after=row)
        self.assertEqual(self.quarantined(), [])
        self.assert_finishes(trainer)

    def test_a_worker_is_lost_before_the_first_start(self):
        prelude = 'touch "here-$SLURMD_NODENAME"; until [ -e go ]; do sleep 0.1; done'
        trainer = self.train_after(prelude)
        self.wait_for(
            lambda: len(list(self.dir.glob("here-*"))) >= 1, "a first worker has been placed"
        )
        node = next(self.dir.glob("here-*")).name.split("-")[1]
        regular = self.regular("-w", node)
        self.wait_state(regular, "RUNNING")
        (self.dir / "go").touch()
        row = self.wait_trains(trainer, 3)
        self.assertNotIn(node, row["node_list"])
        self.assert_finishes(trainer)

    def test_survivors_that_fail_when_a_peer_vanishes_are_not_to_blame(self):
        # As with a collective: each rank ends with 1 as soon as one of its peers is gone.
        text = """
        echo $$ > "pid-$BFT_GENERATION-$RANK"
        (
            until [ "$(ls pid-$BFT_GENERATION-* | wc -l)" = "$WORLD_SIZE" ]; do sleep 0.05; done
            while kill -0 $(cat pid-$BFT_GENERATION-*) 2> /dev/null; do sleep 0.05; done
            kill -USR1 $$
        ) &
        trap 'exit 1' USR1
        """
        trainer = self.train(text)
        row = self.wait_trains(trainer, 4)
        for taken in (1, 2):
            self.regular("-w", row["node_list"][0])
            row = self.wait_trains(trainer, 4 - taken, after=row)
        self.assertEqual(self.quarantined(), [])
        self.assert_finishes(trainer)

    def test_ranks_that_exit_143_by_themselves_have_not_failed(self):
        text = '[ "$BFT_GENERATION" -gt 2 ] || { sleep 1; exit 143; }\n'
        trainer = self.train(text)
        self.wait_trains(trainer, 4)
        self.assertEqual(self.quarantined(), [])
        self.assert_finishes(trainer)

    def test_what_ranks_have_left_running_ends_with_their_generation(self):
        # A child, one in a session of its own, and one that has dropped its environment too.
        text = """
        mark=$((BFT_GENERATION * 1000 + RANK))
        sleep 7000.$mark &
        setsid sleep 7000.$mark &
        (setsid env -i /bin/sleep 7000.$mark &)
        """
        trainer, row = self.growing(text)
        self.wait_for(lambda: len(sleepers(1)) == 6, "all of the first ones run")
        row = self.wait_trains(trainer, 4, after=row)
        self.assertEqual(sleepers(1), [])
        self.wait_for(lambda: len(sleepers(row["generation"])) == 12, "all of the new ones run")
        self.regular("-w", row["node_list"][3])
        later = self.wait_trains(trainer, 3, after=row)
        self.wait_for(lambda: not sleepers(row["generation"]), "all of the old ones are gone")
        self.wait_for(lambda: len(sleepers(later["generation"])) == 9, "the last ones run")
        self.cluster.ok("scancel", trainer)
        self.wait_for(lambda: not sleepers(later["generation"]), "nothing is left")


def sleepers(generation):
    """The pids of what the ranks of a generation have left running."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[1].startswith(b"7000."):
            mark = int(words[1].split(b".")[1])
            if mark // 1000 == generation and os.path.basename(words[0]) == b"sleep":
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    unittest.main()
