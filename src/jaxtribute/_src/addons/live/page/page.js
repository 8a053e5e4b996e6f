"use strict";
// Everything that a job tells is put into the page as text, never as HTML.

const byId = (id) => document.getElementById(id);

// Control characters, and those that turn the direction of what follows, are shown as what they are: no letters.
const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const plain = (text) => String(text).replace(unseen, "\ufffd");
const short = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

function element(tag, options = {}, children = []) {
  const made = document.createElement(tag);
  if (options.text !== undefined) made.textContent = plain(options.text);
  if (options.class) made.className = options.class;
  if (options.title) made.title = plain(options.title);
  made.append(...children.map((child) => (typeof child === "string" ? plain(child) : child)));
  return made;
}

function fill(parent, children) {
  parent.replaceChildren(...children);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (value < 100) return `${value.toFixed(1)} s`;
  if (value < 6000) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${Math.floor(value / 3600)}:${String(Math.floor((value % 3600) / 60)).padStart(2, "0")} h`;
  return `${(value / 86400).toFixed(1)} days`;
}

function bytes(value) {
  if (!value) return "0 B";
  let unit = 0;
  const units = ["B", "KB", "MB", "GB", "TB"];
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}

function count(value) {
  if (!value) return "0";
  return value < 100 ? Number(value.toPrecision(3)).toString() : Math.round(value).toLocaleString("en");
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const clock = (moment) => new Date(moment * 1000).toLocaleTimeString([], { hour12: false });
// Names of classes come from the page's own list, not from what a job tells.
const known = new Set(["step", "input", "collective", "wait", "save", "flush", "compile", "recovery", "restore",
  "lost", "failed", "silent", "other", "python", "ended", "starting", "closure"]);
const kind = (name) => (known.has(name) ? name : "other");

function bar(parts, state, small) {
  const total = Object.values(parts).reduce((sum, value) => sum + value, 0) || 1;
  return state.parts.filter((name) => parts[name] > 0).map((name) => {
    const share = parts[name] / total;
    const piece = element("i", { class: kind(name), title: `${state.labels[name]}: ${seconds(parts[name])}, ${percent(share)}` });
    piece.style.width = `${100 * share}%`;
    if (small) piece.title = `${state.labels[name]} ${percent(share)}`;
    return piece;
  });
}

function showFigures(state) {
  const total = Object.values(state.goodput).reduce((sum, value) => sum + value, 0) || 1;
  const rates = state.rates;
  const shown = [
    [percent(state.goodput.step / total), "goodput"],
    [count(state.steps), "steps"],
    [count(["runs", "starts"].includes(state.status) ? rates.examples_now : rates.examples), "examples per second"],
    [seconds(state.step.p50), "step time, median"],
    [seconds(state.step.p99), "step time, 99th percentile"],
    [seconds(state.goodput.compile), "compilation, not in step times"],
  ];
  if (state.step.predicted) {
    shown.push([`${seconds(state.step.predicted)}`, `predicted step time; measured is ${(state.step.p50 / state.step.predicted).toFixed(2)} of it`]);
  }
  const workers = state.workers.length === 1 ? "worker" : "workers";
  shown.push([count(state.workers.length), state.starts > 1 ? `${workers}, start ${state.starts}` : workers]);
  if (state.islands) {
    const found = state.islands;
    shown.push([`${found.members.length} of ${state.workers.length}`, `islands train together, view ${found.view}`]);
    shown.push([seconds(found.recovery), `of steps, for ${found.changes} change${found.changes === 1 ? "" : "s"} of islands`]);
  }
  fill(byId("figures"), shown.map(([value, label]) =>
    element("div", { class: "figure" }, [element("b", { text: value }), element("span", { text: label })])));
}

function showBar(state) {
  const total = Object.values(state.goodput).reduce((sum, value) => sum + value, 0) || 1;
  const box = byId("bar");
  fill(box, bar(state.goodput, state, false));
  const words = state.parts.map((name) => `${state.labels[name]} ${percent(state.goodput[name] / total)}`);
  box.setAttribute("aria-label", words.join(", "));
  fill(byId("legend"), state.parts.filter((name) => state.goodput[name] >= 0.0005 * total).map((name) => element("span", {}, [
    element("i", { class: kind(name) }),
    `${state.labels[name]} ${percent(state.goodput[name] / total)} (${seconds(state.goodput[name])})`,
  ])));
}

// Round values that divide a range into about so many parts.
function ticks(low, high, parts) {
  const wide = (high - low) / parts;
  const power = 10 ** Math.floor(Math.log10(wide));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= 0.999 * wide);
  const from = Math.ceil(low / step - 1e-6);
  return Array.from({ length: Math.floor(high / step + 1e-6) - from + 1 }, (_, i) => (from + i) * step);
}

function shape(kind, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function chart(title, points, format) {
  const values = points.map((point) => point[1]);
  const room = Math.max(...values) - Math.min(...values) || Math.abs(values[0]) || 1;
  const low = Math.min(...values) - (room > 0 && Math.min(...values) >= 0 ? Math.min(0.05 * room, Math.min(...values)) : 0.05 * room);
  const high = Math.max(...values) + 0.05 * room;
  const first = points[0][0], last = points[points.length - 1][0];
  const x = (moment) => (last > first ? (100 * (moment - first)) / (last - first) : 50);
  const y = (value) => 100 - (100 * (value - low)) / (high - low);
  const svg = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": plain(title) });
  const marks = ticks(low, high, 3);
  for (const mark of marks) svg.append(shape("line", { x1: 0, x2: 100, y1: y(mark), y2: y(mark) }));
  const moments = last > first ? [0, 0.5, 1].map((share) => first + share * (last - first)) : [first];
  svg.append(shape("path", {
    d: points.map((point, i) => `${i ? "L" : "M"}${x(point[0]).toFixed(2)} ${y(point[1]).toFixed(2)}`).join(""),
  }));
  const scale = element("div", { class: "scale" }, marks.map((mark) => element("span", { text: format(Number(mark.toPrecision(6))) })));
  marks.forEach((mark, i) => { scale.children[i].style.top = `${y(mark)}%`; });
  return element("div", { class: "chart" }, [
    element("h3", {}, [element("span", { text: title, title }), element("span", { text: `now ${format(values[values.length - 1])}` })]),
    element("div", { class: "plot" }, [scale, svg]),
    element("div", { class: "axis" }, moments.map((moment) => element("span", { text: clock(moment) }))),
  ]);
}

function showCharts(state) {
  const charts = [];
  for (const [name, points] of Object.entries(state.metrics).slice(0, 12)) {
    if (points.length > 1) charts.push(chart(name, points.map((point) => [point[0], point[2]]), (v) => Number(v.toPrecision(4)).toString()));
  }
  const speed = state.speed;
  if (speed.length > 2) {
    charts.push(chart("examples per second", speed.map((point) => [point[0], point[2]]), count));
    charts.push(chart("steps per second", speed.map((point) => [point[0], point[1]]), count));
  }
  const servers = state.parameter_servers;
  if (servers && servers.queue.length > 2) charts.push(chart("queued closures", servers.queue, count));
  byId("charts").hidden = charts.length === 0;
  fill(byId("charts"), charts);
}

function row(worker, state) {
  const total = Object.values(worker.bar).reduce((sum, value) => sum + value, 0) || 1;
  const memory = worker.memory.length
    ? worker.memory.map(([used, all]) => (all ? `${bytes(used)} of ${bytes(all)}` : bytes(used))).join(", ")
    : worker.rss ? `${bytes(worker.rss)} (host)` : "–";
  const words = element("td", { class: "words" }, [element("i", { class: `dot ${kind(worker.event)}` }), short(worker.words, 200)]);
  // On narrow screens there is no column for the time.
  const over = ["ended", "failed"].includes(worker.event);
  const since = over ? `${seconds(worker.seconds)} ago` : `for ${seconds(worker.seconds)}`;
  if (worker.seconds !== null) words.append(element("small", { class: "narrow", text: since }));
  if (worker.where) words.append(element("small", { text: short(worker.where, 200) }));
  const small = element("div", { class: "bar small" }, bar(worker.bar, state, true));
  return element("tr", {}, [
    cell(`${worker.rank}`), cell(short(worker.host, 30), "wide"), words, cell(seconds(worker.seconds), "number wide"),
    cell(count(worker.steps), "number"), cell(seconds(worker.p50), "number"), cell(seconds(worker.p99), "number"),
    cell(percent(worker.bar.step / total), "number"), element("td", { class: "wide" }, [small]),
    cell(memory, "number wide"),
    cell(worker.position === null || worker.position === undefined ? "–" : `batch ${worker.position}`, "number wide"),
    cell(`${Math.max(0, worker.starts - 1)}`, "number wide"),
  ]);
}

function showWorkers(state) {
  const heads = [["worker"], ["host", "wide"], ["state"], ["since", "number wide"], ["step", "number"], ["median", "number"],
    ["p99", "number"], ["goodput", "number"], ["time", "wide"], ["memory", "number wide"], ["input", "number wide"],
    ["restarts", "number wide"]];
  const table = byId("workers");
  fill(table.tHead, [element("tr", {}, heads.map(([text, name]) => element("th", { text, class: name })))]);
  const many = state.workers.length > 8;
  const alike = {};
  for (const worker of state.workers) alike[worker.event] = (alike[worker.event] || 0) + 1;
  // Of many, those that do what few others do come first.
  const sorted = many ? state.workers.slice().sort((a, b) => alike[a.event] - alike[b.event] || a.rank - b.rank) : state.workers;
  fill(table.tBodies[0], sorted.map((worker) => row(worker, state)));
  byId("grid").hidden = !many;
  fill(byId("grid"), many ? state.workers.map((worker) =>
    element("span", { text: `${worker.rank}`, class: kind(worker.event), title: `worker ${worker.rank}: ${worker.words}` })) : []);
}

const cell = (text, name) => element("td", { text, class: name });
const rate = (value, format) => (value === null ? "–" : `${format(value)}/s`);

function table(id, heads, rows) {
  fill(byId(id).tHead, [element("tr", {}, heads.map(([text, name]) => element("th", { text, class: name })))]);
  fill(byId(id).tBodies[0], rows.map((cells) => element("tr", {}, cells)));
}

function words(task) {
  return element("td", { class: "words" }, [element("i", { class: `dot ${kind(task.event)}` }), short(task.words, 200)]);
}

function showServers(state) {
  const found = state.parameter_servers;
  byId("servers").hidden = !found;
  if (!found) return;
  const queue = found.coordinator;
  const figures = queue ? [
    [count(queue.waiting), "closures queued"], [count(queue.running), "running"],
    [count(queue.done), "done"], [count(queue.failed), "failed"],
  ] : [];
  const absent = queue && queue.absent.length ? `; not there: worker ${queue.absent.join(", ")}` : "";
  byId("coordinator").textContent = queue ? `The coordinator: ${queue.words}${absent}` : "";
  fill(byId("queue"), figures.map(([value, label]) =>
    element("div", { class: "figure" }, [element("b", { text: value }), element("span", { text: label })])));
  table("tasks", [["server"], ["host", "wide"], ["state"], ["size", "number"], ["arrays", "number wide"],
    ["requests", "number wide"], ["now", "number"], ["busy", "number"], ["queued", "number"], ["restarts", "number wide"]],
  found.servers.map((task) => [
    cell(task.name), cell(short(task.host, 30), "wide"), words(task), cell(bytes(task.bytes), "number"),
    cell(count(task.shards), "number wide"), cell(count(task.requests), "number wide"),
    cell(rate(task.requests_rate, count), "number"),
    cell(task.busy_rate === null ? "–" : percent(Math.min(1, task.busy_rate)), "number"),
    cell(count(task.waiting), "number"), cell(`${task.restarts}`, "number wide"),
  ]));
  table("stale-workers", [["worker"], ["pulls", "number"], ["mean staleness", "number"], ["last", "number"],
    ["max", "number"], ["pushes", "number wide"], ["received", "number wide"], ["sent", "number wide"]],
  found.workers.map((task) => [
    cell(`${task.index}`), cell(count(task.pulls), "number"), cell(task.stale === null ? "–" : task.stale.toFixed(2), "number"),
    cell(count(task.behind_now), "number"), cell(count(task.most_behind), "number"), cell(count(task.pushes), "number wide"),
    cell(`${bytes(task.received)}${task.received_rate === null ? "" : `, ${bytes(task.received_rate)}/s`}`, "number wide"),
    cell(`${bytes(task.sent)}${task.sent_rate === null ? "" : `, ${bytes(task.sent_rate)}/s`}`, "number wide"),
  ]));
}

let shownEvents = "";

function showEvents(state) {
  const told = JSON.stringify(state.events);
  if (told === shownEvents) return; // a traceback that somebody reads stays open
  shownEvents = told;
  byId("quiet").hidden = state.events.length > 0;
  fill(byId("events"), state.events.slice().reverse().map((event) => {
    const who = event.rank === null ? "" : `worker ${event.rank}: `;
    const took = event.seconds === null ? "" : ` (${seconds(event.seconds)})`;
    const item = element("li", {}, [
      element("time", { text: clock(event.time) }),
      element("span", { text: `${event.kind}  `, class: event.kind === "failure" ? "failure" : "quiet" }),
      `${who}${short(event.text, 500)}${took}`,
    ]);
    if (event.details) item.append(element("details", {}, [element("summary", { text: "traceback" }), element("pre", { text: event.details })]));
    return item;
  }));
}

function show(state) {
  document.title = `${state.name}: ${state.status}`;
  byId("name").textContent = plain(state.name);
  const status = byId("status");
  status.textContent = state.status;
  status.className = `chip ${["runs", "done"].includes(state.status) ? "good" : ["failed", "stopped"].includes(state.status) ? "bad" : ""}`;
  byId("wall").textContent = `${seconds(state.wall)} since ${new Date(state.started * 1000).toLocaleString([], { hour12: false })}`;
  byId("command").textContent = plain(state.command);
  fill(byId("notices"), state.notices.map((text) => element("li", { text: short(text, 500) })));
  showFigures(state);
  showBar(state);
  showCharts(state);
  showWorkers(state);
  showServers(state);
  showEvents(state);
}

async function look() {
  const stale = byId("stale");
  try {
    const answer = await fetch(`state.json${location.search}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    stale.hidden = true;
    if (!document.body.dataset.ready) performance.mark("ready");
    document.body.dataset.ready = "yes";
  } catch (error) {
    stale.textContent = `The page is not up to date: ${error.message}`;
    stale.hidden = false;
  }
  setTimeout(look, document.hidden ? 10000 : 1500);
}

look();
