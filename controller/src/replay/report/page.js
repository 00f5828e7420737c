// Draws the charts of a replay's report; `report` is the data that the page carries.
"use strict";
(() => {
  const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  const rule = () => getComputedStyle(document.documentElement).getPropertyValue("--rule").trim();
  const charts = [];
  const axis = (label) => ({ label, stroke: ink, grid: { stroke: rule }, ticks: { stroke: rule } });
  const draw = (id, options, data) => {
    const place = document.getElementById(id);
    if (!place || data[0].length === 0) return;
    const size = () => ({ width: place.clientWidth, height: 280 });
    charts.push([new uPlot({ ...size(), ...options }, data, place), size]);
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
  addEventListener("resize", () => charts.forEach(([chart, size]) => chart.setSize(size())));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
    () => charts.forEach(([chart]) => chart.redraw()));
})();
