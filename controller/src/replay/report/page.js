// Draws the charts of a report; `report` is the data that the page carries.
"use strict";
// The charts that are drawn, by the name of their place.
const charts = {};
(() => {
  const { axis, line, step, hue, stacked } = drawing;
  const place = (id) => document.getElementById(id);
  const size = (id) => ({ width: place(id).clientWidth, height: 280 });
  const draw = (id, options, data) => {
    if (data[0].length > 0) charts[id] = new uPlot({ ...size(id), ...options }, data, place(id));
  };

  // One replay over time.
  const drawReplay = (s, h) => {
    // The tallest is drawn first, the others before it. Names below the chart would be too many:
    // the first two, all idle and all used nodes, are shown.
    const heights = stacked(s.lanes);
    const lanes = heights.map((_, lane) => step("used", hue(lane), hue(lane)));
    draw("pool", {
      axes: [axis(), axis("nodes")],
      series: [{}, step("idle", "#8a8a8a", "#8a8a8a44"), ...lanes.reverse()],
    }, [s.time_s, s.pool, ...heights.reverse()]);
    draw("rate", {
      axes: [axis(), axis("samples per second", 80)],
      series: [{}, step("rate", "#2ca02c")],
    }, [s.time_s, s.rate_per_s]);
    draw("done", {
      axes: [axis(), axis("trainers")],
      series: [{}, step("admitted, not done", "#ff7f0e"), step("with nodes", "#9467bd")],
    }, [s.time_s, s.trainers, s.running]);
    draw("holes", {
      scales: { x: { time: false, distr: 3 } },
      axes: [axis("hole, seconds"), axis("share, %")],
      series: [{ label: "from s" }, line("of the holes", "#8a8a8a"),
               line("of the idle node-time", "#1f77b4")],
    }, [h.from_s, h.share, h.node_time_share]);
  };

  // A sweep, over one of its settings.
  const drawSweep = ({ setting, at, names, lines }) => {
    const [first, last] = [at[0], at.at(-1)];
    const below = axis(setting);
    // Settings such as 10, 30, 100, 300 are chosen by their ratio.
    const isLog = first > 0 && last >= 10 * first;
    const ratio = (last / first) ** 0.03;
    const room = names ? 0.3 : 0.03 * (last - first) || 1;
    const [low, high] = isLog ? [first / ratio, last * ratio] : [first - room, last + room];
    const x = {
      time: false, distr: isLog ? 3 : 1,
      range: (_, from, to) => [from === first ? low : from, to === last ? high : to],
    };
    if (names || isLog) {
      below.splits = () => at;
      below.filter = (_, places) => places;
      below.values = (_, places) => places.map((place) => names ? names[place] : place);
    }
    const value = (_, place) => place == null ? "--" : names ? names[place] : place;
    const over = (id, label, size, values) => place(id) && draw(id, {
      scales: { x },
      axes: [below, axis(label, size)],
      series: [{ label: setting, value }, ...lines.map((of, number) => ({
        ...line(of.label || label, hue(number)), width: 2,
        points: { show: true, size: 6, fill: hue(number) },
        // Nothing lies between two names.
        ...(names && { paths: () => null }),
      }))],
    }, [at, ...values]);
    over("efficiency", "U", 60, lines.map((line) => line.efficiency));
    over("samples", "samples", 110, lines.map((line) => line.samples));
  };

  if (report.series) drawReplay(report.series, report.holes);
  if (report.curves) drawSweep(report.curves);
  drawing.follow(charts, size);
})();
