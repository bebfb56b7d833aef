// The page of a node: asks for the cluster once a second, and shows it. It changes nothing there.
//
// Each answer is drawn anew as elements, and what is shown is changed to be like them (`morph`), so
// that the focus, a selection and scrolled places stay. Texts from outside only become text nodes
// and values of attributes, never markup.

import uPlot from "./uPlot.esm.js";

const EVERY_MS = 1000;
const WHY_EVERY_MS = 2000;
const AWAY_MS = 5000;
const RATE_SECONDS = 4;
const NARROW = 700;
const FEW = 6;

const at = (id) => document.getElementById(id);

// -- state ------------------------------------------------------------------------------------------

let clusters = [];        // the last answer: snapshots
let before = [];          // the snapshots of some seconds before, oldest first
let reasons = [];         // by app
let chosen = chosenInAddress();
let token = "";
let lastAnswer = 0;
let failure = "";
let asked = null;         // the key that is shown: app, pe, key
let chart = null;

function chosenInAddress() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

// -- numbers ----------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

const count = (n) => (n === null || n === undefined ? "unknown" : n < 10000 ? whole.format(Math.round(n)) : short.format(n));
const rate = (n) => (n === null || n === undefined ? "" : `${n && n < 10 ? n.toPrecision(2) : count(n)}/s`);
const percent = (part) => `${(100 * part).toFixed(part && part < 0.01 ? 1 : 0)} %`;

function seconds(s) {
  if (s >= 172800) return `${(s / 86400).toFixed(0)} days`;
  if (s >= 7200) return `${(s / 3600).toFixed(1)} h`;
  if (s >= 120) return `${(s / 60).toFixed(0)} min`;
  if (s >= 1) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s <= 0) return "0 s";
  if (s >= 1e-3) return `${(s * 1e3).toFixed(s < 1e-2 ? 1 : 0)} ms`;
  return `${(s * 1e6).toFixed(s < 1e-5 ? 1 : 0)} µs`;
}

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1000;
    unit += 1;
  }
  return `${unit && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

function moment(ms) {
  const time = new Date(ms);
  if (Number.isNaN(time.getTime())) return String(ms);
  const day = new Date().toDateString() === time.toDateString() ? "" : `${time.toLocaleDateString("sv")} `;
  return day + time.toLocaleTimeString("sv");
}

// -- elements ---------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== ""));
  return element;
}

const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const name = (text) => h("span", { class: "name" }, String(text));
const note = (text) => h("p", { class: "note" }, text);

/** Make the children of `old` like those of `fresh`, and keep what is the same. */
function morph(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) {
    if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  }
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = wanted.dataset?.key;
    const known = key === undefined ? null : keyed.get(key);
    if (known && known !== place) {
      old.insertBefore(known, place);
      place = known;
    }
    if (!place) {
      old.append(wanted);
      continue;
    }
    const next = place.nextSibling;
    if (place.nodeName !== wanted.nodeName || place.dataset?.key !== key) {
      if (keyed.has(place.dataset?.key)) {
        old.insertBefore(wanted, place);
        continue;
      }
      place.replaceWith(wanted);
    } else if (place.nodeType === Node.TEXT_NODE) {
      if (place.data !== wanted.data) place.data = wanted.data;
    } else {
      for (const { name: attribute } of [...place.attributes]) {
        if (!wanted.hasAttribute(attribute) && attribute !== "open") place.removeAttribute(attribute);
      }
      for (const { name: attribute, value } of wanted.attributes) {
        if (place.getAttribute(attribute) !== value) place.setAttribute(attribute, value);
      }
      morph(place, wanted);
    }
    place = next;
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const show = (id, ...children) => morph(at(id), h("div", {}, ...children));

/** A table; a column is [title, kind], where the kind is "", "number" or "long". */
function table(columns, rows) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map(({ key, cells }) =>
    h("tr", { "data-key": key }, cells.map((cell, index) =>
      h("td", { class: columns[index][1] || null, "data-label": index ? columns[index][0] : null }, cell))));
  return h("div", { class: "scroll", tabindex: 0, role: "group" },
    h("table", { class: "stack" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

function bar(part, width, full = false) {
  const length = Math.max(0, Math.min(1, part)) * width;
  return s("svg", { width, height: 6, "aria-hidden": "true" },
    s("rect", { class: "track", width, height: 6, rx: 3 }),
    s("rect", { class: full ? "bar full" : "bar", width: length.toFixed(1), height: 6, rx: 3 }));
}

// -- what is known of an app ------------------------------------------------------------------------

/** The apps of all clusters, each with its snapshot. */
function apps() {
  return clusters.flatMap((snapshot) => snapshot.apps.map((app) => ({
    id: clusters.length > 1 ? `${snapshot.cluster}/${app.name}` : app.name, app, snapshot,
  })));
}

const current = () => apps().find(({ id }) => id === chosen) ?? apps()[0] ?? null;
const of = (rows, app) => (rows ?? []).filter((row) => row.app === app.name);
const reasonsOf = ({ app, snapshot }) =>
  reasons.find((each) => each.app === app.name && each.cluster === snapshot.cluster);

/** The snapshot some seconds before this one, of the same server; or null. */
function earlier(snapshot) {
  for (const one of before) {
    const was = one.find((each) => each.cluster === snapshot.cluster && each.folder === snapshot.folder);
    if (was && was.time < snapshot.time) return was;
  }
  return null;
}

/** How much a count of a row gained each second; null while that is unknown. */
function gained(snapshot, rows, row, field, same) {
  const past = earlier(snapshot);
  const was = past?.[rows]?.find((each) => same.every((one) => each[one] === row[one]));
  if (!was || was[field] > row[field]) return null;
  return (row[field] - was[field]) / (snapshot.time - past.time);
}

// -- sections ---------------------------------------------------------------------------------------

function drawHead() {
  const names = clusters.map((each) => each.cluster).join(", ");
  at("cluster").textContent = names;
  document.title = names ? `${names} · s4node` : "s4node";
  const list = apps();
  const here = current();
  morph(at("apps"), h("div", {}, list.length < 2 ? null : list.map((each) => {
    const found = reasonsOf(each)?.reasons.length ?? 0;
    const held = found ? h("small", { class: "bad" }, "held up") : null;
    const state = each.app.state === "running" ? held : h("small", { class: "warn" }, each.app.state);
    return h("a", { href: `#${encodeURIComponent(each.id)}`, "data-key": each.id, "aria-current": each.id === here.id ? "true" : null }, name(each.id), state);
  })));
}

function drawWhy(here) {
  const found = reasonsOf(here);
  const title = here.app.name;
  if (!found) {
    show("why", h("div", {}, h("h2", {}, name(title)), h("p", {}, "looking for what holds it up")));
  } else if (!found.reasons.length) {
    show("why", h("div", { class: "calm" }, h("h2", {}, "Nothing holds ", name(title), " up"),
      h("p", {}, `Its busiest container works ${percent(found.busy)} of the time.`)));
  } else {
    show("why", h("div", { class: "held" }, found.reasons.map((reason, index) =>
      h("div", { class: "reason" },
        h("h2", {}, index ? null : [name(title), ": "], reason.text),
        h("p", {}, `To do: ${reason.do}.`)))));
  }
}

const HEIGHT = 66;
const WIDE_PE = 204;
const WIDE_STREAM = 164;
const NARROW_BOX = 138;   // two of them fit on a telephone, and five beside each other on most screens
const GAP = 30;

/** The nodes of the graph, which are PEs, streams and other apps, and its edges, which wait or not. */
function graphOf({ app, snapshot }) {
  const flows = of(snapshot.flows, app);
  const nodes = new Map();
  const edges = [];
  const put = (id, kind, text, more = {}) => {
    if (!nodes.has(id)) nodes.set(id, { id, kind, text, layer: 0, ...more });
  };
  const shown = flows.filter((flow) => flow.sources.length || flow.targets.length);
  for (const flow of shown) {
    const stages = of(snapshot.stages, app).filter((row) => row.stream === flow.stream);
    const queue = stages.find((row) => row.stage === "stream");
    const counted = queue ?? stages.find((row) => row.stage === "sender") ?? stages[0];
    const full = Math.max(0, ...stages.filter((row) => row.executor !== "throttle").map((row) => row.fullest));
    const depth = stages.reduce((sum, row) => sum + row.depth, 0);
    const lost = stages.reduce((sum, row) => sum + Object.values(row.shed).reduce((a, b) => a + b, 0) + row.left_out + row.unsendable, 0);
    const waited = Math.max(0, ...stages.map((row) => row.waited_last));
    const waits = full >= 0.8;
    const stream = `stream ${flow.stream}`;
    put(stream, "stream", flow.stream, { rate: counted?.rate, depth, waited, full, waits, lost, grade: flow.grade });
    for (const pe of flow.sources) {
      put(`pe ${pe}`, "pe", pe);
      edges.push({ from: `pe ${pe}`, to: stream, waits });
    }
    for (const pe of flow.targets) {
      put(`pe ${pe}`, "pe", pe);
      edges.push({ from: stream, to: `pe ${pe}`, waits });
    }
    const between = snapshot.streams.find((each) => each.stream === flow.stream);
    const own = `${snapshot.cluster}.${app.name}`;
    const readers = between && between.producers.includes(own) ? between.consumers.filter((each) => each !== own) : [];
    for (const reader of readers) {
      const waiting = of(snapshot.outboxes, app).filter((row) => row.stream === flow.stream && row.consumer === reader);
      put(`app ${reader}`, "app", reader, { depth: waiting.reduce((sum, row) => sum + row.depth, 0) });
      edges.push({ from: stream, to: `app ${reader}`, waits });
    }
  }
  layered(nodes, edges);
  return { nodes: [...nodes.values()], edges };
}

/** Give each node its layer, the longest way to it; an edge that closes a circle leads `back`. */
function layered(nodes, edges) {
  const after = new Map([...nodes.keys()].map((id) => [id, []]));
  const entered = new Set(edges.map((edge) => edge.to));
  for (const edge of edges) after.get(edge.from).push(edge);
  const done = new Set();
  const order = [];
  const visit = (id, path) => {
    path.add(id);
    done.add(id);
    for (const edge of after.get(id)) {
      if (path.has(edge.to)) edge.back = true;
      else if (!done.has(edge.to)) visit(edge.to, path);
    }
    path.delete(id);
    order.push(id);
  };
  const roots = [...nodes.keys()].filter((id) => !entered.has(id));
  for (const id of [...roots, ...nodes.keys()]) if (!done.has(id)) visit(id, new Set());
  for (const id of order.reverse()) {
    for (const edge of after.get(id)) {
      if (!edge.back) nodes.get(edge.to).layer = Math.max(nodes.get(edge.to).layer, nodes.get(id).layer + 1);
    }
  }
}

/** Give the nodes their places, in columns from left to right, or in rows if it is narrow. */
function placed({ nodes, edges }, narrow, room) {
  const layers = [];
  for (const node of nodes) (layers[node.layer] ??= []).push(node);
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const filled = layers.filter(Boolean);
  for (const layer of filled) {  // near those before
    for (const node of layer) {
      const froms = edges.filter((edge) => edge.to === node.id && !edge.back).map((edge) => byId.get(edge.from).order ?? 0);
      node.order = froms.length ? froms.reduce((a, b) => a + b, 0) / froms.length : 0;
    }
    layer.sort((a, b) => a.order - b.order);
    layer.forEach((node, index) => { node.order = index - (layer.length - 1) / 2; });
  }
  const most = Math.max(...filled.map((layer) => layer.length));
  const wide = (node) => (node.kind === "stream" ? WIDE_STREAM : WIDE_PE);
  const widest = (layer) => Math.max(...layer.map(wide));
  const fits = !narrow && filled.reduce((sum, layer) => sum + widest(layer) + GAP, 0) - GAP + 3 <= room;
  const widthOf = (node) => (fits ? wide(node) : NARROW_BOX);
  let along = 1;
  for (const layer of filled) {
    const width = fits ? widest(layer) : NARROW_BOX;
    layer.forEach((node, index) => {
      const across = index + (most - layer.length) / 2;
      node.width = widthOf(node);
      node.height = HEIGHT;
      node.x = narrow ? across * (NARROW_BOX + 10) + 1 : along + (width - node.width) / 2;
      node.y = narrow ? along : across * (HEIGHT + 20) + 1;
    });
    along += narrow ? HEIGHT + GAP - 6 : width + GAP;
  }
  const width = narrow ? most * (NARROW_BOX + 10) - 8 : along - GAP + 2;
  const height = narrow ? along - GAP + 8 : most * (HEIGHT + 20) - 18;
  return { width, height, byId };
}

function cut(text, most) {
  const letters = [...String(text)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

function edgeOf(edge, byId, narrow, floor) {
  const from = byId.get(edge.from);
  const to = byId.get(edge.to);
  const kind = `edge${edge.waits ? " waits" : ""}${edge.back ? " back" : ""}`;
  let path;
  if (edge.back) {
    const [x1, x2] = [from.x + from.width / 2, to.x + to.width / 2];
    path = `M${x1},${from.y + from.height} C${x1},${floor} ${x2},${floor} ${x2},${to.y + to.height}`;
  } else if (narrow) {
    const [x1, y1, x2, y2] = [from.x + from.width / 2, from.y + from.height, to.x + to.width / 2, to.y - 3];
    path = `M${x1},${y1} C${x1},${(y1 + y2) / 2} ${x2},${(y1 + y2) / 2} ${x2},${y2}`;
  } else {
    const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x - 3, to.y + to.height / 2];
    path = `M${x1},${y1} C${(x1 + x2) / 2},${y1} ${(x1 + x2) / 2},${y2} ${x2},${y2}`;
  }
  return s("path", { class: kind, d: path, "marker-end": `url(#${edge.waits ? "tip-waits" : "tip"})` });
}

function boxOf(node, cost) {
  const { x, y, width, height } = node;
  const line = (row, className, text) => s("text", { x: x + 12, y: y + 20 + row * 17, class: className }, text);
  const title = s("title", {}, node.text);
  const head = line(0, "strong", cut(node.text, Math.floor(width / 8.2)));
  if (node.kind === "app") {
    return s("g", {}, title, s("rect", { class: "box away", x, y, width, height, rx: 8 }), head,
      line(1, "soft", "app"), node.depth ? line(2, "bad", `${count(node.depth)} not committed there`) : null);
  }
  if (node.kind === "pe") {
    const each = cost ? `${seconds(cost.each)} each` : "not called yet";
    const share = cost ? ` · ${percent(cost.share)}${width > NARROW_BOX ? " of PE time" : ""}` : "";
    return s("g", {}, title, s("rect", { class: "box", x, y, width, height, rx: 8 }), head,
      line(1, "soft", each + share),
      s("rect", { class: "track", x: x + 10, y: y + 50, width: width - 20, height: 5, rx: 2.5 }),
      s("rect", { class: "bar", x: x + 10, y: y + 50, width: (width - 20) * Math.min(1, cost?.busy ?? 0), height: 5, rx: 2.5 }));
  }
  const waiting = `${node.depth ? `${count(node.depth)} waiting` : "none waiting"}${node.waited >= 1e-3 ? ` · ${seconds(node.waited)}` : ""}`;
  const state = node.waits ? `${percent(Math.min(1, node.full))} full: others wait` : waiting;
  const box = `box stream${node.waits ? " waits" : ""}`;
  return s("g", {}, title, s("rect", { class: box, x, y, width, height, rx: 16 }),
    node.full >= 0.01 ? s("rect", { class: node.waits ? "bar full" : "bar", x: x + 14, y: y + height - 6, width: (width - 28) * Math.min(1, node.full), height: 3, rx: 1.5 }) : null, head,
    node.rate === undefined ? line(1, "soft", "output") : null,
    line(1, "", [rate(node.rate), node.lost ? s("tspan", { class: "bad" }, ` ${count(node.lost)} dropped`) : null]),
    node.rate === undefined && !node.depth ? null : line(2, node.waits ? "bad" : "soft", state));
}

function drawGraph(here) {
  const graph = graphOf(here);
  if (!graph.nodes.length) {
    show("graph", note("No container of this app has reported its graph yet."));
    return;
  }
  const room = at("graph").clientWidth;
  const narrow = room < NARROW;
  const { width, height, byId } = placed(graph, narrow, room);
  const back = graph.edges.some((edge) => edge.back) ? 40 : 0;
  const costs = costsOf(here);
  const text = graph.nodes.filter((node) => node.waits).map((node) => node.text);
  const tip = (id, kind) => s("marker", { id, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
    s("path", { class: kind, d: "M0,0 L8,4 L0,8 z" }));
  show("graph", h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Graph, which may be scrolled" },
    s("svg", { width, height: height + back, viewBox: `0 0 ${width} ${height + back}`, role: "img",
      "aria-label": `${graph.edges.length} ways between streams and PEs; ${text.length ? `full: ${text.join(", ")}` : "no stream is full"}` },
    s("defs", {}, tip("tip", "tip"), tip("tip-waits", "tip waits")),
    graph.edges.map((edge) => edgeOf(edge, byId, narrow, height + back + 8)),
    graph.nodes.map((node) => boxOf(node, costs.get(node.text))))));
}

/** Of each PE: the time of a call, its part of the time of all PEs, and of a second. */
function costsOf({ app, snapshot }) {
  const costs = new Map();
  const same = ["app", "pe", "handler"];
  let total = 0;
  for (const row of of(snapshot.pes, app)) {
    const one = costs.get(row.pe) ?? { spent: 0, all: 0, calls: 0, busy: 0 };
    const spent = gained(snapshot, "pes", row, "seconds", same);
    one.spent += spent ?? 0;
    one.busy += spent ?? 0;
    one.all += row.seconds;
    one.calls += row.calls;
    total += row.seconds;
    costs.set(row.pe, one);
  }
  const now = [...costs.values()].reduce((sum, one) => sum + one.spent, 0);
  for (const one of costs.values()) {
    one.each = one.all / Math.max(1, one.calls);
    one.share = now ? one.spent / now : one.all / (total || 1);
  }
  return costs;
}

function drawPartitions({ app, snapshot }) {
  const rows = of(snapshot.partitions, app);
  const same = ["app", "partition", "node"];
  const rates = new Map(rows.map((row) => [row, gained(snapshot, "partitions", row, "processed", same)]));
  const most = Math.max(1, ...rates.values());
  const cell = (row) => {
    const speed = rates.get(row);
    const waits = row.lag === null ? row.pending : Math.max(row.lag, row.pending);
    return h("li", { "data-key": row.partition, class: `heat${Math.min(4, Math.ceil(4 * (speed ?? 0) / most))}` },
      h("b", {}, speed === null ? "" : rate(speed)), String(row.partition),
      h("i", { class: waits > 1000 ? "warn" : "soft" }, waits ? `${count(waits)} behind` : "up to date"),
      row.part >= 0.2 && speed >= 1 ? h("i", { class: "warn", title: `${row.hot} has ${percent(row.part)} of the events of ${row.hot_pe}` }, `${percent(row.part)} `, name(row.hot)) : null);
  };
  const work = of(snapshot.work, app);
  const nodes = snapshot.nodes.map((node) => {
    const mine = rows.filter((row) => row.node === node.name).sort((a, b) => a.partition - b.partition);
    const container = node.containers.find((each) => each.app === app.name);
    const spent = work.find((row) => row.node === node.name);
    const cpu = spent && gained(snapshot, "work", spent, "cpu_seconds", ["app", "node"]);
    const facts = [
      `${mine.length} partition${mine.length === 1 ? "" : "s"}`,
      cpu !== null && cpu !== undefined ? `${percent(cpu)} of a core` : "",
      spent ? `load ${spent.load.toFixed(1)} by core` : "",
      container && container.phase !== "running" ? container.phase : "",
      container && container.starts > 1 ? `${container.starts} starts` : "",
    ].filter(Boolean).join(" · ");
    return h("div", { class: node.problem ? "node away" : "node", "data-key": node.name },
      h("h3", {}, name(node.name),
        h("span", { class: node.problem ? "bad" : "soft" }, node.problem || facts),
        h("span", { class: "soft" }, `process ${node.pid} on ${node.host}`)),
      mine.length ? h("ul", { class: "strip" }, mine.map(cell)) : null);
  });
  const lost = app.owners.flatMap((owner, partition) => (owner ? [] : [partition]));
  show("partitions", nodes, lost.length === 0 ? null :
    h("div", { class: "node", "data-key": "\n" }, h("h3", {}, "Without an owner"),
      h("ul", { class: "strip" }, lost.map((partition) => h("li", { class: "orphan" }, String(partition))))));
}

function drawInputs({ app, snapshot }) {
  const marks = of(snapshot.watermarks, app);
  const known = of(snapshot.inputs, app);
  const stages = of(snapshot.stages, app);
  const live = of(snapshot.flows, app).filter((flow) => !flow.sources.length && flow.targets.length
    && !known.some((row) => row.input.endsWith(`.${flow.stream}`)));
  const rowOf = (id, stream, lag, late) => {
    const mark = marks.find((each) => each.stream === stream);
    const queue = stages.find((row) => row.stage === "stream" && row.stream === stream);
    return { key: id, cells: [
      name(id), rate(queue?.rate), lag, late ? seconds(late) : "",
      mark ? (mark.at ? h("span", {}, moment(mark.at * 1000), mark.behind >= 1 ? h("span", { class: mark.behind >= 10 ? "warn" : "soft" }, ` ${seconds(mark.behind)} before the latest event`) : null) : "none yet") : "",
      mark?.holding && (mark.behind >= 1 || !mark.at) ? name(mark.holding) : "",
      mark?.skewed ? h("span", { class: "warn" }, `the clock of ${mark.skewed} is ${seconds(mark.ahead)} ahead`) : "",
    ] };
  };
  const rows = [
    ...known.map((row) => rowOf(row.input, row.input.slice(row.input.indexOf(".") + 1),
      h("span", { class: row.lag > 10000 ? "warn" : null }, count(row.lag), row.uncommitted ? ` + ${count(row.uncommitted)} in an open transaction` : ""), row.late)),
    ...live.map((flow) => rowOf(flow.stream, flow.stream, count(stages.filter((row) => row.stream === flow.stream).reduce((sum, row) => sum + row.depth, 0)), 0)),
  ];
  const skewed = marks.some((mark) => mark.skewed);
  const timed = marks.length > 0;
  const keep = [true, true, true, rows.some((row) => row.cells[3]), timed, rows.some((row) => row.cells[5]), skewed];
  const columns = [["input", ""], ["rate", "number"], ["not processed", "number"], ["oldest sent", "number"], ["watermark", "tight"], ["held back by", ""], ["clock", ""]];
  show("inputs", rows.length ? table(columns.filter((_, i) => keep[i]), rows.map(({ key, cells }) => ({ key, cells: cells.filter((_, i) => keep[i]) }))) : note("This app has no inputs."));
}

function drawCommits({ app, snapshot }) {
  const rows = of(snapshot.commits, app);
  const work = of(snapshot.work, app);
  if (!rows.length) {
    show("commits", note("No task has committed in the last ten minutes."));
    chart?.destroy();
    chart = null;
    return;
  }
  const total = rows.reduce((sum, row) => ({ count: sum.count + row.count, seconds: sum.seconds + row.seconds, bytes: sum.bytes + row.bytes }), { count: 0, seconds: 0, bytes: 0 });
  const age = Math.max(0, ...work.map((row) => row.commit_age));
  const figure = (term, value) => h("div", {}, h("dt", {}, term), h("dd", {}, value));
  show("commits", h("dl", { class: "figures" },
    figure("commits", count(total.count)),
    figure("time of one", seconds(total.seconds / total.count)),
    figure("longest", seconds(Math.max(...rows.map((row) => row.longest)))),
    figure("bytes of one", bytes(total.bytes / total.count)),
    figure("oldest uncommitted", age ? seconds(age) : "none")));
  drawChart(rows);
}

function drawChart(rows) {
  const end = Math.floor(Date.now() / 10000) * 10;
  const last = Math.max(end, rows.at(-1).at);
  const byTime = new Map(rows.map((row) => [row.at, row]));
  const times = Array.from({ length: 60 }, (_, index) => last - 10 * (59 - index));
  const each = (value) => times.map((time) => (byTime.has(time) ? value(byTime.get(time)) : null));
  const data = [times, each((row) => 1000 * row.longest), each((row) => 1000 * row.seconds / row.count), each((row) => row.bytes / 10)];
  const latest = times.findLastIndex((time) => byTime.has(time));
  const host = at("chart");
  const width = Math.max(200, host.parentElement.clientWidth - 32);
  if (chart && Math.abs(chart.width - width) < 2) {
    chart.setData(data);
    showLatest(latest);
    return;
  }
  chart?.destroy();
  const color = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const axis = (more) => ({ stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui", ...more });
  const alone = (values, index) => values[index] !== null && (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null;
  const point = { show: true, size: 5, filter: (plot, series) => times.flatMap((_, index) => (alone(plot.data[series], index) ? [index] : [])) };
  chart = new uPlot({
    width, height: 190, cursor: { y: false },
    scales: { ms: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] }, bytes: { range: (_, low, high) => [0, Math.max(1000, high * 1.1)] } },
    axes: [axis({ incrs: [60, 120, 300, 600], space: 54, values: (_, ticks) => ticks.map((tick) => moment(tick * 1000).slice(-8, -3)) }),
      axis({ scale: "ms", size: 56, values: (_, ticks) => ticks.map((tick) => seconds(tick / 1000)) }),
      axis({ scale: "bytes", side: 1, size: 62, grid: { show: false }, values: (_, ticks) => ticks.map((tick) => `${bytes(tick)}/s`) })],
    series: [{ value: (_, time) => (time ? moment(time * 1000) : "") },
      { label: "longest", scale: "ms", stroke: color("--warn"), width: 1.5, points: point, value: (_, v) => (v === null ? "" : seconds(v / 1000)) },
      { label: "mean", scale: "ms", stroke: color("--accent"), width: 2, points: point, value: (_, v) => (v === null ? "" : seconds(v / 1000)) },
      { label: "written", scale: "bytes", stroke: color("--good"), width: 1.5, dash: [4, 3], points: { show: false }, value: (_, v) => (v === null ? "" : `${bytes(v)}/s`) }],
  }, data, host);
  showLatest(latest);
}

/** Have the legend show one time, unless the pointer is at another; uPlot empties it in a microtask. */
function showLatest(idx) {
  queueMicrotask(() => { if (!(chart.cursor.left >= 0)) chart.setLegend({ idx }); });
}

function drawPes(here) {
  const { app, snapshot } = here;
  const same = ["app", "pe", "handler"];
  const rows = of(snapshot.pes, app).map((row) => ({ row, spent: gained(snapshot, "pes", row, "seconds", same), calls: gained(snapshot, "pes", row, "calls", same) }));
  const total = rows.reduce((sum, each) => sum + (each.spent ?? 0), 0);
  const columns = [["handler", ""], ["calls", "number"], ["each", "number"], ["of PE time", "number"], ["errors", "number"], ["hottest keys", "long"]];
  const hot = (row) => {
    const keys = Object.entries(row.hot).sort((a, b) => b[1] - a[1]).slice(0, 20);
    const button = ([key, events]) => h("button", { type: "button", "data-key": key, "data-ask": key, "data-pe": row.pe, class: events / row.calls >= 0.3 ? "hot" : null },
      name(cut(key, 40)), ` ${percent(Math.min(1, events / row.calls))}`);
    if (!keys.length) return "";
    return [h("div", { class: "keys" }, keys.slice(0, 3).map(button)),
      keys.length > 3 ? h("details", {}, h("summary", { class: "soft" }, `${keys.length - 3} more`), h("div", { class: "keys" }, keys.slice(3).map(button))) : null];
  };
  show("pes", rows.length ? table(columns, rows.map(({ row, spent, calls }) => ({
    key: `${row.pe}\n${row.handler}`,
    cells: [
      h("span", {}, name(row.pe), h("span", { class: "soft" }, ` ${row.handler}`)),
      calls === null ? count(row.calls) : rate(calls), seconds(row.seconds / Math.max(1, row.calls)),
      [total ? percent((spent ?? 0) / total) : "", bar(total ? (spent ?? 0) / total : 0, 48)],
      row.errors ? h("span", { class: "bad" }, count(row.errors)) : "", hot(row)],
  }))) : note("No PE has been called yet."));
  const select = at("key").elements.pe;
  const names = [...new Set([...of(snapshot.flows, app).flatMap((flow) => [...flow.sources, ...flow.targets]), ...rows.map(({ row }) => row.pe)])];
  morph(select, h("select", {}, names.map((each) => h("option", { value: each, "data-key": each }, each))));
}

function drawDead({ app, snapshot }) {
  const rows = of(snapshot.rejected, app);
  const skipped = of(snapshot.stages, app).filter((row) => row.left_out);
  const columns = [["time", "tight"], ["stream", ""], ["at", ""], ["PE", ""], ["reason", "long"]];
  const rowOf = (row) => ({
    key: `${row.ms} ${row.stream} ${row.at}`,
    cells: [moment(row.ms), name(row.stream), h("span", { class: "mono" }, name(row.at)), row.pe ? name(row.pe) : "", name(row.reason)],
  });
  const rest = rows.slice(FEW);
  show("dead",
    skipped.length ? h("p", { class: "bad" }, skipped.map((row, index) => [index ? ", " : "", `${count(row.left_out)} events of `, name(row.stream)])) : null,
    rows.length ? table(columns, rows.slice(0, FEW).map(rowOf)) : note("None. Each event was processed, or its failure stops the app."),
    rest.length ? h("details", {}, h("summary", { class: "soft" }, `${rest.length} more`), table(columns, rest.map(rowOf))) : null);
}

function drawHistory({ snapshot }) {
  const containers = snapshot.nodes.flatMap((node) => node.containers);
  const rows = (snapshot.history ?? []).map((each) => ({
    key: `${each.ms} ${each.app} ${each.text}`,
    cells: [moment(each.ms), h("span", { class: `kind ${each.kind}` }, each.kind), name(each.app), [name(each.text), each.cause ? h("div", { class: "soft" }, name(each.cause)) : null]],
  }));
  const columns = [["time", "tight"], ["kind", "tight"], ["app", "tight"], ["what", "long"]];
  const rest = rows.slice(2 * FEW);
  show("history", rows.length ? table(columns, rows.slice(0, 2 * FEW)) : note(containers.length ? "None since the nodes have started." : "Nothing was deployed."),
    rest.length ? h("details", {}, h("summary", { class: "soft" }, `${rest.length} more`), table(columns, rest)) : null);
}

// -- a key ------------------------------------------------------------------------------------------

async function drawKey() {
  if (!asked) return;
  const { app, pe, key } = asked;
  const path = ["state", app, pe, key].map(encodeURIComponent).join("/");
  const wanted = asked;
  let shown;
  try {
    const answer = await ask(`/${path}`);
    shown = answer.ok ? savedOf(await answer.json()) : [note((await answer.text()).trim())];
  } catch {
    shown = [note("No answer.")];
  }
  if (wanted === asked) show("state", h("p", {}, name(pe), h("span", { class: "soft" }, " of key "), name(key)), shown);
}

/** All that is saved of a key: its state, windows and timers, and of which commit that is. */
function savedOf({ value, windows, timers, owner, commit }) {
  const part = (title, ...found) => [h("h3", {}, title), found];
  const start = (at) => (typeof at === "number" && at > 1e6 ? moment(at * 1000) : at);
  const offsets = Object.keys(commit?.offsets ?? {}).length ? part("offsets of the commit", stateOf(commit.offsets)) : null;
  return [
    owner ? h("p", {}, `in partition ${owner.partition} on node `, name(owner.node)) : null,
    commit ? h("p", { class: "soft" }, `as of the commit of ${moment(commit.time * 1000)}`) : null,
    value === null || value === undefined ? null : part("state", stateOf(value)),
    windows?.length ? part(`windows: ${windows.length}`, h("dl", {}, windows.map((each) => [h("dt", {}, String(start(each.start))), h("dd", {}, stateOf(each.value))]))) : null,
    timers?.length ? part(`timers: ${timers.length}`, h("dl", {}, timers.map((each) => [h("dt", {}, each.name || "timer"), h("dd", {}, String(start(each.time)))]))) : null,
    offsets];
}

/** JSON as elements: an object is a list of its parts, whatever it has. */
function stateOf(value, depth = 0) {
  if (value === null || typeof value !== "object") return name(value);
  if (Array.isArray(value) && value.every((each) => each === null || typeof each !== "object")) {
    return name(value.length ? value.map((each) => JSON.stringify(each)).join(", ") : "none");
  }
  const entries = Object.entries(value);
  if (!entries.length) return h("span", { class: "soft" }, "none");
  if (depth > 5) return h("code", {}, JSON.stringify(value));
  return h("dl", {}, entries.map(([part, each]) => [h("dt", {}, part), h("dd", {}, stateOf(each, depth + 1))]));
}

function askFor(pe, key) {
  const here = current();
  if (!here) return;
  asked = { app: here.app.name, pe, key };
  drawKey();
}

// -- asking -----------------------------------------------------------------------------------------

async function ask(path) {
  const scope = new AbortController();
  const timer = setTimeout(() => scope.abort(), 10000);
  try {
    return await fetch(path, { cache: "no-store", signal: scope.signal, headers: token ? { Authorization: `Bearer ${token}` } : {} });
  } finally {
    clearTimeout(timer);
  }
}

async function look() {
  try {
    const answer = await ask("/status");
    at("token").hidden = answer.status !== 401 && answer.status !== 403;
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const found = await answer.json();
    before.push(clusters);
    while (before.length > RATE_SECONDS || (before.length && !before[0].length)) before.shift();
    clusters = found;
    lastAnswer = Date.now();
    failure = "";
    draw();
  } catch (error) {
    failure = error.name === "TypeError" || error.name === "AbortError" ? "no answer from this node" : error.message;
  }
  drawLive();
}

async function lookWhy() {
  try {
    const answer = await ask("/why");
    if (answer.ok) reasons = await answer.json();
  } catch {
    // the look at the cluster shows it
  }
}

function drawLive() {
  const live = at("live");
  const away = failure && Date.now() - lastAnswer > AWAY_MS;
  const state = away ? "bad" : lastAnswer ? "good" : "";
  const text = away ? `${failure}; ${lastAnswer ? `this is from ${moment(lastAnswer)}, ` : ""}trying again` : lastAnswer ? "live" : "loading";
  if (live.className !== state) live.className = state;
  if (live.textContent !== text) live.textContent = text;
  document.body.classList.toggle("stale", Boolean(away));
}

function draw() {
  at("main").hidden = false;
  drawHead();
  const here = current();
  if (!here) {
    const found = clusters[0]?.nodes.length;
    show("why", h("div", {}, h("h2", {}, found ? "No app is deployed" : "No node runs"),
      h("p", {}, "Deploy one with ", h("code", {}, "s4 deploy APP"), ".")));
  } else {
    drawWhy(here);
    drawGraph(here);
    drawPartitions(here);
    drawInputs(here);
    drawCommits(here);
    drawPes(here);
    drawDead(here);
    drawHistory(here);
  }
  for (const section of document.querySelectorAll(".card")) section.hidden = !here;
}

async function every(ms, what) {
  for (;;) {
    if (!document.hidden) await what();
    await new Promise((done) => setTimeout(done, ms)); // the server makes an answer once a second
  }
}

addEventListener("hashchange", () => {
  chosen = chosenInAddress();
  asked = null;
  show("state");
  if (clusters.length) draw();
});
addEventListener("resize", () => { if (clusters.length) draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  chart?.destroy();
  chart = null;
  if (clusters.length) draw();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-ask]");
  if (!button) return;
  const form = at("key").elements;
  form.pe.value = button.dataset.pe;
  form.key.value = button.dataset.ask;
  askFor(button.dataset.pe, button.dataset.ask);
  at("key").scrollIntoView({ block: "nearest" });
});
at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  askFor(event.target.elements.pe.value, event.target.elements.key.value);
});
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = event.target.elements.token.value.trim();
  event.target.reset();
  look();
});

every(EVERY_MS, look);
every(WHY_EVERY_MS, lookWhy);
every(WHY_EVERY_MS, drawKey);
