// What the charts of all pages have in common.
"use strict";
const drawing = (() => {
  // Colours are looked up when something is drawn: the scheme may change.
  const colour = (name) => () =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [ink, rule] = [colour("--ink"), colour("--rule")];
  const axis = (label, size = 50) =>
    ({ label, size, stroke: ink, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 } });
  const line = (label, stroke, fill) => ({ label, stroke, fill, width: 1, points: { show: false } });
  // What holds from one time to the next.
  const step = (...of) => ({ ...line(...of), paths: uPlot.paths.stepped({ align: 1 }) });
  // Neighbours are far apart.
  const hue = (number) => `hsl(${(number * 137) % 360} 45% 55%)`;
  // One trainer's nodes upon the other's; the tallest is last. Where nothing is known, nothing is.
  const stacked = (lanes) => lanes.reduce((done, lane) => {
    const below = done.at(-1);
    return [...done, below ? lane.map((nodes, i) => nodes === null ? null : nodes + below[i]) : lane];
  }, []);
  // Draws all charts anew when the colours, or the width, have changed.
  const follow = (charts, size) => {
    const redraw = () => Object.values(charts).forEach((chart) => chart.redraw());
    addEventListener("resize",
      () => Object.entries(charts).forEach(([id, chart]) => chart.setSize(size(id))));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    matchMedia("print").addEventListener("change", redraw);
  };
  return { axis, line, step, hue, stacked, follow };
})();
