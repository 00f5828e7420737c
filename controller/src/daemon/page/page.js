// Keeps the page up to date: asks bftrainerd what is so now, again and again.
import { Allocation } from "./charts.js";
import { count, decimals, nodeHours, time } from "./format.js";
import { element, write } from "./table.js";
import { decisionsTable, harvestTable, nodesTable, trainersTable } from "./tables.js";

const EVERY_MS = 2000;
// An answer that takes longer does not come.
const PATIENCE_MS = 15000;
const HARVEST_EVERY_MS = 60000;
const KEPT_S = 86400;

const place = (id) => document.getElementById(id);
const session = { state: null, harvest: [], lostAt: null, version: null, timer: null };

const nameOf = (jobid) => {
  const known = session.state?.trainers.find((trainer) => trainer.jobid === jobid);
  return known?.name ? `${jobid} ${known.name}` : String(jobid);
};
const allocation = new Allocation(place("allocation"), place("at-cursor"), nameOf);
const trainers = trainersTable(place("trainers"), session, allocation);
const nodes = nodesTable(place("nodes"), session);
const decisions = decisionsTable(place("decisions"), session);
const harvest = harvestTable(place("harvest"));

const ask = async (path) => {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
};

const showHarvest = () =>
  harvest(session.harvest, document.querySelector("#harvest-by input:checked").value.split(" "));

// The rest of the page goes on without it.
const loadHarvest = async () => {
  session.harvestAt = Date.now();
  try {
    session.harvest = await ask("/harvest.json");
    showHarvest();
  } catch {
    harvest(null);
  }
};

const poll = async () => {
  clearTimeout(session.timer);
  try {
    const news = await load();
    if (news) show(news);
  } finally {
    // When nobody looks it goes on as soon as somebody does.
    if (!document.hidden) session.timer = setTimeout(poll, EVERY_MS);
  }
};

// The state, after whatever else the page lacks; nothing when there is no answer.
const load = async () => {
  const begins = session.state === null || session.lostAt !== null;
  try {
    const state = await ask("/state.json");
    const misses = allocation.add(state.points, state.step_s);
    if (begins || misses) allocation.add((await ask("/timeline.json")).points, state.step_s);
    if (begins || Date.now() - session.harvestAt > HARVEST_EVERY_MS) await loadHarvest();
    session.lostAt = null;
    return state;
  } catch (error) {
    lost(error);
    return null;
  }
};

const lost = (error) => {
  session.lostAt ??= Date.now() / 1000;
  const since = time(session.lostAt, Date.now() / 1000);
  // Where nobody answers there is a TypeError (Fetch standard, "network error").
  const said = error instanceof TypeError || error.name === "TimeoutError"
    ? "bftrainerd does not answer" : error.message;
  document.body.classList.add("lost");
  write(place("connection"), `${said}, since ${since}; what is shown is from then, it is asked again`);
};

const show = (state) => {
  session.state = state;
  session.version ??= state.version;
  document.body.classList.remove("lost");
  write(place("connection"), `live, ${time(state.now, state.now)}`);
  write(place("where"), [state.host, `partition ${state.partition}`, `version ${state.version}`]
    .filter(Boolean).join(" · "));
  document.title = `BFTrainer: ${state.counts.training} of ${state.counts.pool} nodes train`;
  showNotice(state);
  allocation.keep(state.now - KEPT_S, state.now);
  allocation.draw(state.now);
  showFigures(state);
  trainers.show(state.trainers);
  nodes(state);
  decisions.show(state.decisions);
};

const MODES = {
  paused: "paused by an administrator: no idle node is taken",
  drained: "drained by an administrator: all nodes are given back, trainers wait",
};

// What somebody who looks must know first.
const showNotice = (state) => {
  const notices = [
    !state.has_seen && "slurmctld has not answered yet since bftrainerd started",
    state.failed_looks_in_a_row > 0 && "slurmctld does not answer: nothing changes until it does",
    MODES[state.mode],
    state.jobs_are_private && "PrivateData=jobs in slurm.conf: no names and no reasons are shown here",
    state.version !== session.version && "bftrainerd has been replaced: load this page anew",
  ].filter(Boolean);
  place("notice").hidden = notices.length === 0;
  write(place("notice"), notices.join("; "));
};

const showFigures = ({ counts, trainers: all, agents, plain_jobs }) => {
  const running = all.filter((trainer) => trainer.nodes > 0).length;
  const { pool_node_s, training_node_s } = allocation.sums();
  const span = `in ${allocation.span_s / 3600} h`;
  const figures = [
    ["Pool", count(counts.pool), "nodes that are idle or held by trainers"],
    ["Training", count(counts.training), "nodes on which ranks run"],
    ["Start or stop", count(Math.max(0, counts.held - counts.training)), "held nodes without running ranks"],
    ["Idle", count(counts.pool - counts.held), "nodes of the pool that nobody has"],
    ["Quarantine", count(counts.quarantined), "nodes left alone after a failure"],
    ["Trainers", `${running} of ${all.length}`, "trainers with nodes, of all in the queue"],
    ["Agents", count(agents), "worker agents that are connected"],
    ["Plain jobs", count(plain_jobs), "jobs in the partition that are no trainers"],
    [`Used ${span}`, pool_node_s > 0 ? `${decimals(100 * training_node_s / pool_node_s, 1)} %` : "–",
      "share of the pool's node-time in which ranks ran, over the time that the chart shows"],
    [`Node-h ${span}`, nodeHours(training_node_s), "in which ranks ran, over the time that the chart shows"],
  ];
  const list = place("figures");
  if (!list.children.length) {
    for (const [, , hint] of figures)
      list.append(element("div", { title: hint }, element("dt"), element("dd")));
  }
  figures.forEach(([name, value], index) => {
    write(list.children[index].firstChild, name);
    write(list.children[index].lastChild, value);
  });
};

// A trainer that the address names is opened.
const openNamed = () => {
  const [, jobid] = location.hash.match(/^#T(\d+)$/) ?? [];
  if (jobid) trainers.open(Number(jobid));
};

place("span").addEventListener("change", ({ target }) => {
  allocation.span_s = Number(target.value);
  allocation.follow = true;
  if (session.state) show(session.state);
});
place("harvest-by").addEventListener("change", showHarvest);
addEventListener("hashchange", openNamed);
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
const resize = () => [allocation, ...trainers.charts()].forEach((chart) => chart.resize());
addEventListener("resize", resize);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
await poll();
openNamed();
