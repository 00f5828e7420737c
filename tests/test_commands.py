"""What users see: queue, nodes, show, why and logs.

Run: python3 tests/test_commands.py (after cargo build --release --workspace)
"""

import json
import os
import pwd
import time
import unittest

from cluster import ClusterTest, free_port, web_json
from flood import Crowd, Flood

QUEUE = (
    "JOBID NAME USER STATE NODES MIN MAX SAMPLES TOTAL EPOCH LOSS RESCALES PREEMPTIONS "
    "NODE_HOURS REASON"
).split()
NODES = "NODE USE JOBID JOINED HOLE_END CLASS REASON".split()
WHY = "TIME JOBID FROM TO REASON".split()
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"


class Commands(ClusterTest):
    """A trainer on three of four nodes, and what is shown of it."""

    def setUp(self):
        super().setUp()
        self.trainer = self.sbatch(
            "--bftrainer=nodes=2-3,samples=90000,up=1,down=1",
            *["-J", "mine"],
            self.script(
                'echo "I am rank $RANK"\n'
                "samples=0\n"
                "while true; do\n"
                "  samples=$((samples + 48))\n"
                '  [ "$RANK" = 0 ] && bftrainer progress --samples $samples --loss 0.25 --epoch 3\n'
                "  sleep 0.2\n"
                "done\n"
            ),
        )
        self.row = self.wait_trains(self.trainer, 3)
        # The fourth node, too, has been given back by the trainer of the test before.
        self.wait_for(
            lambda: self.uses() == ["idle"] + ["training"] * 3, "the fourth node is in the pool"
        )

    def uses(self):
        rows = self.cluster.bftrainer("nodes")
        return rows and sorted(row["use"] for row in rows)

    def test_queue_shows_a_row_for_each_trainer_in_all_its_forms(self):
        lines = self.said("queue").splitlines()
        self.assertEqual(lines[0].split(), QUEUE)
        self.assertEqual(len(lines), 2)
        user = pwd.getpwuid(os.geteuid()).pw_name
        row = [str(self.trainer), "mine", user, "RUNNING", "3", "2", "3"]
        self.assertEqual(lines[1].split()[:7], row)
        self.assertEqual(self.said("queue", "-h").split()[:7], row)

        header, line = self.said("queue", "-P").splitlines()
        self.assertEqual(header.split("|"), QUEUE)
        row = dict(zip(QUEUE, line.split("|")))
        self.assertGreater(int(row["SAMPLES"]), 0)
        found = [row[key] for key in ("TOTAL", "LOSS", "PREEMPTIONS", "REASON")]
        self.assertEqual(found, ["90000", "0.2500", "0", "-"])
        self.assertEqual(float(row["EPOCH"]), 3)
        self.assertRegex(row["NODE_HOURS"], r"^\d+\.\d\d$")
        self.assertEqual(len(self.said("queue", "-h", "-P").splitlines()), 1)

        (row,) = json.loads(self.said("queue", "--json"))
        self.assertEqual((row["jobid"], row["state"]), (self.trainer, "RUNNING"))
        self.assertEqual((row["loss"], row["epoch"], row["total"]), (0.25, 3, 90000))

    def test_nodes_shows_the_pool_and_what_each_node_is_used_for(self):
        header, *lines = self.said("nodes", "-P").splitlines()
        self.assertEqual(header.split("|"), NODES)
        rows = [dict(zip(NODES, line.split("|"))) for line in lines]
        self.assertEqual([row["NODE"] for row in rows], ["n1", "n2", "n3", "n4"])
        uses = sorted((row["USE"], row["JOBID"]) for row in rows)
        self.assertEqual(uses, [("idle", "-")] + [("training", str(self.trainer))] * 3)
        for row in rows:
            self.assertRegex(row["JOINED"], "^" + TIME + "$")
            # A worker may stay as long as the partition's DefaultTime says, once a look has shown it.
            expected_back = "^-$" if row["USE"] == "idle" else "^(-|" + TIME + ")$"
            self.assertRegex(row["HOLE_END"], expected_back)
            self.assertEqual(row["REASON"], "-")
        self.assertEqual(self.said("nodes").splitlines()[0].split(), NODES)
        self.assertEqual(len(self.said("nodes", "-h").splitlines()), 4)
        self.assertEqual(len(json.loads(self.said("nodes", "--json"))), 4)

    def test_show_shows_one_trainer_or_the_totals(self):
        shown = dict(line.split("=", 1) for line in self.said("show", self.trainer).splitlines())
        self.assertEqual(shown["jobid"], str(self.trainer))
        self.assertEqual(shown["specification"], "nodes=2-3,samples=90000,up=1,down=1")
        self.assertEqual(shown["work_dir"], str(self.dir))
        self.assertEqual(json.loads(shown["node_list"]), self.row["node_list"])
        self.assertGreaterEqual(int(shown["generation"]), 1)

        totals = dict(line.split("=", 1) for line in self.said("show").splitlines())
        self.assertEqual((totals["trainers"], totals["pool_nodes"]), ("1", "4"))
        self.assertEqual((totals["agents"], totals["plain_jobs"]), ("3", "0"))
        for key in ("pool_node_s", "harvested_node_s"):
            self.assertGreater(float(totals[key]), 0)

    def test_show_is_parsable_or_says_that_it_has_no_header(self):
        header, line = self.said("show", self.trainer, "-P").splitlines()
        shown = dict(zip(header.split("|"), line.split("|")))
        self.assertEqual(shown["jobid"], str(self.trainer))
        (line,) = self.said("show", "-P", "-h").splitlines()
        self.assertNotIn("trainers", line)
        done = self.cluster.run("bftrainer", "show", "-h")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("no header", done.stderr)

    def test_show_says_so_when_there_is_no_such_trainer(self):
        done = self.cluster.run("bftrainer", "show", "4000000")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "")
        self.assertIn("4000000 is no trainer", done.stderr)

    def test_a_tasks_number_is_refused_with_what_to_write(self):
        task = "{}_0".format(self.trainer)
        for words in (["show", task], ["why", task], ["logs", task], ["set", task, "weight=2"]):
            with self.subTest(words):
                done = self.cluster.run("bftrainer", *words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("'{}'".format(task), done.stderr)
                self.assertIn("expected the number of a trainer's array, as 4711", done.stderr)

    def test_why_shows_the_decisions_and_their_reasons(self):
        header, *lines = self.said("why", self.trainer, "-P").splitlines()
        self.assertEqual(header.split("|"), WHY)
        first = dict(zip(WHY, lines[0].split("|")))
        self.assertRegex(first["TIME"], "^" + TIME + "$")
        self.assertEqual((first["JOBID"], first["FROM"]), (str(self.trainer), "0"))
        lead = "T{}: 0 -> {} nodes".format(self.trainer, first["TO"])
        self.assertTrue(first["REASON"].startswith(lead), first)
        self.assertIn("worth", first["REASON"])
        self.assertEqual(json.loads(self.said("why", "4000000", "--json")), [])
        decisions = json.loads(self.said("why", "--json"))
        self.assertTrue(any(row["jobid"] == self.trainer for row in decisions))

    def test_logs_shows_what_rank_0_has_written_from_any_folder(self):
        logs = self.wait_for(lambda: self.said("logs", self.trainer), "rank 0 has written")
        self.assertEqual(set(logs.splitlines()), {"I am rank 0"})
        self.assertEqual(self.said("logs", "-n", "1", self.trainer), "I am rank 0\n")
        done = self.cluster.run("bftrainer", "logs", "4000000")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank0.log", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can ask as somebody else")
    def test_every_user_may_ask(self):
        self.assertEqual(self.said("queue", "-h", user="nobody").split()[0], str(self.trainer))

    def test_a_flood_of_forged_hints_costs_a_look_a_second_and_delays_no_decision(self):
        looks = self.looks()
        began_s = time.monotonic()
        with Flood(self.cluster.controller_address(), 10_000) as flood:
            regular = self.regular("-N2")
            self.wait_state(regular, "RUNNING")
            row = self.wait_trains(self.trainer, 2, after=self.row)
            self.cluster.ok("scancel", regular)
            self.wait_trains(self.trainer, 3, after=row)
            self.wait_for(lambda: flood.sent > 20_000, "the flood was one")
        taken_s = time.monotonic() - began_s
        self.assertLessEqual(self.looks() - looks, taken_s + 2)

    def test_a_crowd_that_proves_nothing_delays_no_decision_and_keeps_nobody_out(self):
        # More than may be unproven of one host, from which the agents come too.
        size = 1100
        with Crowd(self.cluster.controller_address(), size) as crowd:
            self.wait_for(lambda: crowd.opened > size, "the crowd is there and is thinned out")
            row = self.wait_more(self.trainer, 3, self.row)
            regular = self.regular("-N2")
            self.wait_state(regular, "RUNNING")
            row = self.wait_trains(self.trainer, 2, after=row)
            self.assertEqual(self.said("queue", "-h").split()[0], str(self.trainer))
            self.cluster.ok("scancel", regular)
            self.wait_trains(self.trainer, 3, after=row)
            opened = crowd.opened
            self.wait_for(lambda: crowd.opened > opened, "the crowd is still there")
            taken_s = time.monotonic() - crowd.began_s
        lines = self.cluster.controller_log().count("the oldest gives way")
        self.assertGreaterEqual(lines, 1)
        self.assertLessEqual(lines, 1 + taken_s / 60)

    def test_the_commands_say_so_when_there_is_no_controller(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        for command in (["queue"], ["nodes"], ["show"], ["why"]):
            with self.subTest(command):
                done = self.cluster.run("bftrainer", *command)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stdout, "")
                self.assertRegex(done.stderr, "^bftrainer: .*127.0.0.1")

    # Helpers.

    def said(self, *command, user=None):
        return self.cluster.ok("bftrainer", *command, cwd=self.dir, user=user)

    def looks(self):
        return self.cluster.bftrainer("show")[0]["slurm_looks"]


@unittest.skipUnless(os.geteuid() == 0, "only root can ask as somebody else")
class Private(ClusterTest):
    CONF = ["PrivateData=jobs,nodes"]
    PORT = free_port()
    BFTRAINER_CONF = ['http = "127.0.0.1:{}"'.format(PORT)]

    def test_users_see_only_their_own_trainers_and_operators_all(self):
        trainer = self.counter("1-2")
        self.wait_trains(trainer, 2)
        asked = {}
        for command in (["queue", "-h"], ["why", "-h"], ["nodes", "-h"], ["show", trainer]):
            asked[command[0]] = self.cluster.run("bftrainer", *command, user="nobody")
        for command in ("queue", "why"):
            self.assertEqual((asked[command].returncode, asked[command].stdout), (0, ""))
        for command, part in (("show", "is no trainer"), ("nodes", "PrivateData=nodes")):
            self.assertEqual((asked[command].returncode, asked[command].stdout), (1, ""))
            self.assertIn(part, asked[command].stderr)
        for operator in (None, "slurm"):
            for command in (["queue", "-h"], ["why", "-h"], ["show", trainer], ["nodes", "-h"]):
                done = self.cluster.run("bftrainer", *command, user=operator)
                self.assertIn(str(trainer), done.stdout, (operator, command, done.stderr))
        self.assertIsNone(web_json(self.PORT, "/state.json")["nodes"])
        for user, are_hidden in (("nobody", True), ("slurm", False)):
            done = self.cluster.run("bftrainer", "show", "--json", user=user)
            [totals] = json.loads(done.stdout)
            names = [totals["excluded_nodes"], totals["preempted"]]
            self.assertEqual([name is None for name in names], [are_hidden] * 2)


if __name__ == "__main__":
    unittest.main()
