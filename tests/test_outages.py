"""Slurm's daemons, munge, nodes and the network fail, in training and at changes of the nodes:
trainings go on, nothing is lost or counted twice, and nothing is left.

Run: python3 tests/test_outages.py (after cargo build --release --workspace)
"""

import shutil
import time
import unittest

from cluster import COUNT, ClusterTest
from nodes import freeze, pids_on, thaw
from proxy import Proxy
from training import FOR_EVER, SPEED, STEERED, TrainingTest


class OutageTest(ClusterTest):
    BFTRAINER_CONF = ["quarantine_s = 5", "quarantine_max_s = 5"]

    def setUp(self):
        super().setUp()
        # The class goes on with all daemons, whatever the test has done to them.
        self.addCleanup(self.cluster.start_missing)

    def growing(self):
        """A trainer that trains on two nodes and is getting two more, whose preludes end
        when the file "go" is there, and its row."""
        regular = self.regular("-N2")
        self.wait_state(regular, "RUNNING")
        script = self.script(
            'echo "$SLURMD_NODENAME" >> preludes\n'
            '[ "$SLURM_ARRAY_TASK_ID" -lt 2 ] || until [ -e go ]; do sleep 0.1; done\n'
            "srun bftrainer run -- {}\n".format(COUNT)
        )
        trainer = self.sbatch("--bftrainer=nodes=1-4,up=1,down=1", script)
        row = self.wait_trains(trainer, 2)
        self.cluster.ok("scancel", regular)
        self.wait_for(
            lambda: len((self.dir / "preludes").read_text().split()) == 4,
            "the preludes of the newcomers run",
        )
        return trainer, row

    def go(self):
        (self.dir / "go").touch()

    def assert_finishes(self, trainer):
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()

    def wait_looks(self, looks):
        """Until the controller has looked at slurmctld so many times more, and told agents."""
        before = self.cluster.bftrainer("show")[0]["slurm_looks"]
        self.wait_for(
            lambda: self.cluster.bftrainer("show")[0]["slurm_looks"] >= before + looks,
            "the controller has looked",
        )

    def save_slurmctld(self):
        """A copy of all that slurmctld knows now."""
        self.wait_saved()
        saved = self.dir / "state"
        self.cluster.ok("cp", "-a", self.cluster.dir / "state", saved)
        return saved

    def turn_slurmctld_back(self, saved):
        """Kills it, and starts it with what it knew then."""
        state = self.cluster.dir / "state"
        self.cluster.kill("slurmctld")
        # Files keep their owner, SlurmUser.
        shutil.rmtree(state)
        self.cluster.ok("cp", "-a", saved, state)
        self.cluster.start_missing()

    def assert_none_drained(self):
        states = self.cluster.node_states()
        drained = [node for node, state in states.items() if "drain" in state]
        self.assertEqual(drained, [], self.cluster.portrait(self.dir))

    def counted(self):
        """Samples in the checkpoint, which needs no controller."""
        return int(next(self.dir.glob(".bftrainer-*/ckpt/samples")).read_text())


class Daemons(OutageTest):
    def test_slurmctld_is_killed_while_a_trainer_grows(self):
        trainer, row = self.growing()
        self.wait_saved()
        self.cluster.kill("slurmctld")
        self.cluster.start_missing()
        self.go()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)

    def test_slurmctld_is_killed_when_it_has_taken_a_node(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        self.wait_saved()
        regular = self.regular("-w", row["node_list"][0])
        self.wait_state(regular, "RUNNING")
        self.cluster.kill("slurmctld")
        self.cluster.start_missing()
        # It may have forgotten the job, which is not ours; then the node is idle again.
        self.wait_trains(trainer, (3, 4), after=row)
        self.assert_finishes(trainer)

    def test_slurmctld_forgets_the_tasks_that_it_has_started(self):
        """As when it is killed before it has written them down: the slurmds still know them,
        and would refuse the same tasks on the same nodes, which Slurm would drain."""
        self.cluster.ok("bftrainer", "admin", "pause")
        self.addCleanup(self.cluster.run, "bftrainer", "admin", "resume")
        trainer = self.counter("1-4")
        self.wait_for(lambda: self.show(trainer), "it is admitted")
        saved = self.save_slurmctld()
        self.cluster.ok("bftrainer", "admin", "resume")
        row = self.wait_trains(trainer, 4)
        self.turn_slurmctld_back(saved)
        self.wait_trains(trainer, 4, after=row)
        self.assert_none_drained()
        self.assert_finishes(trainer)

    def test_slurmctld_forgets_the_task_with_rank_0_and_no_generation_trains_beside_another(self):
        self.cluster.ok("bftrainer", "admin", "exclude", "n1")
        self.addCleanup(self.cluster.run, "bftrainer", "admin", "include", "n1")
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 3)
        saved = self.save_slurmctld()
        self.cluster.ok("bftrainer", "admin", "include", "n1")
        row = self.wait_trains(trainer, 4, after=row)
        starts = (self.dir / "starts.log").read_text().splitlines()
        self.assertIn("{} 0 4 n1".format(row["generation"]), starts)
        self.turn_slurmctld_back(saved)
        row = self.wait_trains(trainer, 3, after=row)
        self.wait_trains(trainer, 4, after=row)
        self.assert_none_drained()
        self.assert_finishes(trainer)

    def test_a_trainer_finishes_while_slurmctld_is_away(self):
        trainer = self.counter("1-6")
        self.wait_trains(trainer, 4)
        self.wait_saved()
        self.cluster.kill("slurmctld")
        self.end()
        verdict = self.dir / ".bftrainer-{}/finished".format(trainer)
        self.wait_for(verdict.exists, "the verdict is recorded")
        self.cluster.start_missing()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()

    def test_munged_is_killed_and_ranks_train_on(self):
        trainer = self.counter("1-4")
        row = first = self.wait_trains(trainer, 4)
        # Nobody can raise limits without munge; fresh workers have a minute.
        self.wait_for(
            lambda: {task["TimeLimit"] for task in self.cluster.tasks(trainer).values()}
            == {"00:30:00"},
            "all workers have their lease",
        )
        self.wait_looks(2)
        self.cluster.kill("munged")
        self.wait_for(
            lambda: "slurmctld can't be asked" in self.cluster.controller_log(),
            "the controller can't ask slurmctld",
        )
        counted = self.counted()
        self.wait_for(lambda: self.counted() > counted + 10, "ranks train on")
        self.cluster.start_missing()
        row = self.wait_more(trainer, 4, row)
        self.assertEqual(self.starts(first), 4, self.cluster.portrait(self.dir))
        self.regular("-w", row["node_list"][1])
        self.wait_trains(trainer, 3, after=row)
        self.assert_finishes(trainer)

    def test_munged_is_killed_while_a_trainer_grows(self):
        trainer, row = self.growing()
        self.cluster.kill("munged")
        self.go()
        self.cluster.start_missing()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)

    def test_the_controller_is_killed_while_a_trainer_grows(self):
        trainer, row = self.growing()
        self.cluster.kill("bftrainerd")
        self.go()
        self.cluster.start_missing()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)

    def test_the_controller_is_killed_while_ranks_stop(self):
        trainer, row = self.growing()
        self.go()
        self.wait_for(
            lambda: self.show(trainer)["state"] == "RESCALING"
            or self.show(trainer)["generation"] > row["generation"],
            "the old generation stops",
        )
        self.cluster.kill("bftrainerd")
        self.cluster.start_missing()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)


class Network(OutageTest):
    """The agents' connections pass through a proxy."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.proxy = Proxy.of(cls.cluster)
        cls.addClassCleanup(cls.proxy.close)

    def setUp(self):
        ClusterTest.setUp(self)
        # Not `start_missing`, which would take the proxy out.
        self.addCleanup(self.proxy.heal)

    def test_closed_connections_are_made_anew_and_disturb_no_rank(self):
        trainer = self.counter("1-4")
        row = first = self.wait_trains(trainer, 4)
        for _ in range(3):
            self.proxy.reset()
            row = self.wait_more(trainer, 4, row)
            self.wait_agents(4)
        self.assertEqual(self.starts(first), 4)
        self.assert_finishes(trainer)

    def test_connections_are_closed_while_a_trainer_grows(self):
        trainer, row = self.growing()
        self.proxy.reset()
        self.go()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)

    def test_a_node_that_is_cut_off_is_replaced_and_comes_back(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        node = row["node_list"][2]
        self.proxy.cut(node)
        row = self.wait_trains(trainer, 3, after=row)
        self.assertNotIn(node, row["node_list"])
        self.wait_for(
            lambda: self.cluster.node_states()[node] == "idle" and not pids_on(self.cluster, node),
            "no rank is left on {}".format(node),
        )
        self.proxy.heal()
        self.wait_trains(trainer, 4, after=row)
        self.assert_finishes(trainer)

    def test_all_are_cut_off_for_long_and_come_back(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        self.proxy.cut()
        self.wait_agents(0)
        self.proxy.heal()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)

    def test_all_are_cut_off_while_a_trainer_grows(self):
        trainer, row = self.growing()
        self.proxy.cut()
        self.go()
        self.wait_agents(0)
        self.proxy.heal()
        self.wait_more(trainer, 4, row)
        self.assert_finishes(trainer)

    def test_a_trainer_that_finishes_while_it_is_cut_off_is_completed_later(self):
        trainer = self.counter("1-6")
        self.wait_trains(trainer, 4)
        self.proxy.cut()
        self.end()
        verdict = self.dir / ".bftrainer-{}/finished".format(trainer)
        self.wait_for(verdict.exists, "the verdict is recorded")
        self.wait_agents(0)
        self.proxy.heal()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()

    def wait_agents(self, count):
        self.wait_for(
            lambda: self.cluster.bftrainer("show")[0]["agents"] == count,
            "{} agents are connected".format(count),
        )


class Nodes(TrainingTest):
    CONF = ["SlurmdTimeout=8"]
    BFTRAINER_CONF = OutageTest.BFTRAINER_CONF

    def setUp(self):
        super().setUp()
        self.addCleanup(self.cluster.start_missing)

    def test_a_node_whose_slurmd_has_died_is_replaced_and_its_old_step_ends(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        node = row["node_list"][1]
        self.cluster.kill("slurmd-" + node)
        self.wait_for(lambda: "down" in self.cluster.node_states()[node], node + " is down")
        row = self.wait_trains(trainer, 3, after=row)
        self.assertNotIn(node, row["node_list"])
        self.wait_for(
            lambda: not pids_on(self.cluster, node), "no process of the old step is left on " + node
        )
        self.cluster.start_missing()
        self.assertIn(node, self.wait_trains(trainer, 4, after=row)["node_list"])
        self.end()
        self.wait_ended(trainer, "COMPLETED")
        self.assert_counted()

    def test_a_frozen_node_that_comes_back_writes_over_nothing(self):
        self.set_epochs(FOR_EVER)
        trainer = self.sbatch(
            "--bftrainer=nodes=1-1,up=1,down=1", self.script(STEERED), *SPEED
        )
        row = self.wait_trains(trainer, 1)
        node = row["node_list"][0]
        frozen = freeze(self.cluster, node)
        self.addCleanup(thaw, frozen)
        row = self.wait_trains(trainer, 1, after=row)
        self.assertNotEqual(row["node_list"][0], node)
        thaw(frozen)
        self.wait_for(
            lambda: not pids_on(self.cluster, node), "no process of the old run is left on " + node
        )
        # It has trained on meanwhile, in the same generation.
        after = self.wait_for(
            lambda: (found := self.trains(trainer, 1))
            and found["samples"] > row["samples"] + 3000
            and found,
            "it trains on",
        )
        self.assertEqual(after["generation"], row["generation"])
        self.wait_for(
            lambda: self.cluster.node_states()[node] == "idle", node + " is idle again"
        )
        # What is restarted reads the number of epochs and goes on from the last checkpoint.
        self.set_epochs(int(after["epoch"]) + 3)
        self.regular("-w", after["node_list"][0], seconds=1)
        self.wait_ended(trainer, "COMPLETED")
        self.assert_same_losses()


class WithoutController(OutageTest):
    NODES = 6
    CONF = [
        "SchedulerParameters=bf_interval=2,bf_resolution=1,batch_sched_delay=0,"
        "sched_min_interval=100000"
    ]
    BFTRAINER_CONF = ["lease_s = 180"]

    def test_past_a_holes_end_and_a_lease_no_task_ends_by_its_limit(self):
        running = self.regular("-N2", "-w", "n[1-2]", "-t", "2")
        self.wait_state(running, "RUNNING")
        planned = self.regular("-N4", "-w", "n[1-4]", "-t", "1", seconds=1)
        self.wait_for(lambda: self.planned_nodes() == ["n3", "n4"], "two nodes have a plan")
        trainer = self.counter("1-6")
        self.wait_trains(trainer, 4)
        # Where a job is planned the limit is the hole's end, rounded up to Slurm's minutes.
        self.wait_for(
            lambda: self.limits(trainer) == {
                "n3": "00:02:00", "n4": "00:02:00", "n5": "00:03:00", "n6": "00:03:00"
            },
            "all have their limits",
        )
        self.cluster.kill("bftrainerd")
        self.wait_for(
            lambda: set(self.cluster.states(trainer).values()) == {"PENDING"},
            "all tasks have left before their limits",
            240,
        )
        for task in self.cluster.tasks(trainer).values():
            self.assertIn(task["Reason"], ("job_requeued_in_held_state", "JobHeldAdmin"))
        self.assertEqual(self.cluster.processes(trainer), [])
        self.wait_for(lambda: self.state_of(running) != "RUNNING", "the first job ends", 120)
        ended_s = time.time()
        self.wait_for(
            (self.dir / "start-{}".format(planned)).exists, "the planned job has started"
        )
        self.assertLess(time.time() - ended_s, 10)
        self.wait_state(planned, "COMPLETED")
        counted = self.counted()
        self.cluster.start_missing()
        self.assertGreater(self.wait_trains(trainer, 6)["samples"], counted)
        self.assert_finishes(trainer)

    def planned_nodes(self):
        rows = self.cluster.bftrainer("nodes")
        return [row["node"] for row in rows if row["hole_end"] is not None]

    def limits(self, trainer):
        """Of the running tasks, by node."""
        tasks = self.cluster.tasks(trainer).values()
        return {
            task["NodeList"]: task["TimeLimit"]
            for task in tasks
            if task["JobState"] == "RUNNING"
        }


if __name__ == "__main__":
    unittest.main()
