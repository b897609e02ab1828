// The graph: sources, operators and sinks, what flows between them, and what holds the job up.

import { Chart } from "./chart.js";
import { Facts, Empty, Parts } from "./parts.js";
import { age, duration, eventTime, html, number, percent, plural, rate, size, useEffect, useRef, useState } from "./lib.js";

export function GraphView({ live, past }) {
  const status = live && live.status;
  if (!status) return html`<${Left} past=${past} />`;
  const neck = live.bottleneck;
  return html`
    <${JobFacts} live=${live} />
    <p class=${`neck ${neck.node ? "held" : ""}`}><b>Bottleneck</b> ${neck.text}</p>
    ${status.graph.length
      ? html`<${Drawing} nodes=${status.graph} bottleneck=${neck.node} card=${(node) => card(node, live)} />`
      : html`<${Empty} text="The job is starting: its graph is known when it runs." />`}
    <div class="charts">
      <${Chart} title="Rows a second" points=${live.points} at=${1} text=${rate} />
      <${Chart} title="State" points=${live.points} at=${2} text=${size} tone="--blue" />
      <${Chart} title="Not in a checkpoint" points=${live.points} at=${4} text=${(s) => age(1000 * s)} tone="--amber" />
    </div>
    <p class="about">Charts begin when a page first showed this job: the server keeps a quarter of an hour.</p>
  `;
}

function JobFacts({ live }) {
  const status = live.status;
  const last = status.last_checkpoint;
  const lastAge = last && last.completed_ms ? live.at_ms - last.completed_ms : null;
  return html`<${Facts}
    facts=${[
      ["Rows", rate(status.rows_per_s), `${number(status.rows_in)} in its life`],
      ["Epoch", number(status.epoch), `${plural(status.last_epoch_rows, "row")} in ${duration(status.last_epoch_ms)}`],
      ["Newest checkpoint", last ? number(last.checkpoint) : "none", lastAge === null ? "" : `${age(lastAge)} ago, ${size(last.total_bytes)}`],
      ["Not in a checkpoint", status.uncovered_ms ? age(status.uncovered_ms) : "nothing", "a failure now repeats that"],
      ["Watermark", status.watermark ? eventTime(status.watermark).slice(11) : "–", status.watermark ? `${eventTime(status.watermark).slice(0, 10)} UTC` : "none yet"],
      ["Late rows", number(status.late_rows), "older than the watermark"],
      ["Failed events", number(status.failed_events), "left out by on_error", status.failed_events ? "warn" : ""],
      (status.restarts || status.replaced_keepers) && ["Restarts", number(status.restarts), status.replaced_keepers ? `${plural(status.replaced_keepers, "keeper")} replaced alone` : "", "warn"],
    ]}
  />`;
}

// A job that does not run: what its newest checkpoint says.
function Left({ past }) {
  const newest = past && past.newest;
  if (!past) return html`<${Empty} text="Reading the job's folder…" />`;
  if (!newest) return html`<${Empty} text="The job has left no checkpoint that can be read." />`;
  const nodes = [
    ...newest.sources.map((name) => ({ id: `source:${name}`, kind: "source", name, inputs: {} })),
    ...newest.operators.map((each) => ({ id: `operator:${each.uid}`, kind: "operator", name: each.uid, inputs: {}, of: each })),
    ...newest.sinks.map((each) => ({ id: `sink:${each.name}`, kind: "sink", name: each.name, what: each.kind, inputs: {}, of: each })),
  ];
  const figures = (node) =>
    node.kind === "operator"
      ? [["state", size(node.of.bytes)], ["partitions", number(node.of.parallelism)], ["backend", node.of.backend], ["key", node.of.key_schema]]
      : node.kind === "sink"
        ? [["listed commits", number(node.of.pending)]]
        : [];
  return html`
    <p class="neck">No driver of the job answers here. This is its newest checkpoint, ${newest.checkpoint}. A checkpoint does not say how the steps are connected.</p>
    <${Drawing} nodes=${nodes} layered=${true} card=${(node) => ({ figures: figures(node) })} />
  `;
}

// What a card says: {figures: [[name, value]], busy, held}
function card(node, live) {
  const { status, rates } = live;
  if (node.kind === "source") {
    const source = status.source_progress.find((each) => each.name === node.name);
    const watermark = status.watermarks.find((each) => each.source === node.name);
    return {
      what: source ? source.what.split(" in ")[0] : "",
      figures: [
        ["waiting", source ? backlog(source) : "not known"],
        ...(watermark ? [["watermark", eventTime(watermark.time).slice(5) || "–"]] : []),
      ],
    };
  }
  if (node.kind === "operator") {
    const keepers = status.keepers.filter((each) => each.uid === node.name);
    const mine = rates.filter((each) => each.uid === node.name);
    const sum = (list, value) => list.reduce((total, each) => total + value(each), 0);
    const late = sum(keepers, (each) => each.late_rows);
    const failed = sum(keepers, (each) => each.failed_events);
    const busy = mine.map((each) => each.busy);
    return {
      what: `${node.what} × ${keepers.length || "–"}`,
      figures: [
        ["in", mine.length ? rate(sum(mine, (each) => each.rows_in_per_s)) : "–"],
        ["out", mine.length ? rate(sum(mine, (each) => each.rows_out_per_s)) : "–"],
        ["state", keepers.some((each) => each.state_bytes !== null) ? size(sum(keepers, (each) => each.state_bytes || 0)) : "–"],
        ["late", number(late)],
        ...(failed ? [["failed", number(failed)]] : []),
      ],
      busy: busy.length ? { most: Math.max(...busy), mean: busy.reduce((a, b) => a + b, 0) / busy.length } : null,
    };
  }
  const sink = status.sinks.find((each) => each.name === node.name);
  const shown = live.checkpoints.flatMap((each) => each.sinks).findLast((each) => each.name === node.name);
  return {
    what: node.what,
    figures: [
      ...(sink ? [["delivered", number(sink.rows)], ["waits", plural(sink.waiting_rows, "row")]] : []),
      ["rows shown after", shown ? duration(shown.age_ms) : "–"],
    ],
  };
}

export function backlog(source) {
  if (source.files_behind !== null)
    return source.files_behind ? `${plural(source.files_behind, "file")}, ${size(source.bytes_behind)}` : "nothing";
  if (source.offsets_behind !== null) return source.offsets_behind ? plural(source.offsets_behind, "offset") : "nothing";
  return "not known";
}

// Columns of cards, each after those that it reads from, and lines between them.
function Drawing({ nodes, card, bottleneck, layered }) {
  const place = useRef(null);
  const [lines, setLines] = useState({ width: 0, height: 0, paths: [] });
  const columns = columnsOf(nodes, layered);
  const shape = JSON.stringify(nodes.map((node) => [node.id, node.inputs]));
  useEffect(() => {
    const measure = () => setLines(linesBetween(place.current, nodes));
    const observer = new ResizeObserver(measure);
    observer.observe(place.current);
    for (const each of place.current.querySelectorAll(".node")) observer.observe(each);
    measure();
    return () => observer.disconnect();
  }, [shape]);
  return html`
    <h2 class="unseen">Sources, operators and sinks</h2>
    <div class="graph" ref=${place}>
      <svg width=${lines.width} height=${lines.height} aria-hidden="true">
        ${lines.paths.map(
          (line) => html`<path d=${line.path} class=${line.side ? "side" : ""} />
            ${line.label ? html`<text x=${line.x} y=${line.y} text-anchor="middle">${line.label}</text>` : ""}`,
        )}
      </svg>
      <div class="columns">
        ${columns.map((column) => html`<div class="column">${column.map((node) => html`<${Node} node=${node} key=${node.id} of=${card(node)} held=${node.id === bottleneck} nodes=${nodes} />`)}</div>`)}
      </div>
    </div>
  `;
}

function Node({ node, of, held, nodes }) {
  const name = node.name || "source";
  const nameOf = (id) => (nodes.find((each) => each.id === id) || {}).name || id;
  const from = Object.entries(node.inputs).map(([id, side]) => (side ? `${side.replace("_", " ")} of ${nameOf(id)}` : nameOf(id)));
  return html`
    <article class=${`node ${node.kind} ${held ? "held" : ""}`} data-id=${node.id}>
      <header><span class="kind">${node.kind}</span>${held ? html`<span class="tag">bottleneck</span>` : ""}</header>
      <h3>${name}</h3>
      ${of.what ? html`<p class="what">${of.what}</p>` : ""}
      ${from.length ? html`<p class="from">reads ${from.join(", ")}</p>` : ""}
      ${of.busy
        ? html`<div class="busy">
            <${Parts} parts=${[{ value: of.busy.most, tone: of.busy.most > 0.8 ? "amber" : "green" }]} whole=${1} label=${`busiest partition works ${percent(of.busy.most)} of the time`} />
            <span>${percent(of.busy.most)} busy</span>
          </div>`
        : ""}
      <dl>${of.figures.map(([key, value]) => html`<div><dt>${key}</dt><dd>${value}</dd></div>`)}</dl>
    </article>
  `;
}

function columnsOf(nodes, layered) {
  const depth = new Map();
  // Nodes come after those that they read from.
  for (const node of nodes)
    depth.set(
      node.id,
      layered
        ? ["source", "operator", "sink"].indexOf(node.kind)
        : Math.max(-1, ...Object.keys(node.inputs).map((id) => depth.get(id) ?? -1)) + 1,
    );
  const last = Math.max(...depth.values());
  const columns = Array.from({ length: last + 1 }, () => []);
  for (const node of nodes) columns[depth.get(node.id)].push(node);
  return columns;
}

function linesBetween(place, nodes) {
  const outer = place.getBoundingClientRect();
  const boxes = new Map([...place.querySelectorAll(".node")].map((each) => [each.dataset.id, each.getBoundingClientRect()]));
  const paths = [];
  for (const node of nodes)
    for (const [id, side] of Object.entries(node.inputs)) {
      const from = boxes.get(id);
      const to = boxes.get(node.id);
      if (!from || !to) continue;
      const across = to.left >= from.right;
      // Cards that stand one below the other have their lines at the left.
      const [x1, y1] = [across ? from.right : from.left, from.top + from.height / 2];
      const [x2, y2] = [to.left, to.top + to.height / 2];
      const [a, b, c, d] = [x1 - outer.left, y1 - outer.top, x2 - outer.left, y2 - outer.top];
      const middle = (a + c) / 2;
      const path = across ? `M${a},${b}C${middle},${b} ${middle},${d} ${c},${d}` : `M${a},${b}C${a - 28},${b} ${c - 28},${d} ${c},${d}`;
      paths.push({ path, side, label: across ? side.replace("_", " ") : "", x: middle, y: (b + d) / 2 - 5 });
    }
  return { width: place.clientWidth, height: place.clientHeight, paths };
}
