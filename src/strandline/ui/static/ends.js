// The ends of the job: what waits in its sources, and how old rows are when its sinks show them.

import { backlog } from "./graph.js";
import { Chart } from "./chart.js";
import { Empty, Section, Table } from "./parts.js";
import { age, duration, firstLine, html, number, plural, size } from "./lib.js";

export function EndsView({ live, past }) {
  if (!live) return html`<${Stored} past=${past} />`;
  const { status } = live;
  const sinks = status.graph.filter((node) => node.kind === "sink").map((node) => ({ ...node, status: status.sinks.find((each) => each.name === node.name), shown: shownBy(node.name, live.checkpoints) }));
  return html`
    <${Section} title="Sources" about="What the job has not read yet. Figures may be some seconds old.">
      <${Table}
        caption="Sources"
        empty=${status.state === "running" ? "The sources have not been looked at yet." : `The job is ${status.state}.`}
        rows=${status.source_progress}
        columns=${[
          { name: "Source", text: (each) => each.name || "(the only one)" },
          { name: "What it is", text: (each) => each.what, wide: true },
          { name: "Waiting", text: backlog },
          { name: "Oldest waits for", text: (each) => (each.waiting_ms === null ? "–" : each.waiting_ms ? age(each.waiting_ms) : "nothing waits"), right: true },
          { name: "Read to", text: (each) => html`<code>${shorten(JSON.stringify(each.read_to))}</code>`, wide: true },
        ]}
      />
    <//>
    <${Section} title="Sinks" about="Exactly-once sinks show rows with the checkpoint that covers them: ages are of the oldest row, when it became visible.">
      <${Table}
        caption="Sinks"
        empty="The job has no sinks."
        rows=${sinks}
        mark=${(each) => (each.status && each.status.waiting_rows ? "held" : "")}
        columns=${[
          { name: "Sink", text: (each) => each.name },
          { name: "Kind", text: (each) => each.what },
          { name: "Rows shown after", text: (each) => (each.shown.length ? duration(each.shown.at(-1).age_ms) : "–"), right: true },
          { name: "Half within", text: (each) => within(each.shown, 0.5), right: true },
          { name: "99 of 100 within", text: (each) => within(each.shown, 0.99), right: true },
          { name: "The sink's part", text: (each) => (each.shown.length ? duration(each.shown.at(-1).shown_ms) : "–"), right: true },
          { name: "Delivered", text: (each) => (each.status ? number(each.status.rows) : "–"), right: true, spare: true },
          { name: "Refused", text: (each) => (each.status ? number(each.status.refused_rows) : "–"), right: true, spare: true },
          { name: "Waiting", text: waiting, spare: true },
          { name: "Why", text: (each) => (each.status && firstLine(each.status.failure)) || "–", wide: true, spare: true },
        ]}
      />
      <div class="charts">${sinks.filter((each) => each.shown.length > 1).map((each) => html`<${Chart} title=${`Age of rows shown in ${each.name}`} points=${each.shown.map((one) => [one.at_ms / 1000, one.age_ms])} at=${1} text=${duration} gap=${Infinity} />`)}</div>
      <p class="told">"Within" is of the last ${number(live.checkpoints.length)} checkpoints. Delivered and waiting rows are known of sinks that write to other systems.</p>
    <//>
  `;
}

const shownBy = (name, checkpoints) => checkpoints.flatMap((each) => each.sinks.filter((sink) => sink.name === name).map((sink) => ({ ...sink, at_ms: each.completed_ms })));

// The age that a part of a sink's checkpoints did not exceed.
function within(shown, part) {
  const ages = shown.map((each) => each.age_ms).sort((a, b) => a - b);
  return ages.length ? duration(ages[Math.ceil(part * ages.length) - 1]) : "–";
}

function waiting({ status }) {
  if (!status) return "–";
  return status.waiting_rows ? `${plural(status.waiting_rows, "row")}, ${size(status.waiting_bytes)}, for ${age(status.waiting_ms)}` : "nothing";
}

const shorten = (text) => (!text ? "–" : text.length > 160 ? `${text.slice(0, 159)}…` : text);

function Stored({ past }) {
  if (!past || !past.newest) return html`<${Empty} text="No driver of the job answers here, and no checkpoint of it can be read." />`;
  return html`
    <${Section} title="Sinks at the newest checkpoint" about="No driver of the job answers here. What a backlog its sources have is known when it runs.">
      <${Table}
        caption="Sinks"
        empty="The checkpoint names no sinks."
        rows=${past.newest.sinks}
        columns=${[
          { name: "Sink", text: (each) => each.name },
          { name: "Kind", text: (each) => each.kind || "–" },
          { name: "Commits that the next start repeats", text: (each) => number(each.pending), right: true },
        ]}
      />
    <//>
  `;
}
