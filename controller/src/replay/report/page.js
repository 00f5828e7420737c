// Draws the charts of a replay's report; `report` is the data that the page carries.
"use strict";
// The charts that are drawn, by the name of their place.
const charts = {};
(() => {
  const colour = (name) => () =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [ink, rule] = [colour("--ink"), colour("--rule")];
  const place = (id) => document.getElementById(id);
  const size = (id) => ({ width: place(id).clientWidth, height: 280 });
  const axis = (label) => ({ label, stroke: ink, grid: { stroke: rule }, ticks: { stroke: rule } });
  const draw = (id, options, data) => {
    if (data[0].length > 0) charts[id] = new uPlot({ ...size(id), ...options }, data, place(id));
  };
  const line = (label, stroke, fill) => ({ label, stroke, fill, width: 1, points: { show: false } });
  const s = report.series;
  draw("pool", {
    axes: [axis(), axis("nodes")],
    series: [{}, line("idle", "#8a8a8a", "#8a8a8a44"), line("used", "#1f77b4", "#1f77b488")],
  }, [s.time_s, s.pool, s.used]);
  draw("rate", {
    axes: [axis(), axis("samples per second")],
    series: [{}, line("rate", "#2ca02c")],
  }, [s.time_s, s.rate_per_s]);
  draw("done", {
    axes: [axis(), axis("trainers")],
    series: [{}, line("admitted, not done", "#ff7f0e"), line("with nodes", "#9467bd")],
  }, [s.time_s, s.trainers, s.running]);
  const h = report.holes;
  draw("holes", {
    scales: { x: { time: false, distr: 3 } },
    axes: [axis("hole, seconds"), axis("share, %")],
    series: [{ label: "from s" }, line("of the holes", "#8a8a8a"),
             line("of the idle node-time", "#1f77b4")],
  }, [h.from_s, h.share, h.node_time_share]);
  const redraw = () => Object.values(charts).forEach((chart) => chart.redraw());
  addEventListener("resize",
    () => Object.entries(charts).forEach(([id, chart]) => chart.setSize(size(id))));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
})();
