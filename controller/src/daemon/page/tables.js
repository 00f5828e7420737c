// Which tables there are and what stands in their columns.
import { Scaling } from "./charts.js";
import { NOTHING, amount, count, decimals, duration, nodeHours, text, time } from "./format.js";
import { Table, element, write } from "./table.js";

const plain = (title, key, more = {}) =>
  ({ title, value: (row) => row[key], text: (row) => text(row[key]), ...more });
const number = (title, key, shown, more = {}) =>
  ({ title, value: (row) => row[key], text: (row) => shown(row[key]), is: "number", falls: true, ...more });

// A state or a use, with a mark of its colour.
const marked = (title, key, more) => ({
  ...plain(title, key, more),
  draw: (cell, row) => {
    if (!cell.firstChild) cell.append(element("i", { class: "mark" }), element("span"), element("small"));
    const [mark, word, reason] = cell.children;
    if (mark.dataset.of !== row[key]) mark.dataset.of = row[key];
    write(word, text(row[key]));
    write(reason, (more.below && row[more.below]) || "");
  },
});

// A trainer, and the way to what is known of it.
const trainerLink = (session, value) => ({
  title: "Trainer",
  value,
  text: (row) => text(value(row)),
  draw: (cell, row) => {
    const jobid = value(row);
    const known = session.state.trainers.some((trainer) => trainer.jobid === jobid);
    const wanted = known ? `#T${jobid}` : "";
    if (cell.dataset.shown === `${jobid}${wanted}`) return;
    cell.dataset.shown = `${jobid}${wanted}`;
    cell.replaceChildren(known ? element("a", { href: wanted }, String(jobid)) : text(jobid));
  },
});

const progress = {
  title: "Progress",
  hint: "samples done, of all that its owner asked for",
  value: ({ samples, total }) => (total > 0 ? samples / total : null),
  falls: true,
  text: ({ samples, total }) => (total > 0 ? `${decimals(100 * Math.min(1, samples / total), 1)} %` : NOTHING),
  draw: (cell, row) => {
    if (!cell.firstChild) cell.append(bar(), element("span", { class: "percent" }));
    const share = progress.value(row);
    fill(cell.firstChild, share);
    write(cell.lastChild, progress.text(row));
  },
};

const bar = () => element("span", { class: "bar", "aria-hidden": "true" }, element("i"));
const fill = (place, share) => {
  place.hidden = share === null;
  place.firstChild.style.width = `${100 * Math.min(1, share ?? 0)}%`;
};

export const trainersTable = (place, session, allocation) => {
  const scalings = new Map();
  const columns = [
    { ...plain("Job ID", "jobid"), draw: (button, row) => drawJob(button, row, allocation) },
    plain("Name", "name", { is: "name" }),
    plain("User", "user", { is: "lesser" }),
    plain("Account", "account", { is: "account" }),
    marked("State", "state", { below: "reason" }),
    { title: "Nodes", value: (row) => row.nodes, is: "number", falls: true, hint: "now; fewest-most",
      text: ({ nodes, min, max }) => `${nodes} (${min}-${max})` },
    progress,
    number("Samples", "samples", amount, { is: "number lesser" }),
    number("Samples/s", "samples_per_s", amount, { hint: "mean of the last five minutes, rescaling included" }),
    number("Time left", "time_left_s", duration, { falls: false, hint: "if it goes on as in the last five minutes" }),
    number("Loss", "loss", (loss) => decimals(loss, 4)),
    number("Node-hours", "harvested_node_s", nodeHours),
  ];
  const table = new Table(place, {
    name: "Trainers", columns, key: (row) => row.jobid, sorted: ["Job ID", false],
    empty: "no trainer is in the queue; sbatch --bftrainer=nodes=1-16 SCRIPT submits one",
    filter: "Filter trainers",
    details: (row, cell) => drawTrainer(row, cell, session, scalings),
  });
  const show = table.show.bind(table);
  table.show = (rows) => {
    for (const title of ["Name", "User", "Account"]) table.hide(title, session.state.jobs_are_private);
    const known = new Set(rows.map((row) => row.jobid));
    for (const jobid of scalings.keys()) if (!known.has(jobid)) scalings.delete(jobid);
    show(rows);
  };
  table.charts = () => [...scalings.values()];
  return table;
};

const drawJob = (button, { jobid }, allocation) => {
  if (!button.firstChild) button.append(element("i", { class: "swatch" }), String(jobid));
  button.firstChild.style.background = allocation.colourOf(jobid) ?? "transparent";
};

// Facts, how it scales, and what was decided about it.
const drawTrainer = (row, cell, session, scalings) => {
  if (!cell.firstChild) {
    const chart = element("div", { class: "chart", role: "img" });
    const counts = element("table", { class: "measured", "aria-label": "Measured throughput" });
    cell.append(element("div", { class: "trainer" },
      element("div", {}, element("dl"), element("ol", { class: "decided" })),
      element("div", {}, chart, counts)));
    scalings.set(row.jobid, new Scaling(chart));
  }
  const [left, right] = cell.firstChild.children;
  const [facts, decisions] = left.children;
  const [chart, counts] = right.children;
  showFacts(facts, row, session.state);
  scalings.get(row.jobid).place = chart;
  scalings.get(row.jobid).draw(row);
  const known = row.measured.map(([nodes, rate]) => `${amount(rate)}/s on ${nodes}`);
  chart.ariaLabel = `Throughput over nodes; measured: ${known.join(", ") || "nothing yet"}`;
  showMeasured(counts, row);
  const decided = session.state.decisions.filter(({ jobid }) => jobid === row.jobid).slice(0, 8);
  const lines = decided.map((it) => `${time(it.time, session.state.now)}  ${it.from} → ${it.to}  ${reason(it)}`);
  if (decisions.dataset.shown === lines.join("\n")) return;
  decisions.dataset.shown = lines.join("\n");
  decisions.replaceChildren(...lines.map((line) => element("li", {}, line)));
};

const showFacts = (list, row, { now }) => {
  const seconds = (value) => `${decimals(value, 1)} s`;
  const facts = [
    ["User, account", row.user && `${row.user}, ${row.account || NOTHING}`],
    ["Specification", row.specification],
    ["Why so many nodes", row.why],
    ["Nodes", row.node_list?.join(" ")],
    ["Classes it may use", row.classes?.filter(Boolean).join(", ")],
    ["Submitted", time(row.submit_time, now)],
    ["Generation", text(row.generation)],
    ["Epoch", row.epoch],
    ["Samples", `${count(row.samples)}${row.total ? ` of ${count(row.total)}` : ""}`],
    ["Rescales, preemptions", `${row.rescales}, ${row.preemptions}`],
    ["Cost of growing, shrinking", `${seconds(row.up_s)}, ${seconds(row.down_s)}`],
    ["Being measured at", row.profiled_at && `${row.profiled_at} nodes`],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const names = facts.map(([name]) => name).join();
  if (list.dataset.names !== names) {
    list.dataset.names = names;
    list.replaceChildren(...facts.flatMap(([name]) => [element("dt", {}, name), element("dd")]));
  }
  facts.forEach(([, value], index) => write(list.children[2 * index + 1], String(value)));
};

const showMeasured = (table, { measured }) => {
  const same = JSON.stringify(measured.map(([nodes, rate, seconds]) => [nodes, amount(rate), Math.round(seconds)]));
  if (table.dataset.shown === same) return;
  table.dataset.shown = same;
  const line = (tag, cells) => element("tr", {}, ...cells.map((cell) => element(tag, {}, cell)));
  const rows = measured.map(([nodes, rate, seconds]) =>
    line("td", [String(nodes), amount(rate), duration(seconds)]));
  table.hidden = rows.length === 0;
  table.replaceChildren(...(rows.length ? [line("th", ["Nodes", "Samples/s", "Measured for"]), ...rows] : []));
};

// Uses in the order of a node's stay.
const USES = ["training", "ready", "starting", "assigned", "stopping", "leaving", "idle", "quarantine"];

export const nodesTable = (place, session) => {
  const summary = element("p", { class: "hint" });
  place.append(summary);
  const table = new Table(place, {
    name: "Nodes", key: (row) => row.node, sorted: ["Node", false], most: 50,
    empty: "no node is idle or held by a trainer", filter: "Filter nodes",
    columns: [
      plain("Node", "node"),
      marked("Use", "use", {}),
      trainerLink(session, (row) => row.jobid),
      { title: "In the pool for", value: (row) => session.state.now - row.joined, is: "number lesser", falls: true,
        text: (row) => duration(session.state.now - row.joined) },
      { title: "Hole ends", value: (row) => row.hole_end, is: "number",
        hint: "when a planned job or a reservation takes the node",
        text: ({ hole_end }) => (hole_end === null ? "not known" : time(hole_end, session.state.now)) },
      { title: "In", value: (row) => row.hole_end, is: "number",
        text: ({ hole_end }) => (hole_end === null ? NOTHING : duration(hole_end - session.state.now)) },
      plain("Class", "class", { is: "lesser" }),
      plain("Reason", "reason", { is: "words" }),
    ],
  });
  return ({ nodes, excluded_nodes: excluded }) => {
    place.hidden = nodes === null;
    if (nodes === null) return;
    const uses = USES.map((use) => [nodes.filter((node) => node.use === use).length, use]);
    const counted = uses.filter(([many]) => many > 0).map(([many, use]) => `${many} ${use}`);
    const names = Object.keys(excluded ?? {});
    if (names.length) counted.push(`left alone by command: ${names.join(" ")}`);
    write(summary, counted.join(" · "));
    table.show(nodes);
  };
};

// What the columns beside it say already is left out of a reason.
const reason = ({ jobid, from, to, reason: words }) => {
  const rest = text(words).replace(new RegExp(`^T${jobid}: `), "");
  return rest.startsWith(`${from} -> ${to} nodes: `) ? rest.slice(rest.indexOf(": ") + 2) : rest;
};

export const decisionsTable = (place, session) => new Table(place, {
  name: "Last decisions", sorted: ["Time", true], most: 25,
  key: (row) => `${row.time} ${row.jobid} ${row.from} ${row.to} ${row.reason}`,
  empty: "nothing was decided yet", filter: "Filter decisions",
  columns: [
    { title: "Time", value: (row) => row.time, falls: true, text: (row) => time(row.time, session.state.now) },
    trainerLink(session, (row) => row.jobid),
    { title: "Nodes", value: (row) => row.to - row.from, is: "number", text: ({ from, to }) => `${from} → ${to}` },
    { title: "Reason", value: reason, text: reason, is: "words" },
  ],
});

// The rows of `bftrainer history`, summed up by some of their columns.
export const harvestTable = (place) => {
  let most = 1;
  const sum = element("p", { class: "hint" });
  place.append(sum);
  const bars = {
    title: "", is: "bars",
    draw: (cell, row) => {
      if (!cell.firstChild) cell.append(bar());
      fill(cell.firstChild, row.harvested_node_s / most);
    },
  };
  const table = new Table(place, {
    name: "Node-hours harvested", sorted: ["Day", true],
    key: (row) => `${row.day} ${row.user} ${row.account}`, empty: "nothing was harvested yet",
    columns: [plain("Day", "day", { falls: true }), plain("User", "user"), plain("Account", "account"),
      number("Node-hours", "harvested_node_s", nodeHours), bars],
  });
  return (rows, by) => {
    if (rows === null) return write(sum, "node-hours can't be read now; bftrainerd's log says why");
    const hasNames = rows.some((row) => row.user !== undefined);
    const kept = hasNames ? by : ["day"];
    document.getElementById("harvest-by").hidden = !hasNames;
    const sums = new Map();
    for (const row of rows) {
      const key = kept.map((name) => row[name]).join("\n");
      const known = sums.get(key) ?? { harvested_node_s: 0 };
      for (const name of kept) known[name] = row[name];
      known.harvested_node_s += row.harvested_node_s;
      sums.set(key, known);
    }
    for (const name of ["Day", "User", "Account"]) table.hide(name, !kept.includes(name.toLowerCase()));
    if (!kept.includes(table.sortedBy.toLowerCase()) && table.sortedBy !== "Node-hours")
      [table.sortedBy, table.descending] = kept.includes("day") ? ["Day", true] : ["Node-hours", true];
    most = Math.max(1, ...[...sums.values()].map((row) => row.harvested_node_s));
    const total = rows.reduce((all, row) => all + row.harvested_node_s, 0);
    write(sum, `${nodeHours(total)} node-hours in the last 31 days (UTC), to the last minute or so`);
    table.show([...sums.values()]);
  };
};
