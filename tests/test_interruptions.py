"""Daemons and agents are killed, stopped and started again: no trainer is lost.

Run: python3 tests/test_interruptions.py (after cargo build --release --workspace)
"""

import os
import signal
import unittest

from cluster import ROOT, ClusterTest


class WithoutController(ClusterTest):
    def setUp(self):
        super().setUp()
        # The class goes on with a controller, whatever the test has done to it.
        self.addCleanup(self.cluster.start_controller)

    def test_a_killed_controller_finds_its_trainer_training_on(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        self.kill_controller()
        before = self.samples(trainer)
        self.wait_for(lambda: self.samples(trainer) > before + 5, "ranks train on without it")
        self.cluster.start_controller()
        after = self.wait_for(
            lambda: self.trains(trainer, 4), "the controller has found all four nodes"
        )
        self.assertEqual(after["generation"], row["generation"])
        self.assertEqual(after["node_list"], row["node_list"])
        self.assertGreater(after["samples"], before)
        self.assertEqual(self.starts(row), 4)
        self.end()
        self.wait_ended(trainer, "COMPLETED")

    def test_settings_that_slurm_contradicts_are_refused_at_start(self):
        path = self.cluster.dir / "bftrainer.toml"
        good = path.read_text()
        for setting, part in (
            ('exclude_nodes = ["n[1-"]', '"n[1-" is no host list'),
            ('partition = "nowhere"', "partition nowhere: Slurm has none of this name"),
        ):
            with self.subTest(setting):
                name = setting.split(" = ")[0]
                lines = [line for line in good.splitlines() if not line.startswith(name)]
                bad = self.dir / "bad.toml"
                bad.write_text("\n".join([setting, *lines]) + "\n")
                done = self.cluster.run(ROOT / "target/release/bftrainerd", "--config", bad)
                self.assertEqual(done.returncode, 78, done.stderr)
                self.assertIn(part, done.stderr)

    def test_a_state_file_that_is_deleted_is_noticed_and_begun_anew(self):
        (path,) = self.cluster.dir.glob("**/bftrainer.db")
        path.unlink()
        trainer = self.counter("1-4")
        self.wait_trains(trainer, 4)
        self.wait_for(path.exists, "the file is begun anew")
        self.assertIn("deleted or replaced", self.cluster.controller_log())

    def test_a_trainer_that_finishes_without_controller_is_completed_later(self):
        trainer = self.counter("1-6")
        self.wait_trains(trainer, 4)
        self.kill_controller()
        self.end()
        verdict = self.dir / ".bftrainer-{}/finished".format(trainer)
        self.wait_for(verdict.exists, "the verdict is recorded")
        self.cluster.start_controller()
        self.wait_ended(trainer, "COMPLETED")

    def test_a_node_that_is_lost_without_controller_is_missed_when_it_is_back(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        lost = row["node_list"][1]
        self.kill_controller()
        regular = self.regular("-w", lost)
        self.wait_state(regular, "RUNNING")
        self.cluster.start_controller()
        row = self.wait_trains(trainer, 3, after=row)
        self.assertNotIn(lost, row["node_list"])
        self.cluster.ok("scancel", regular)
        self.wait_trains(trainer, 4, after=row)

    def test_a_trainer_that_is_submitted_without_controller_waits_for_it(self):
        self.kill_controller()
        trainer = self.counter("1-4")
        self.assertEqual(set(self.cluster.states(trainer).values()), {"PENDING"})
        self.cluster.start_controller()
        self.wait_trains(trainer, 4)

    def test_a_trainer_that_is_cancelled_without_controller_is_gone(self):
        trainer = self.counter("1-4")
        self.wait_trains(trainer, 4)
        self.kill_controller()
        self.cluster.ok("scancel", trainer)
        self.wait_for(self.cluster.are_idle, "all nodes are idle")
        self.cluster.start_controller()
        self.wait_for(lambda: len(self.cluster.bftrainer("nodes")) == 4, "it has seen Slurm")
        self.assertEqual(self.cluster.bftrainer("queue"), [])

    def test_a_task_that_finds_no_controller_requeues_and_holds_itself(self):
        env = {"BFT_ORPHAN_WAIT_S": "2"}
        trainer = self.counter("1-4", env=env)
        self.wait_trains(trainer, 4)
        self.cluster.ok("scancel", trainer)
        regular = self.regular("-N4")
        self.wait_state(regular, "RUNNING")
        trainer = self.counter("1-4", env=env)
        self.wait_for(lambda: self.show(trainer), "the trainer is known")
        starts = self.starts()
        self.cluster.stop_controller()
        self.cluster.ok("scancel", regular)
        self.wait_for(self.cluster.are_idle, "all nodes are idle")
        task = "{}_0".format(trainer)
        self.cluster.ok("scontrol", "release", task)
        self.wait_for(
            lambda: self.cluster.tasks(trainer)[0]["Restarts"] == "1"
            and self.cluster.tasks(trainer)[0]["JobState"] == "PENDING",
            "the task is requeued",
        )
        self.assertEqual(self.cluster.tasks(trainer)[0]["Reason"], "job_requeued_in_held_state")
        self.assertEqual(self.starts(), starts)
        output = (self.dir / "slurm-{}.out".format(task)).read_text()
        self.assertIn("no controller for 2 s", output)
        self.cluster.start_controller()
        self.wait_trains(trainer, 4)

    def test_a_controller_that_is_stopped_and_started_twice_disturbs_nothing(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        for _ in range(2):
            self.cluster.stop_controller()
            before = self.samples(trainer)
            self.cluster.start_controller()
            self.wait_for(
                lambda: (self.trains(trainer, 4) or {"samples": 0})["samples"] > before,
                "it trains on 4 nodes",
            )
        self.assertEqual(self.show(trainer)["generation"], row["generation"])
        self.assertEqual(self.starts(row), 4)

    # Helpers.

    def kill_controller(self):
        os.kill(self.cluster.pid_of("bftrainerd"), signal.SIGKILL)
        self.wait_for(lambda: self.cluster.bftrainer("queue") is None, "it answers no more")

    def samples(self, trainer):
        """In the checkpoint, which needs no controller."""
        return int((self.dir / ".bftrainer-{}/ckpt/samples".format(trainer)).read_text())


class Killed(ClusterTest):
    def test_a_killed_agent_costs_a_restart_and_no_more(self):
        self.assert_survives_the_kill_of(lambda command: command.startswith("bftrainer task"), -1)

    def test_a_killed_keeper_costs_a_restart_and_no_more(self):
        self.assert_survives_the_kill_of(lambda command: command.startswith("bftrainer task"), 0)

    def test_a_killed_rank_costs_a_restart_and_no_more(self):
        self.assert_survives_the_kill_of(
            lambda command: command.startswith("/bin/bash") and "slurm_script" in command, 0
        )

    def assert_survives_the_kill_of(self, is_meant, which):
        """Kills a process of the second node's worker: the first (0) or last (-1) of those
        that are meant."""
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        node = row["node_list"][1]
        meant = [
            pid
            for pid, command in sorted(self.cluster.processes(trainer))
            if is_meant(command) and self.node_of(pid) == node
        ]
        self.assertTrue(meant, self.cluster.processes(trainer))
        os.kill(meant[which], signal.SIGKILL)
        # That node may be in quarantine afterwards.
        row = self.wait_trains(trainer, (3, 4), after=row)
        self.end()
        self.wait_ended(trainer, "COMPLETED")

    def node_of(self, pid):
        with open("/proc/{}/environ".format(pid), "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"SLURMD_NODENAME="):
                    return entry.split(b"=")[1].decode()
        return None


class SlurmRestarts(ClusterTest):
    def test_a_restarted_slurmctld_finds_the_trainer_training_on(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        self.wait_saved()
        os.kill(self.cluster.pid_of("slurmctld"), signal.SIGKILL)
        self.wait_for(
            lambda: self.cluster.run("scontrol", "ping").returncode != 0, "slurmctld is down"
        )
        self.wait_for(
            lambda: "slurmctld can't be asked" in self.cluster.controller_log(),
            "the controller notices",
        )
        self.cluster.dev_cluster("up")
        self.wait_for(
            lambda: "slurmctld answers again" in self.cluster.controller_log(),
            "the controller sees Slurm again",
        )
        before = self.show(trainer)
        after = self.wait_for(
            lambda: (found := self.trains(trainer, 4))
            and found["samples"] > before["samples"]
            and found,
            "it trains on 4 nodes",
        )
        self.assertEqual(after["generation"], row["generation"])
        # And both still work together.
        self.regular("-w", row["node_list"][0])
        self.wait_trains(trainer, 3, after=row)

    def test_a_restarted_slurmd_does_not_disturb_its_worker(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        os.kill(self.cluster.pid_of("slurmd-n2"), signal.SIGKILL)
        self.cluster.dev_cluster("up")
        before = self.show(trainer)
        after = self.wait_for(
            lambda: (found := self.trains(trainer, 4))
            and found["samples"] > before["samples"] + 5
            and found,
            "it trains on 4 nodes",
        )
        self.assertEqual(after["generation"], row["generation"])
        self.end()
        self.wait_ended(trainer, "COMPLETED")


if __name__ == "__main__":
    unittest.main()
