"""What is broken at a site: the plugin, its line, the agent, a prolog, the disk. Trainers wait or
train elsewhere and go on once it is mended; regular jobs notice nothing.

Run: python3 tests/test_faults.py (after cargo build --release --workspace)
"""

import os
import pathlib
import pwd
import re
import subprocess
import tempfile
import time
import unittest

from cluster import ClusterTest
from nodes import node_of

QUICK_S = 60.0  # On a busy machine; a hook that waits for a name or a host would take minutes.


class FaultTest(ClusterTest):
    def assert_regular_jobs_are_well(self):
        """A regular job starts, succeeds, sees no line of ours, and drains nothing."""
        began_s = time.time()
        job = self.sbatch("--exclusive", "-N2", "-o", "regular-%j.out", "--wrap", "srun echo fine")
        self.wait_state(job, "COMPLETED")
        self.assertLess(time.time() - began_s, QUICK_S)
        said = (self.dir / "regular-{}.out".format(job)).read_text()
        # Slurm itself tells of a plugin that it can't load.
        said = [line for line in said.splitlines() if not line.startswith("srun: error:")]
        self.assertEqual(said, ["fine", "fine"])
        self.assertFalse([state for state in self.cluster.node_states().values() if "drain" in state])

    def assert_ends(self, trainer):
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()


class Plugin(FaultTest):
    NODES = 3
    BFTRAINER_CONF = ["place_timeout_s = 5", "quarantine_s = 5", "quarantine_max_s = 10"]

    def setUp(self):
        super().setUp()
        self.plugstack = self.cluster.dir / "plugstack.conf.d/bftrainer.conf"
        line = self.plugstack.read_text()
        self.words = line.split()
        self.addCleanup(self.plugstack.write_text, line)

    def write_plugstack(self, *words):
        self.plugstack.write_text(" ".join(words) + "\n")

    def with_argument(self, key, value):
        """plugstack.conf's line with another value."""
        return [
            "{}={}".format(key, value) if word.startswith(key + "=") else word
            for word in self.words
        ]

    def test_without_the_agent_no_script_runs_and_nodes_are_left_alone_for_a_while(self):
        missing = str(self.dir / "no-such-agent")
        self.write_plugstack(*self.with_argument("agent", missing))
        trainer = self.counter("1-3")
        self.wait_for(
            lambda: "before its agent had joined" in self.reason(trainer),
            "the trainer's reason tells of the missing agent",
        )
        self.assert_regular_jobs_are_well()
        said = "\n".join(path.read_text() for path in self.dir.glob("slurm-*.out"))
        self.assertIn("the agent {} can't be run on this node".format(missing), said)
        self.assertFalse((self.dir / "starts.log").exists())
        self.write_plugstack(*self.words)
        self.wait_trains(trainer, 3)
        self.assert_ends(trainer)

    def test_a_trainer_whose_output_cannot_be_written_is_paused_and_says_why(self):
        trainer = self.counter("1-3", "-o", str(self.dir / "no-such-folder/%A-%a.out"))
        sentence = r"before its agent had joined.* \(\d+ times in a row; tried again after \d+ s\)"
        self.wait_for(
            lambda: re.search(sentence, self.reason(trainer)),
            "the trainer's reason tells of tasks that fail wherever they start",
        )
        self.assert_regular_jobs_are_well()
        (self.dir / "no-such-folder").mkdir()
        self.wait_trains(trainer, 3)
        self.assert_ends(trainer)

    def test_agents_do_not_believe_a_controller_of_another_user(self):
        stranger = pwd.getpwnam("nobody").pw_uid
        self.write_plugstack(*self.words, "controller_uid={}".format(stranger), "orphan_wait_s=2")
        trainer = self.counter("1-3")
        refusal = "not as the controller's uid {}: not trusted".format(stranger)
        self.wait_for(
            lambda: refusal in "".join(path.read_text() for path in self.dir.glob("slurm-*.out")),
            "an agent says why it does not join",
        )
        self.assert_regular_jobs_are_well()
        self.assertFalse((self.dir / "starts.log").exists())
        self.write_plugstack(*self.words)
        self.wait_trains(trainer, 3)
        self.assert_ends(trainer)

    def test_a_plugin_that_is_gone_or_damaged_harms_no_regular_job(self):
        trainer = self.counter("1-3")
        row = self.wait_trains(trainer, 3)
        damaged = self.dir / "spank_bftrainer.so"
        damaged.write_text("no library")
        gone = str(self.dir / "spank_gone.so")
        for plugin in (gone, str(damaged)):
            self.write_plugstack(self.words[0], plugin, *self.words[2:])
            self.assert_regular_jobs_are_well()
        self.write_plugstack(*self.words)
        self.wait_trains(trainer, 3, after=row)
        self.assert_ends(trainer)

    def test_a_controller_that_has_no_address_holds_no_job_up(self):
        trainer = self.counter("1-3")
        row = self.wait_trains(trainer, 3)
        for controller in ("no-such-host.invalid:6820", "192.0.2.1:6820", "nonsense", ""):
            self.write_plugstack(*self.with_argument("controller", controller))
            self.assert_regular_jobs_are_well()
        self.write_plugstack(*self.words)
        self.wait_trains(trainer, 3, after=row)
        self.assert_ends(trainer)


@unittest.skipUnless(os.geteuid() == 0, "only root can be two users")
class Users(FaultTest):
    NODES = 2

    def test_nobody_joins_another_users_trainer_nor_touches_its_files(self):
        trainer = self.counter("1-2")
        row = self.wait_trains(trainer, 2)
        # All that the agent on n1 knows, in another user's hands.
        agents = [
            pid
            for pid, command in self.cluster.processes(trainer)
            if command.startswith("bftrainer task") and node_of(pid) == "n1"
        ]
        known = pathlib.Path("/proc/{}/environ".format(agents[0])).read_bytes().split(b"\0")
        env = dict(entry.decode().split("=", 1) for entry in known if b"=" in entry)
        outsider = {"user": "nobody", "cwd": self.dir, "env": env}
        ids = [str(number) for number in pwd.getpwnam("nobody")[2:4]]
        said = self.dir / "outsider.out"
        with open(said, "wb") as out:
            agent = subprocess.Popen(
                ["setpriv", "--reuid", ids[0], "--regid", ids[1], "--clear-groups"]
                + ["bftrainer", "task", "--tagged", "--", "true"],
                env={**self.cluster.env, **env}, cwd=self.dir, stdout=out, stderr=out,
            )
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        self.wait_for(
            lambda: "belongs to another user" in said.read_text(), "the other user is refused"
        )
        # No program fails because its progress can't be told.
        self.cluster.ok("bftrainer", "progress", "--samples", "1000000", **outsider)
        done = self.cluster.run("bftrainer", "set", trainer, "weight=9", **outsider)
        self.assertNotEqual(done.returncode, 0)
        control = self.dir / ".bftrainer-{}".format(trainer)
        for name in control.iterdir():
            self.assertNotEqual(self.cluster.run("cat", name, **outsider).returncode, 0, name)
        after = self.show(trainer)
        self.assertEqual(after["generation"], row["generation"])
        self.assertLess(after["samples"], 1000000)
        self.assert_ends(trainer)


class Prolog(FaultTest):
    NODES = 3
    BFTRAINER_CONF = ["quarantine_s = 5"]

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="bft-prolog-")
        cls.addClassCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        cls.broken = pathlib.Path(folder.name, "broken")
        prolog = pathlib.Path(folder.name, "prolog")
        prolog.write_text('#!/bin/sh\n! grep -qx "$SLURMD_NODENAME" {} 2>/dev/null\n'.format(cls.broken))
        prolog.chmod(0o755)
        cls.CONF = ["Prolog={}".format(prolog)]
        super().setUpClass()

    def test_where_the_prolog_fails_nothing_trains_until_an_administrator_has_mended_it(self):
        self.broken.write_text("n2\n")
        trainer = self.counter("1-3")
        row = self.wait_trains(trainer, 2)
        self.assertEqual(sorted(row["node_list"]), ["n1", "n3"])
        # The site's prolog has drained its node, as it does for every job.
        self.wait_for(lambda: "drain" in self.cluster.node_states()["n2"], "n2 is drained")
        self.assertNotIn("drain", "".join(self.cluster.node_states()[n] for n in ("n1", "n3")))
        self.broken.unlink()
        self.cluster.ok("scontrol", "update", "NodeName=n2", "State=RESUME")
        self.wait_trains(trainer, 3, after=row)
        self.assert_ends(trainer)


@unittest.skipUnless(os.geteuid() == 0, "only root can mount a small disk")
class Disk(FaultTest):
    NODES = 3

    def test_a_full_disk_under_the_state_directory_stops_no_training(self):
        trainer = self.counter("1-2")
        row = self.wait_trains(trainer, 2)
        state = self.cluster.dir / "state-bftrainer"
        self.cluster.stop_controller()
        owner = state.stat()
        options = "size=4m,mode=700,uid={},gid={}".format(owner.st_uid, owner.st_gid)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", state], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", state], check=True)
        self.addCleanup(self.cluster.stop_controller)
        self.cluster.start_controller()
        row = self.wait_trains(trainer, 2, after={**row, "generation": row["generation"] - 1})
        self.fill(state)
        regular = self.regular("-w", row["node_list"][0])
        self.wait_state(regular, "RUNNING")
        row = self.wait_trains(trainer, 2, after=row)
        self.assertEqual(self.cluster.controller_log().count("panicked"), 0)
        self.assertIn("the state file can't be written", self.cluster.controller_log())
        # Nor does a daemon that finds it full at its start, and no state file.
        self.cluster.stop_controller()
        for path in state.glob("bftrainer.db*"):
            path.unlink()
        self.fill(state)
        said = len(self.cluster.controller_log())
        self.cluster.ok("scancel", regular)
        self.cluster.start_controller()
        row = self.wait_trains(trainer, 2, after={**row, "generation": row["generation"] - 1})
        self.assertIn("the state file can't be written", self.cluster.controller_log()[said:])
        (state / "filler").unlink()
        self.wait_for(
            lambda: "the state file can be written again" in self.cluster.controller_log()[said:],
            "history is kept again",
        )
        self.assert_ends(trainer)

    def fill(self, folder):
        with self.assertRaises(OSError), open(folder / "filler", "ab", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass


if __name__ == "__main__":
    unittest.main()
