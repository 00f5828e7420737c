"""The replay's report in a real browser: nothing goes wrong, and everything is drawn.

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
CHARTS = ["pool", "rate", "done", "holes"]
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


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="bft-report-")
        cls.addClassCleanup(cls.folder.cleanup)
        folder = pathlib.Path(cls.folder.name)
        write_log(folder / "log.csv")
        (folder / "trainers.toml").write_text(TRAINERS, encoding="utf-8")
        cls.report = folder / "report.html"
        subprocess.run(
            [BFTRAINER, "replay", folder / "log.csv", "--trainers", folder / "trainers.toml",
             "--report", cls.report],
            check=True, stdout=subprocess.DEVNULL,
        )
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

    def inked(self, chart):
        """How many pixels of a chart are not empty."""
        return self.evaluate(
            f"(() => {{ const canvas = document.querySelector('#{chart} canvas');"
            " const context = canvas.getContext('2d');"
            " const {data} = context.getImageData(0, 0, canvas.width, canvas.height);"
            " let inked = 0;"
            " for (let i = 3; i < data.length; i += 4) inked += data[i] > 0;"
            " return inked; })()")

    def span(self, chart):
        """The ends of a chart's x axis."""
        return self.evaluate(
            f"(() => {{ const {{min, max}} = charts.{chart}.scales.x; return [min, max]; }})()")

    def picture(self, name):
        if PICTURES:
            (pathlib.Path(PICTURES) / name).write_bytes(self.browser.screenshot())

    def test_every_chart_is_drawn(self):
        for chart in CHARTS:
            with self.subTest(chart):
                self.assertGreater(self.inked(chart), 3000)
        self.picture("report.png")

    def test_the_page_needs_no_network(self):
        loaded = self.evaluate("performance.getEntriesByType('resource').map((it) => it.name)")
        self.assertEqual(loaded, [])

    def test_names_are_text_and_not_markup(self):
        self.assertIn("</script><b>", self.evaluate("document.body.textContent"))
        self.assertEqual(self.evaluate("document.querySelectorAll('b').length"), 0)

    def test_a_drag_zooms_and_a_double_click_shows_all(self):
        for chart in CHARTS:
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
        # The axes' numbers are drawn at the chart's lower edge.
        brightness = self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {"
            " const canvas = document.querySelector('#pool canvas');"
            " const height = Math.round(canvas.height * 0.12);"
            " const {data} = canvas.getContext('2d')"
            "   .getImageData(0, canvas.height - height, canvas.width, height);"
            " let most = 0;"
            " for (let i = 0; i < data.length; i += 4)"
            "   if (data[i + 3] > 200) most = Math.max(most, data[i]);"
            " done(most); })))")
        self.assertGreater(brightness, 180)
        self.picture("report-dark.png")

    def test_it_prints_in_dark_ink_with_its_charts(self):
        self.browser.emulate(media="print", scheme="dark")
        self.assertEqual(
            self.evaluate("getComputedStyle(document.body).color"), "rgb(0, 0, 0)")
        self.picture("report-print.png")
        pdf = self.browser.pdf()
        self.assertTrue(pdf.startswith(b"%PDF-"))
        # Each chart is an image in it.
        self.assertGreaterEqual(pdf.count(b"/Subtype /Image"), len(CHARTS))


if __name__ == "__main__":
    unittest.main()
