"""Administrators' commands, reload, history, privacy, and what systemd is told.

Run: python3 tests/test_admin.py (after cargo build --release --workspace)
"""

import json
import os
import signal
import socket
import unittest
import urllib.request

from cluster import ClusterTest, free_port, web_json


class Orders(ClusterTest):
    def admin(self, *words):
        return self.cluster.ok("bftrainer", "admin", *words)

    def clean(self):
        self.admin("resume")
        super().clean()

    def mode(self):
        totals = self.cluster.bftrainer("show")
        return totals and totals[0]["mode"]

    def test_a_pause_takes_no_idle_node_and_outlives_the_daemon(self):
        first = self.counter("1-2")
        row = self.wait_trains(first, 2)
        self.assertIn("paused", self.admin("pause"))
        second = self.counter("3-4")
        self.wait_for(lambda: self.show(second), "the second trainer is known")
        self.wait_for(
            lambda: "paused" in self.reason(second), "it is said why it waits"
        )
        self.wait_for(lambda: len(self.cluster.bftrainer("nodes")) == 2, "idle nodes are left")
        self.cluster.stop_controller()
        self.cluster.start_controller()
        self.wait_for(lambda: self.mode() == "paused", "it is paused after a restart")
        still = self.wait_trains(first, 2)
        self.assertEqual(sorted(still["node_list"]), sorted(row["node_list"]))
        self.assertEqual(self.show(second)["nodes"], 0)
        self.cluster.ok("scancel", first)
        self.wait_for(self.cluster.are_idle, "the first trainer has left")
        self.wait_for(lambda: self.cluster.bftrainer("nodes") == [], "its nodes are left alone")
        self.admin("resume")
        self.wait_trains(second, 4)

    def test_a_drain_gives_all_nodes_back_and_keeps_the_trainers(self):
        trainer = self.counter("1-3")
        row = self.wait_trains(trainer, 3)
        self.admin("drain")
        self.wait_for(self.cluster.are_idle, "all nodes are idle")
        self.wait_for(lambda: self.cluster.bftrainer("nodes") == [], "the pool is empty")
        drained = self.show(trainer)
        self.assertEqual((drained["state"], drained["nodes"]), ("PENDING", 0))
        self.assertIn("drained", drained["reason"])
        self.admin("resume")
        self.wait_trains(trainer, 3, after=row)

    def test_excluded_nodes_are_given_back_and_left_alone_until_they_are_included(self):
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)
        self.addCleanup(self.cluster.run, "bftrainer", "admin", "include", "n[1-2]")
        self.admin("exclude", "n[1-2]", "--reason", "fan")
        fewer = self.wait_trains(trainer, 2, after=row)
        self.assertEqual(sorted(fewer["node_list"]), ["n3", "n4"])
        excluded = self.cluster.bftrainer("show")[0]["excluded_nodes"]
        self.assertEqual(excluded, {"n1": "fan", "n2": "fan"})
        self.admin("include", "n[1-2]")
        self.wait_trains(trainer, 4, after=fewer)

    def test_what_makes_no_sense_is_refused_with_a_sentence(self):
        for words, part in (
            (["exclude", "n9"], "n9 is not in partition bftrainer"),
            (["exclude", ""], "expected a host list"),
            (["include", "n1"], "n1 was not excluded by command"),
        ):
            with self.subTest(words):
                done = self.cluster.run("bftrainer", "admin", *words)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(part, done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can command as somebody else")
    def test_slurm_user_may_command_and_other_users_may_not(self):
        self.cluster.ok("bftrainer", "admin", "resume", user="slurm")
        for words in (["pause"], ["drain"], ["exclude", "n1"], ["include", "n1"], ["reload"]):
            done = self.cluster.run("bftrainer", "admin", *words, user="nobody")
            self.assertEqual(done.returncode, 1)
            self.assertIn("only root and SlurmUser", done.stderr)
        self.assertEqual(self.mode(), "running")

    def test_a_reload_takes_the_new_configuration_and_keeps_the_old_one_when_it_is_wrong(self):
        path = self.cluster.dir / "bftrainer.toml"
        good = path.read_text()
        self.addCleanup(self.admin, "reload")
        self.addCleanup(path.write_text, good)
        trainer = self.counter("1-4")
        row = self.wait_trains(trainer, 4)

        path.write_text(good + 'exclude_nodes = ["n4"]\npoll_intervall_s = 1\n')
        done = self.cluster.run("bftrainer", "admin", "reload")
        self.assertEqual(done.returncode, 1)
        self.assertIn('unknown setting "poll_intervall_s"', done.stderr)
        os.kill(self.cluster.pid_of("bftrainerd"), signal.SIGHUP)
        self.wait_for(
            lambda: "the old configuration stays" in self.cluster.controller_log(),
            "the daemon says the same when it is told by signal",
        )
        path.write_text(good)
        self.assertEqual(self.show(trainer)["generation"], row["generation"])

        path.write_text(good + 'exclude_nodes = ["n4"]\nheartbeat_s = 5\n')
        os.kill(self.cluster.pid_of("bftrainerd"), signal.SIGHUP)
        fewer = self.wait_trains(trainer, 3, after=row)
        self.assertNotIn("n4", fewer["node_list"])
        self.assertIn("except heartbeat_s, which need", self.cluster.controller_log())
        path.write_text(good)
        self.assertIn("is in force", self.admin("reload"))
        row = self.wait_trains(trainer, 4, after=fewer)

        path.write_text(good + "max_nodes_per_user = { default = 2 }\n")
        self.admin("reload")
        fewer = self.wait_trains(trainer, 2, after=row)
        path.write_text(good)
        self.admin("reload")
        self.wait_trains(trainer, 4, after=fewer)

    def test_history_shows_node_hours_by_day_user_and_account(self):
        self.wait_trains(self.counter("1-4"), 4)
        # A daemon that ends keeps what it has counted.
        self.cluster.stop_controller()
        self.cluster.start_controller()
        rows = self.wait_for(lambda: self.cluster.bftrainer("history"), "there is a history")
        self.assertEqual(set(rows[0]), {"day", "user", "account", "harvested_node_s"})
        self.assertGreater(rows[0]["harvested_node_s"], 0)
        header, line = self.cluster.ok("bftrainer", "history", "-P", "--days", "1").splitlines()
        self.assertEqual(header, "DAY|USER|ACCOUNT|NODE_HOURS")
        self.assertRegex(line, r"^\d{4}-\d\d-\d\d\|[^|]+\|[^|]*\|\d+\.\d\d$")
        self.assertEqual(self.cluster.bftrainer("history", "--days", "0"), [])

    def test_systemd_is_told_of_start_life_reload_and_end(self):
        self.addCleanup(self.cluster.start_controller)
        self.cluster.stop_controller()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            path = str(self.dir / "notify")
            listener.bind(path)
            os.chmod(path, 0o777)
            listener.settimeout(60)
            daemon = self.cluster.foreground(
                "bftrainerd", NOTIFY_SOCKET=path, WATCHDOG_USEC="3000000"
            )
            self.addCleanup(daemon.wait)
            self.addCleanup(daemon.kill)
            heard = ""

            def wait_told(word):
                nonlocal heard
                while word not in heard.splitlines():
                    heard += listener.recv(4096).decode()
                heard = ""

            wait_told("READY=1")
            wait_told("WATCHDOG=1")
            wait_told("WATCHDOG=1")
            daemon.send_signal(signal.SIGHUP)
            wait_told("RELOADING=1")
            wait_told("READY=1")
            daemon.terminate()
            wait_told("STOPPING=1")
            self.assertEqual(daemon.wait(60), 0)


@unittest.skipUnless(os.geteuid() == 0, "only root can ask as somebody else")
class Privacy(ClusterTest):
    CONF = ["PrivateData=jobs,usage"]
    PORT = free_port()
    BFTRAINER_CONF = ['http = "127.0.0.1:{}"'.format(PORT)]

    def test_private_data_hides_other_users_trainers_and_usage(self):
        trainer = self.counter("1-4")
        self.wait_trains(trainer, 4)
        for user, count in (("nobody", 0), ("slurm", 1), (None, 1)):
            with self.subTest(user):
                self.assertEqual(len(self.rows("queue", user)), count)
                self.assertEqual(len(self.rows("show", user, str(trainer))), count)
                self.assertEqual(bool(self.rows("why", user)), bool(count))
                nodes = self.rows("nodes", user)
                jobs = {row["jobid"] for row in nodes}
                self.assertEqual((len(nodes), jobs), (4, {trainer if count else None}))
        self.assert_page_has_no_names(trainer)
        self.cluster.stop_controller()
        self.cluster.start_controller()
        self.wait_for(lambda: self.rows("history", None), "there is a history")
        self.assertEqual(self.rows("history", "nobody"), [])
        [day] = web_json(self.PORT, "/harvest.json")
        self.assertEqual(set(day), {"day", "harvested_node_s"})
        self.assertGreater(day["harvested_node_s"], 0)

    def assert_page_has_no_names(self, trainer):
        """Any user of the host may look at it."""
        state = web_json(self.PORT, "/state.json")
        [row] = state["trainers"]
        self.assertEqual((row["jobid"], row["nodes"]), (trainer, 4))
        self.assertLessEqual({"samples", "curve", "harvested_node_s"}, set(row))
        hidden = {"name", "user", "account", "reason", "why", "specification", "node_list"}
        self.assertEqual(hidden & set(row), set())
        self.assertEqual({node["jobid"] for node in state["nodes"]}, {None})
        keys = {key for decision in state["decisions"] for key in decision}
        self.assertEqual(keys, {"time", "jobid", "from", "to"})
        with urllib.request.urlopen("http://127.0.0.1:{}/metrics".format(self.PORT)) as answer:
            self.assertIn('user=""', answer.read().decode())

    def rows(self, command, user, *words):
        done = self.cluster.run("bftrainer", command, *words, "--json", user=user)
        return json.loads(done.stdout) if done.returncode == 0 else []


if __name__ == "__main__":
    unittest.main()
