// The two kinds of charts: pool and allocation over time, and how a trainer scales.
import { amount, decimals, time } from "./format.js";
import { element, write } from "./table.js";

const { axis, hue, line, stacked, step } = drawing;

// Points of the timeline whose trainers found no lane of their own are counted together.
const OTHERS = 0;
// Their lane, the last one (lanes.rs).
const LAST_LANE = 47;
// Trainers that are named below the chart at most.
const NAMED = 12;
const GREY = "#8a8a8a";
const laneColour = (lane) => (lane === LAST_LANE ? GREY : hue(lane));
// There are no halves of nodes.
const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4].map((zeros) => digit * 10 ** zeros))
  .sort((one, other) => one - other);

// Pool and allocation. `points` by their time: {time_s, pool, held, training, shares}, each share
// [lane, job id, nodes].
export class Allocation {
  constructor(place, readout, nameOf) {
    Object.assign(this, { place, readout, nameOf, points: new Map(), span_s: 3600 });
    this.follow = true;
  }

  // What is known already stays; the points may be told again. Whether some are missing between.
  add(points, step_s) {
    this.step_s = step_s;
    const newest_s = Math.max(...this.points.keys());
    for (const point of points) this.points.set(point.time_s, point);
    return points.length > 0 && points[0].time_s > newest_s + step_s;
  }

  // Forgets what is older, and what is not yet, as the clock was set back.
  keep(from_s, to_s) {
    for (const time_s of this.points.keys())
      if (time_s < from_s || time_s > to_s) this.points.delete(time_s);
  }

  // Colour of the lane that a trainer has now.
  colourOf(jobid) {
    const share = this.last?.shares.find(([, id]) => id === jobid);
    return share ? laneColour(share[0]) : null;
  }

  // Node-seconds over the time that is shown.
  sums() {
    const sums = { pool_node_s: 0, training_node_s: 0 };
    for (const { time_s, pool, training } of this.points.values()) {
      // The newest point is not over yet.
      const seconds = Math.min(this.now_s, time_s + this.step_s) - Math.max(time_s, this.now_s - this.span_s);
      if (seconds <= 0) continue;
      sums.pool_node_s += pool * seconds;
      sums.training_node_s += training * seconds;
    }
    return sums;
  }

  draw(now_s) {
    this.now_s = now_s;
    const sorted = [...this.points.values()].sort((one, other) => one.time_s - other.time_s);
    this.last = sorted.at(-1);
    // One point more than is seen, so that the left end is not bare.
    const first = sorted.findLastIndex((point) => point.time_s <= now_s - this.span_s);
    this.seen = this.withGaps(sorted.slice(Math.max(first, 0)), now_s);
    const lanes = this.lanes();
    const heights = stacked(lanes).reverse();
    const data = [this.seen.map(({ time_s }) => time_s), this.seen.map((it) => it.pool ?? null), ...heights];
    if (this.chart && heights.length === this.drawn) this.chart.setData(data, false);
    else this.renew(data, heights.length);
    if (this.follow) this.chart.setScale("x", { min: now_s - this.span_s, max: now_s });
    else this.chart.redraw();
    this.say();
    const { pool, training } = this.last ?? {};
    this.place.ariaLabel =
      `Nodes over time; lately ${decimals(pool, 1)} in the pool, of which ${decimals(training, 1)} train`;
  }

  // A point holds until the next one or now, but not longer than its time; where nothing was seen
  // there is nothing.
  withGaps(points, now_s) {
    return points.flatMap((point, index) => {
      const next_s = points[index + 1]?.time_s ?? now_s;
      const end_s = point.time_s + this.step_s;
      if (next_s > end_s) return [point, { ...point, time_s: end_s }, { time_s: end_s + 1 }];
      return index + 1 < points.length ? [point] : [point, { ...point, time_s: Math.max(next_s, point.time_s + 1) }];
    });
  }

  // Nodes of each lane over time.
  lanes() {
    const most = Math.max(-1, ...this.seen.flatMap(({ shares = [] }) => shares.map(([lane]) => lane)));
    const lanes = Array.from({ length: most + 1 }, () =>
      this.seen.map(({ pool }) => (pool === undefined ? null : 0)));
    this.seen.forEach(({ shares = [] }, i) => {
      for (const [lane, , nodes] of shares) lanes[lane][i] += nodes;
    });
    return lanes;
  }

  renew(data, lanes) {
    this.drawn = lanes;
    this.chart?.destroy();
    const series = Array.from({ length: lanes }, (_, lane) => step(`${lane}`, laneColour(lane), laneColour(lane)));
    this.chart = new uPlot({
      ...this.size(),
      legend: { show: false },
      axes: [{ ...axis(), values: (_, places) => places.map((at) => time(at, at).slice(0, 5)) },
             { ...axis("nodes"), incrs: WHOLE }],
      scales: { x: { range: (_, from, to) => [from, to] },
                y: { range: (_, from, to) => [0, Math.max(1, to * 1.05)] } },
      series: [{}, step("pool", GREY, `${GREY}33`), ...series.reverse()],
      cursor: { y: false, points: { show: false }, bind: { dblclick: () => () => this.whole() } },
      hooks: {
        setCursor: [() => this.say()],
        setSelect: [({ select }) => { if (select.width > 0) this.follow = false; }],
      },
    }, data, this.place);
  }

  size() {
    return { width: this.place.clientWidth, height: innerWidth < 700 ? 200 : 260 };
  }

  whole() {
    this.follow = true;
    if (this.now_s) this.draw(this.now_s);
  }

  resize() {
    this.chart?.setSize(this.size());
  }

  // What holds at the cursor, or lately.
  say() {
    const index = this.chart?.cursor.idx;
    const point = (index === null || index === undefined ? null : this.seen[index]) ?? this.last;
    if (!point) return write(this.readout, "nothing is known yet");
    const at = index === null || index === undefined ? "last half minute" : time(point.time_s, this.now_s);
    if (point.pool === undefined) return write(this.readout, `${at}: not seen`);
    const { pool, held, training } = point;
    const parts = [`${at}: ${decimals(pool, 1)} in the pool`, `${decimals(training, 1)} train`,
      `${decimals(Math.max(0, held - training), 1)} start or stop`, `${decimals(pool - held, 1)} idle`];
    const shares = [...point.shares].sort((one, other) => other[2] - one[2]);
    const names = shares.slice(0, NAMED).map(([lane, jobid, nodes]) => {
      const swatch = element("i", { class: "swatch" });
      swatch.style.background = laneColour(lane);
      const name = jobid === OTHERS ? "others" : this.nameOf(jobid);
      return element("span", {}, swatch, `${name} ${decimals(nodes, 1)}`);
    });
    const unnamed = shares.length > NAMED ? [element("span", {}, `and ${shares.length - NAMED} more`)] : [];
    this.readout.replaceChildren(element("span", {}, parts.join(", ")), ...names, ...unnamed);
  }
}

// How a trainer scales: what decisions take it to do, and what was measured.
export class Scaling {
  constructor(place) {
    this.place = place;
  }

  draw({ curve, measured, nodes, max }) {
    const told = new Map([[0, 0], ...curve]);
    const seen = new Map(measured.map(([count, rate]) => [count, rate]));
    // Between two points the curve is straight; it ends at what the trainer can use.
    const counts = [...new Set([...told.keys(), ...seen.keys(), nodes])]
      .filter((count) => count <= Math.max(max, ...seen.keys())).sort((one, other) => one - other);
    const between = (count) => {
      const points = [...told].sort((one, other) => one[0] - other[0]);
      const after = points.findIndex(([at]) => at >= count);
      if (after <= 0) return after === 0 ? points[0][1] : null;
      const [[left, low], [right, high]] = [points[after - 1], points[after]];
      return low + (high - low) * (count - left) / (right - left);
    };
    const data = [counts, counts.map(between), counts.map((count) => seen.get(count) ?? null),
      counts.map((count) => (nodes > 0 && count === nodes ? between(count) : null))];
    const same = JSON.stringify(data);
    if (same === this.same) return;
    this.same = same;
    this.chart?.destroy();
    const dots = (label, stroke, size) => ({
      ...line(label, stroke), paths: () => null, points: { show: true, size, fill: stroke, stroke },
    });
    this.chart = new uPlot({
      ...this.size(),
      legend: { live: false },
      cursor: { show: false },
      axes: [{ ...axis("nodes"), incrs: WHOLE },
             { ...axis("samples per second", 70), values: (_, values) => values.map(amount) }],
      scales: { x: { time: false, range: (_, low, high) => [0, high * 1.04] },
                y: { range: (_, low, high) => [0, high * 1.08 || 1] } },
      series: [{ label: "nodes" }, { ...line("as decisions take it", "#5b88b8"), width: 2 },
        dots("measured", "#2f8f5b", 10), dots("now", "#c9772b", 6)],
    }, data, this.place);
  }

  size() {
    return { width: this.place.clientWidth, height: 220 };
  }

  resize() {
    this.chart?.setSize(this.size());
  }
}
