// Functions: where the time of keepers goes, as flame graphs of samples that are taken on demand.

import { Bar, Empty, Facts, Failure, Section, Table } from "./parts.js";
import { ask, html, percent, useState } from "./lib.js";

const SECONDS = 5;
const LEAST = 0.003; // Narrower ones cannot be seen; the table has them.

export function FunctionsView({ id, live }) {
  const [profile, setProfile] = useState(null);
  const [taking, setTaking] = useState(false);
  if (!live) return html`<${Empty} text="No driver of the job answers here: functions can be seen while it runs." />`;
  const take = async () => {
    setTaking(true);
    setProfile(await ask(`api/jobs/${id}/actions/profile`, { seconds: SECONDS }));
    setTaking(false);
  };
  const button = html`<button type="button" class="main" disabled=${taking} onClick=${take}>${taking ? "Taking samples…" : `Take samples for ${SECONDS} seconds`}</button>`;
  return html`
    <${Section} title="Functions" about="A hundred times a second, each keeper looks at which function it is in: those of the program, and of its state. It hardly slows the job, and sees no values." tools=${button}>
      ${profile && profile.error ? html`<${Failure} of=${profile} />` : ""}
      ${!profile && !taking ? html`<${Empty} text="No samples were taken yet." />` : ""}
    <//>
    ${profile && profile.partitions
      ? byWork(profile.partitions).map(
          (uid) => html`<${Operator} key=${uid} uid=${uid} partitions=${profile.partitions.filter((each) => each.uid === uid)} />`,
        )
      : ""}
  `;
}

// The operator that works most first.
function byWork(partitions) {
  const work = new Map();
  for (const { uid, samples } of partitions) work.set(uid, (work.get(uid) || 0) + samples.count - samples.idle - samples.waiting);
  return [...work.keys()].sort((a, b) => work.get(b) - work.get(a));
}

function Operator({ uid, partitions }) {
  const [zoomed, setZoomed] = useState(null);
  const samples = partitions.map((each) => each.samples);
  const sum = (name) => samples.reduce((total, each) => total + each[name], 0);
  const taken = sum("count") || 1;
  const root = merged(uid, samples);
  const top = (zoomed && find(root, zoomed)) || root;
  const functions = [...byFunction(root).values()].sort((a, b) => b.own - a.own || b.total - a.total);
  return html`
    <${Section} title=${uid} about=${told(root)} tools=${zoomed ? html`<button type="button" onClick=${() => setZoomed(null)}>Show all</button>` : ""}>
      <${Facts}
        facts=${[
          ["At work", percent(root.count / taken)],
          ["Waiting for rows", percent(sum("waiting") / taken), "of Spark"],
          ["Idle", percent(sum("idle") / taken), "between epochs"],
        ]}
      />
      ${root.count ? html`<div class="flames" role="group" aria-label=${`Flame graph of ${uid}`}>${levels(top).map((level) => html`<div class="flame-row">${level.map((block) => html`<${Block} ...${block} whole=${top.count} onZoom=${() => setZoomed(block.node.path)} />`)}</div>`)}</div>` : ""}
      <${Table}
        caption=${`Functions of ${uid}`}
        empty="It did not work in this time."
        rows=${functions}
        columns=${[
          { name: "Function", text: (each) => html`<code>${each.name}</code>`, wide: true },
          { name: "Itself", text: (each) => html`<${Bar} value=${each.own} whole=${root.count} tone="blue" text=${percent(each.own / root.count)} />`, right: true },
          { name: "With what it calls", text: (each) => percent(each.total / root.count), right: true },
        ]}
      />
    <//>
  `;
}

function Block({ node, left, whole, onZoom }) {
  const share = percent(node.count / whole);
  return html`<button
    type="button"
    class=${`flame ${node.kind}`}
    style=${{ left: `${(100 * left) / whole}%`, width: `${(100 * node.count) / whole}%` }}
    title=${`${node.name}: ${share}`}
    aria-label=${`${node.name}, ${share}`}
    onClick=${onZoom}
  >${short(node.name)}</button>`;
}

// The tree of all partitions' stacks; `path` finds a node again in later samples.
function merged(uid, samples) {
  const root = { name: uid, path: uid, count: 0, own: 0, program: 0, kind: "", children: new Map() };
  for (const { names, program, stacks } of samples) {
    const own = new Set(program);
    for (const [positions, count] of stacks) {
      let node = root;
      node.count += count;
      if (positions.some((at) => own.has(at))) root.program += count;
      for (const at of positions) {
        const name = names[at];
        if (!node.children.has(name)) node.children.set(name, { name, path: `${node.path}\n${name}`, count: 0, own: 0, kind: kind(name, own.has(at)), children: new Map() });
        node = node.children.get(name);
        node.count += count;
      }
      node.own += count;
    }
  }
  return root;
}

const kind = (name, isProgram) => (name.startsWith("line ") ? "line" : isProgram ? "program" : name.startsWith("strandline.") ? "engine" : "library");

function find(node, path) {
  if (node.path === path) return node;
  for (const child of node.children.values()) if (path === child.path || path.startsWith(`${child.path}\n`)) return find(child, path);
  return null;
}

// What is drawn: for each depth, nodes and where they begin, in samples.
function levels(top) {
  const drawn = [];
  const walk = (node, depth, left) => {
    if (node.count < LEAST * top.count) return;
    (drawn[depth] ||= []).push({ node, left });
    for (const child of [...node.children.values()].sort((a, b) => b.count - a.count)) {
      walk(child, depth + 1, left);
      left += child.count;
    }
  };
  walk(top, 0, 0);
  return drawn;
}

// Samples in each function itself, and with what it calls: once, if it calls itself.
function byFunction(root) {
  const found = new Map();
  const walk = (node, above) => {
    const is_line = node.name.startsWith("line ");
    const name = is_line || node === root ? null : node.name;
    if (name && !found.has(name)) found.set(name, { name, own: 0, total: 0 });
    if (name && !above.has(name)) found.get(name).total += node.count;
    const own = node.own + (is_line ? 0 : [...node.children.values()].filter((each) => each.name.startsWith("line ")).reduce((sum, each) => sum + each.count, 0));
    if (name) found.get(name).own += own;
    const below = name ? new Set([...above, name]) : above;
    for (const child of node.children.values()) walk(child, below);
  };
  walk(root, new Set());
  return found;
}

function told(root) {
  if (!root.count) return "";
  const own = root.program / root.count;
  return `${percent(own)} of its work is in the program's own functions and what they call, ${percent(1 - own)} in Strandline: reading and writing state, checkpoints, the exchange of rows.`;
}

const short = (name) => name.replaceAll("<locals>.", "").split(".").slice(-2).join(".");
