"""The reports of a replay and of a sweep in a real browser: nothing goes wrong, and everything is
drawn.

Run: python3 tests/test_report.py (after cargo build --release --workspace)
"""

import os
import pathlib
import random
import subprocess
import tempfile
import unittest

from browser import Browser

ROOT = pathlib.Path(__file__).resolve().parents[1]
BFTRAINER = ROOT / "target" / "release" / "bftrainer"
# Where screenshots go, for those who want to look at them.
PICTURES = os.environ.get("BFT_PICTURES")

TRAINERS = """
[[trainer]]
name = "resnet50 </script><b>"
count = 40
min = 1
max = 8
samples = 4e6
up_s = 18
down_s = 12
every_s = 600
curve = [[1, 300], [2, 580], [8, 2000]]
"""


def write_log(path):
    """Two days of twenty nodes that come and go."""
    dice = random.Random(7)
    rows = sorted(
        (dice.uniform(0, 172_800), f"n{node}", state)
        for node in range(20)
        for state in ("idle", "busy") * 12
    )
    idle = set()
    with open(path, "w", encoding="utf-8") as log:
        log.write("time,node,state\n")
        for time_s, node, _ in rows:
            # Each entry turns its node's state over.
            idle ^= {node}
            log.write(f"{time_s:.0f},{node},{'idle' if node in idle else 'busy'}\n")


class Page:
    """A report in the browser: what holds for each kind."""

    # Their places; how many pixels of each are not empty at least.
    charts = []
    inked_least = 3000
    # What the command is told besides the log and the trainers.
    options = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="bft-report-")
        cls.addClassCleanup(cls.folder.cleanup)
        folder = pathlib.Path(cls.folder.name)
        log = folder / "log <b>.csv"
        write_log(log)
        (folder / "trainers.toml").write_text(TRAINERS, encoding="utf-8")
        cls.report = folder / "report.html"
        cls.answer = subprocess.run(
            [BFTRAINER, "replay", log, "--trainers", folder / "trainers.toml",
             "--report", cls.report, *cls.options],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.browser.emulate()
        self.browser.open(self.report)

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def evaluate(self, expression):
        return self.browser.evaluate(expression)

    def box(self, chart):
        """Left, top, width and height of a chart's plotting area, scrolled into view."""
        return self.evaluate(
            f"(() => {{ const over = document.querySelector('#{chart} .u-over');"
            " over.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const box = over.getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()")

    def inked(self, chart, part="0, 0, canvas.width, canvas.height"):
        """How many pixels of a part of a chart (left, top, width, height) are not empty."""
        return self.evaluate(
            f"(() => {{ const canvas = document.querySelector('#{chart} canvas');"
            f" const {{left, top, width, height}} = charts.{chart}.bbox;"
            # A copy: Chromium warns of a page's canvas that is read twice.
            " const context = new OffscreenCanvas(canvas.width, canvas.height)"
            "   .getContext('2d', {willReadFrequently: true});"
            " context.drawImage(canvas, 0, 0);"
            f" const {{data}} = context.getImageData({part});"
            " let inked = 0;"
            " for (let i = 3; i < data.length; i += 4) inked += data[i] > 0;"
            " return inked; })()")

    def span(self, chart):
        """The ends of a chart's x axis."""
        return self.evaluate(
            f"(() => {{ const {{min, max}} = charts.{chart}.scales.x; return [min, max]; }})()")

    def picture(self, name):
        if PICTURES:
            path = pathlib.Path(PICTURES) / f"{type(self).__name__.lower()}-{name}.png"
            path.write_bytes(self.browser.screenshot())

    def test_every_chart_is_drawn(self):
        for chart in self.charts:
            with self.subTest(chart):
                self.assertGreater(self.inked(chart), self.inked_least)
        self.picture("all")

    def test_axes_have_numbers(self):
        left = "0, top, left - 20, height"
        below = "left, top + height + 20, width, canvas.height - top - height - 20"
        for chart in self.charts:
            for part in (left, below):
                with self.subTest(chart=chart, part=part):
                    self.assertGreater(self.inked(chart, part), 100)

    def test_the_page_needs_no_network(self):
        loaded = self.evaluate("performance.getEntriesByType('resource').map((it) => it.name)")
        self.assertEqual(loaded, [])

    def test_a_drag_zooms_and_a_double_click_shows_all(self):
        for chart in self.charts:
            with self.subTest(chart):
                whole = self.span(chart)
                left, top, width, height = self.box(chart)
                y = top + height / 2
                self.browser.drag(left + width * 0.4, y, left + width * 0.6, y)
                zoomed = self.span(chart)
                self.assertGreater(zoomed[0], whole[0])
                self.assertLess(zoomed[1], whole[1])
                self.browser.double_click(left + width / 2, y)
                self.assertEqual(self.span(chart), whole)

    def test_in_the_dark_text_and_axes_are_light(self):
        light = self.evaluate("getComputedStyle(document.body).backgroundColor")
        self.browser.emulate(scheme="dark")
        self.assertNotEqual(
            self.evaluate("getComputedStyle(document.body).backgroundColor"), light)
        # Left of the plot stand the axis' numbers alone.
        brightness = self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {"
            f" const canvas = document.querySelector('#{self.charts[0]} canvas');"
            f" const {{left, top, height}} = charts.{self.charts[0]}.bbox;"
            " const {data} = canvas.getContext('2d').getImageData(0, top, left - 20, height);"
            " let most = 0;"
            " for (let i = 0; i < data.length; i += 4)"
            "   if (data[i + 3] > 200) most = Math.max(most, data[i]);"
            " done(most); })))")
        self.assertGreater(brightness, 180)
        self.picture("dark")

    def test_it_prints_in_dark_ink_with_its_charts(self):
        self.browser.emulate(media="print", scheme="dark")
        self.assertEqual(
            self.evaluate("getComputedStyle(document.body).color"), "rgb(0, 0, 0)")
        self.picture("print")
        pdf = self.browser.pdf()
        self.assertTrue(pdf.startswith(b"%PDF-"))
        # A chart may be printed as an image or as lines: without any there is less on paper.
        self.evaluate("document.querySelectorAll('canvas').forEach((it) => it.remove())")
        bare = self.browser.pdf()
        self.assertGreater(len(pdf) - len(bare), 1000 * len(self.charts))

    def test_names_are_text_and_not_markup(self):
        self.assertIn("log <b>.csv", self.evaluate("document.querySelector('h1').textContent"))
        self.assertEqual(self.evaluate("document.querySelectorAll('b').length"), 0)


class Replay(Page, unittest.TestCase):
    charts = ["pool", "rate", "done", "holes"]

    def test_trainers_are_listed_by_name(self):
        self.assertIn("</script><b>", self.evaluate("document.body.textContent"))


class Comparison(Page):
    """Reports of sweeps."""

    charts = ["efficiency", "samples"]
    inked_least = 1500

    def legend(self, chart):
        """What is told apart in a chart: the axis below, then the lines."""
        return self.evaluate(
            f"[...document.querySelectorAll('#{chart} .u-legend .u-label')]"
            ".map((it) => it.textContent)")

    def test_the_table_is_that_of_the_command(self):
        rows = self.evaluate(
            "[...document.querySelectorAll('body > table tr')]"
            ".map((row) => [...row.children].map((cell) => cell.textContent))")
        self.assertEqual(rows, [line.split() for line in self.answer.splitlines()])


class Sweep(Comparison, unittest.TestCase):
    options = ["--repeat", "--sweep", "policy=bftrainer,paper,equal-share",
               "--sweep", "horizon=300,10,30"]

    def test_a_line_for_each_policy_over_the_horizon(self):
        expected = ["horizon", "policy bftrainer", "policy paper", "policy equal-share"]
        for chart in self.charts:
            self.assertEqual(self.legend(chart), expected)
        self.assertEqual(self.evaluate("charts.efficiency.data[0]"), [10, 30, 300])

    def test_the_lines_are_the_efficiency_and_the_samples_of_the_table(self):
        rows = [line.split() for line in self.answer.splitlines()[1:]]
        for chart, column in (("efficiency", 5), ("samples", 4)):
            lines = self.evaluate(f"charts.{chart}.data.slice(1)")
            for policy, line in zip(("bftrainer", "paper", "equal-share"), lines):
                for horizon, drawn in zip(("10", "30", "300"), line):
                    [written] = [row[column] for row in rows if (row[0], row[3]) == (policy, horizon)]
                    with self.subTest(chart=chart, policy=policy, horizon=horizon):
                        self.assertAlmostEqual(drawn / float(written), 1, delta=1e-3)


class PolicySweep(Comparison, unittest.TestCase):
    options = ["--sweep", "policy=bftrainer,paper,equal-share"]
    inked_least = 800

    def test_policies_are_named_below_the_axis(self):
        names = self.evaluate("charts.efficiency.axes[0]._values")
        self.assertEqual(names, ["bftrainer", "paper", "equal-share"])
        self.assertEqual(self.legend("efficiency"), ["policy", "U"])


class SweepWithoutEfficiency(Comparison, unittest.TestCase):
    options = ["--sweep", "nodes=10,20", "--no-efficiency"]
    charts = ["samples"]

    def test_there_is_no_empty_chart(self):
        self.assertEqual(self.evaluate("Object.keys(charts)"), ["samples"])
        self.assertEqual(self.evaluate("document.querySelectorAll('.chart').length"), 1)


if __name__ == "__main__":
    unittest.main()
