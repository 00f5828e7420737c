"""What bftrainerd tells Prometheus, and that dashboard and alerts speak of nothing else.

Run: python3 tests/test_metrics.py (after cargo build --release --workspace)
"""

import http.client
import json
import re
import socket
import unittest

import yaml

from cluster import ROOT, ClusterTest, free_port

NAME = re.compile(r"bftrainer_[a-z_]+")
SAMPLE = re.compile(r'^([a-z_]+)(\{(?:[a-z_]+="[^"\n]*",?)*\})? (\S+)$')


class Metrics(ClusterTest):
    PORT = free_port()
    BFTRAINER_CONF = ['http = "127.0.0.1:{}"'.format(PORT)]

    def test_the_page_is_openmetrics_and_counts_what_happens(self):
        self.wait_for(
            lambda: self.samples()["bftrainer_pool_nodes"] == 4, "all nodes are in the pool"
        )
        before = self.samples()
        trainer = self.counter("1-3")
        row = self.wait_trains(trainer, 3)
        one = '{{jobid="{}",user="{}"}}'.format(trainer, row["user"])
        self.wait_for(
            lambda: self.samples().get("bftrainer_trainer_samples" + one, 0) > 0, "progress shows"
        )
        found = self.samples()
        self.assertEqual(found['bftrainer_trainers{state="RUNNING"}'], 1)
        self.assertEqual(found["bftrainer_trainer_nodes" + one], 3)
        for name in ("held_nodes", "training_nodes", "agents"):
            self.assertEqual(found["bftrainer_" + name], 3, name)
        for name in (
            "pool_node_seconds_total",
            "usable_node_seconds_total",
            "held_node_seconds_total",
            "harvested_node_seconds_total",
            "hints_total",
            "slurm_query_seconds_count",
        ):
            self.assertGreater(found["bftrainer_" + name], before["bftrainer_" + name], name)
        self.assertLess(
            found["bftrainer_harvested_node_seconds_total"],
            found["bftrainer_held_node_seconds_total"],
        )
        starts = found["bftrainer_start_latency_seconds_count"]
        self.assertGreaterEqual(starts, before["bftrainer_start_latency_seconds_count"] + 3)
        accepted = 'bftrainer_slurm_changes_total{result="accepted"}'
        self.assertGreater(found[accepted], before[accepted])
        self.assertGreater(sum_of(found, "bftrainer_decisions_total"), 0)
        self.assertGreater(found["bftrainer_solver_seconds_count"], 0)

        preempted = sum_of(found, "bftrainer_preemptions_total")
        self.regular("-w", row["node_list"][0])
        self.wait_for(
            lambda: sum_of(self.samples(), "bftrainer_preemptions_total") == preempted + 1,
            "the preemption is counted",
        )

        self.cluster.ok("scancel", trainer)
        self.wait_for(
            lambda: not any(name.endswith(one) for name in self.samples()),
            "its series are gone",
        )

    def test_every_name_in_the_dashboard_and_the_alerts_is_on_the_page(self):
        self.wait_trains(self.counter("1-3"), 3)
        known = {re.split("[{]", name)[0] for name in self.samples()}
        dashboard = json.loads((ROOT / "monitoring/grafana-dashboard.json").read_text())
        expressions = [
            target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
        ]
        alerts = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())
        rules = [rule for group in alerts["groups"] for rule in group["rules"]]
        for rule in rules:
            self.assertLessEqual({"alert", "expr", "labels", "annotations"}, set(rule))
        expressions += [rule["expr"] for rule in rules]
        self.assertGreater(len(expressions), 20)
        for expression in expressions:
            names = set(NAME.findall(expression))
            self.assertTrue(names, expression)
            self.assertLessEqual(names, known, expression)
            self.assertEqual(expression.count("("), expression.count(")"), expression)
        listed = set(NAME.findall((ROOT / "docs/admin.md").read_text()))
        self.assertLessEqual({base(name) for name in known}, {base(name) for name in listed})

    def test_pages_elsewhere_can_not_read_it_through_a_users_browser(self):
        self.assertEqual(self.get("/metrics", host="evil.example").status, 403)
        self.assertEqual(self.get("/metrics", host="localhost").status, 200)
        self.assertEqual(self.get("/none").status, 404)

    def test_many_idle_connections_do_not_keep_prometheus_out_for_long(self):
        idle = [socket.create_connection(("127.0.0.1", self.PORT)) for _ in range(80)]
        try:
            self.assertEqual(self.get("/metrics", timeout_s=60).status, 200)
        finally:
            for connection in idle:
                connection.close()
        self.assertIsNotNone(self.cluster.bftrainer("queue"))

    # Helpers.

    def get(self, path, host=None, timeout_s=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.PORT, timeout=timeout_s)
        self.addCleanup(connection.close)
        connection.request("GET", path, headers={"Host": host} if host else {})
        response = connection.getresponse()
        response.text = response.read().decode()
        return response

    def samples(self):
        """Every sample by its name with labels; the page must be well formed."""
        response = self.get("/metrics")
        self.assertEqual(response.status, 200)
        self.assertIn("application/openmetrics-text", response.headers["Content-Type"])
        *lines, end = response.text.splitlines()
        self.assertEqual(end, "# EOF")
        samples = {}
        for line in lines:
            if line.startswith("#"):
                self.assertRegex(line, r"^# (HELP|TYPE|UNIT) bftrainer_[a-z_]+ ?")
                continue
            match = SAMPLE.match(line)
            self.assertTrue(match, line)
            name = match[1] + (match[2] or "")
            self.assertNotIn(name, samples)
            samples[name] = float(match[3])
        return samples


def sum_of(samples, name):
    return sum(value for key, value in samples.items() if key.split("{")[0] == name)


def base(name):
    return re.sub("_(bucket|count|sum)$", "", name)


if __name__ == "__main__":
    unittest.main()
