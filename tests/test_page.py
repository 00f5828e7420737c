"""The page in a real browser while a trainer trains: it shows what happens, and goes on when
bftrainerd was away.

Run: python3 tests/test_page.py (after cargo build --release --workspace)
"""

import http.client
import json
import os
import pathlib
import time
import unittest
import urllib.parse

from browser import Browser
from cluster import ROOT, ClusterTest, free_port, web_json

SCALING = ROOT / "tests/scaling.py"
# Where screenshots go, for those who want to look at them.
PICTURES = os.environ.get("BFT_PICTURES")
NAME = "<script>alert(1)</script>"
PER_S = 200.0
TOTAL = 10**6


class Page(ClusterTest):
    NODES = 3
    PORT = free_port()
    BFTRAINER_CONF = ['http = "127.0.0.1:{}"'.format(PORT), "learn = true"]
    ADDRESS = "http://127.0.0.1:{}/".format(PORT)

    def test_a_page_that_stays_open_shows_what_happens(self):
        trainer = self.submit()
        self.wait_trains(trainer, 3)
        self.browser = Browser()
        self.addCleanup(self.browser.close)
        self.browser.open(self.ADDRESS)
        # A page that is loaded anew would not have it.
        self.evaluate("document.stillHere = true")
        self.wait_cell("trainers", trainer, "Nodes", "3 (1-3)")
        self.assert_progress_is_shown(trainer)
        self.assert_names_are_text(trainer)
        self.assert_keys_open_and_sort(trainer)
        self.assert_it_fits_narrow_screens()
        self.assert_the_dark_is_dark()
        self.assert_a_regular_job_is_seen(trainer)
        self.assert_a_restart_is_survived(trainer)
        self.assertTrue(self.evaluate("document.stillHere"))
        self.assertEqual({urllib.parse.urlsplit(url).netloc for url in self.browser.requests},
                         {"127.0.0.1:{}".format(self.PORT)})

    def test_what_is_not_asked_for_at_this_host_is_refused(self):
        for path in ("/", "/state.json", "/timeline.json", "/harvest.json", "/metrics"):
            with self.subTest(path):
                self.assertEqual(self.get(path, "evil.example:{}".format(self.PORT)).status, 403)
                answer = self.get(path, "localhost:{}".format(self.PORT))
                self.assertEqual(answer.status, 200)
                policy = answer.headers["Content-Security-Policy"]
                self.assertTrue(policy.startswith("default-src 'none'; script-src 'self';"), policy)
                self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
        self.assertEqual(self.get("/", "localhost", method="POST").status, 405)

    def test_many_who_look_cost_the_daemon_one_answer_a_second(self):
        began_s = time.monotonic()
        seen = [web_json(self.PORT, "/state.json")["now"] for _ in range(200)]
        took_s = time.monotonic() - began_s
        self.assertLessEqual(len(set(seen)), took_s + 2)
        self.assertEqual(seen, sorted(seen))

    # What must hold.

    def assert_progress_is_shown(self, trainer):
        self.wait_for(lambda: self.cell("trainers", trainer, "Time left") not in ("–", ""),
                      "the time left is known")
        self.assertRegex(self.cell("trainers", trainer, "Progress"), r"^\d+\.\d %$")
        state = web_json(self.PORT, "/state.json")
        [row] = state["trainers"]
        # Three nodes, of which a busy machine may keep some of the time.
        self.assertTrue(0 < row["samples_per_s"] < 4 * PER_S, row)
        left_s = (TOTAL - row["samples"]) / row["samples_per_s"]
        self.assertAlmostEqual(row["time_left_s"] / left_s, 1, delta=0.1)
        self.wait_for(lambda: self.red_pixels() > 50, "its nodes are drawn, in the first lane's red")
        self.assertRegex(self.text("#at-cursor"), r"3\.0 in the pool, [0-3]\.\d train")
        self.wait_cell("nodes", "n1", "Use", "training")
        [end_s] = [node["hole_end"] for node in state["nodes"] if node["node"] == "n1"]
        self.assertTrue(self.cell("nodes", "n1", "Hole ends").endswith(
            time.strftime("%H:%M:%S", time.localtime(end_s)) if end_s else "not known"))
        self.assertEqual(self.cell("nodes", "n1", "Trainer"), str(trainer))
        reasons = self.column("decisions", "Reason")
        self.assertTrue(any("worth" in reason for reason in reasons), reasons)

    def assert_names_are_text(self, trainer):
        self.assertEqual(self.cell("trainers", trainer, "Name"), NAME)
        self.assertIn(NAME, self.text("#at-cursor"))
        scripts = "[...document.scripts].map((script) => script.src.split('/').at(-1))"
        self.assertEqual(self.evaluate(scripts), ["uplot.js", "drawing.js", "page.js"])

    def assert_keys_open_and_sort(self, trainer):
        self.tab_to("#trainers td button")
        self.browser.press("Enter", "\r")
        self.assertEqual(self.focused("ariaExpanded"), "true")
        self.wait_for(lambda: "nodes=1-3" in self.text("#trainers .details"), "details are open")
        self.wait_for(lambda: self.text("#trainers .measured td") == "3", "what was measured is shown")
        self.assertTrue(self.evaluate("document.querySelector('#trainers .details canvas').width > 0"))
        # It stays open, and the focus where it is, while the page goes on.
        samples = self.text("#trainers .details")
        self.wait_for(lambda: self.text("#trainers .details") != samples, "it is brought up to date")
        self.assertEqual(self.focused("ariaExpanded"), "true")
        self.picture("desktop")
        self.tab_to("#nodes th button")
        for order, first in (("descending", "n3"), ("ascending", "n1")):
            self.browser.press("Enter", "\r")
            self.assertEqual(self.evaluate("document.activeElement.parentElement.ariaSort"), order)
            self.assertEqual(self.column("nodes", "Node")[0], first)

    def assert_it_fits_narrow_screens(self):
        for width in (390, 320, 800):
            with self.subTest(width):
                self.browser.resize(width)
                self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                wide = self.evaluate("document.documentElement.scrollWidth")
                self.assertLessEqual(wide, width)
                self.picture("wide-{}".format(width))
        self.browser.resize(1400)

    def assert_the_dark_is_dark(self):
        colours = ("['backgroundColor', 'color'].map((name) =>"
                   " Math.max(...getComputedStyle(document.body)[name].match(/\\d+/g)))")
        paper, ink = self.evaluate(colours)
        self.assertTrue(paper > 200 > 100 > ink, (paper, ink))
        self.browser.emulate(scheme="dark")
        paper, ink = self.evaluate(colours)
        self.assertTrue(ink > 200 > 100 > paper, (paper, ink))
        self.picture("dark")
        self.browser.emulate()

    def assert_a_regular_job_is_seen(self, trainer):
        job = self.regular("-w", "n2")
        self.wait_cell("trainers", trainer, "Nodes", "2 (1-3)")
        self.wait_for(lambda: self.column("nodes", "Node") == ["n1", "n3"], "its node has left the pool")
        self.wait_for(lambda: any(cell.endswith("→ 2") for cell in self.column("decisions", "Nodes")),
                      "the loss is among the decisions")
        self.cluster.ok("scancel", job)

    def assert_a_restart_is_survived(self, trainer):
        # The store has at least one point of the timeline.
        kept = self.wait_for(lambda: web_json(self.PORT, "/timeline.json")["points"][:-1],
                             "half a minute is over")
        self.assertEqual(self.browser.complaints, [])
        self.cluster.stop_controller()
        self.wait_for(lambda: "does not answer" in self.text("#connection"), "it says so")
        self.assertEqual(self.cell("trainers", trainer, "Name"), NAME)
        self.cluster.start_controller()
        self.wait_for(lambda: self.text("#connection").startswith("live"), "it goes on")
        self.wait_cell("trainers", trainer, "Nodes", "3 (1-3)")
        self.assertIn(kept[0], web_json(self.PORT, "/timeline.json")["points"])
        self.wait_for(lambda: self.column("harvest", "Node-hours"), "node-hours are shown")
        # That nobody answered is all that it complains about.
        sources = {complaint["source"] for complaint in self.browser.complaints}
        self.assertLessEqual(sources, {"network"}, self.browser.complaints)

    # What is on the page.

    def evaluate(self, expression):
        return self.browser.evaluate(expression)

    def text(self, selector):
        return self.evaluate(
            "document.querySelector({})?.textContent ?? ''".format(json.dumps(selector)))

    def red_pixels(self):
        return self.evaluate(
            "(() => { const canvas = document.querySelector('#allocation canvas');"
            # A copy: Chromium warns of a page's canvas that is read twice.
            " const copy = new OffscreenCanvas(canvas.width, canvas.height)"
            "   .getContext('2d', {willReadFrequently: true});"
            " copy.drawImage(canvas, 0, 0);"
            " const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);"
            " let red = 0;"
            " for (let i = 0; i < data.length; i += 4)"
            "   red += data[i] > 170 && data[i + 1] < 110 && data[i + 3] > 200;"
            " return red; })()")

    def rows(self, section):
        """The table of a section as dictionaries by the columns' titles."""
        return self.evaluate(
            "(() => {{ const table = document.querySelector('#{} .wide > table');"
            " const titles = [...table.tHead.rows[0].cells].map((head) => head.textContent);"
            " return [...table.tBodies[0].rows].filter((row) => row.cells.length === titles.length)"
            "   .map((row) => Object.fromEntries(titles.map((title, i) =>"
            "     [title, row.cells[i].textContent.trim()]))); }})()".format(section))

    def column(self, section, title):
        return [row[title] for row in self.rows(section)]

    def cell(self, section, first, title):
        """What stands in a column, in the row that begins with `first`; None without one."""
        found = [row[title] for row in self.rows(section) if next(iter(row.values())) == str(first)]
        return found[0] if found else None

    def wait_cell(self, section, first, title, wanted):
        self.wait_for(lambda: self.cell(section, first, title) == wanted,
                      "{} of {} is {}".format(title, first, wanted))

    def focused(self, name):
        return self.evaluate("document.activeElement.{}".format(name))

    def tab_to(self, selector):
        """Presses the tabulator until the focus is on the first such element."""
        wanted = "document.activeElement === document.querySelector({})".format(json.dumps(selector))
        for _ in range(100):
            if self.evaluate(wanted):
                return
            self.browser.press("Tab")
        self.fail("the tabulator does not reach {}".format(selector))

    def picture(self, name):
        if PICTURES:
            path = pathlib.Path(PICTURES) / "page-{}.png".format(name)
            path.write_bytes(self.browser.screenshot())

    # Other helpers.

    def submit(self):
        text = 'export PYTHONPATH="{}/scripts"\nexec python3 "{}" {} 0.9\n'.format(ROOT, SCALING, PER_S)
        points = "/".join("{}:{}".format(n, PER_S * n**0.9) for n in (1, 2, 3))
        specification = "nodes=1-3,up=1,down=1,samples={},curve={}".format(TOTAL, points)
        return self.sbatch("--bftrainer=" + specification, "-J", NAME, self.script(text))

    def get(self, path, host, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.PORT, timeout=30)
        self.addCleanup(connection.close)
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        answer.read()
        return answer


if __name__ == "__main__":
    unittest.main()
