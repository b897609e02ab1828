// Checkpoints: how long each phase takes, what is new, why one failed, and which files each references.

import { Columns } from "./columns.js";
import { FilesPicture } from "./files.js";
import { Empty, Facts, Legend, Section, Table } from "./parts.js";
import { age, clock, duration, firstLine, html, moment, number, plural, size, useAnswer, useKept } from "./lib.js";

const PHASES = [
  ["waits_ms", "waits for its trigger", "grey"],
  ["epoch_ms", "epoch", "green"],
  ["durable_ms", "written and uploaded", "blue"],
  ["published_ms", "published", "violet"],
  ["shown_ms", "shown by sinks", "amber"],
];

export function CheckpointsView({ id, live, past, turn }) {
  const history = useKept(useAnswer(`api/jobs/${id}/history?hours=1`, turn));
  const all = merged(live, past, history);
  if (!all.length)
    return html`<${Empty} text=${past || live ? "The job has no checkpoint yet." : "Reading the job's folder…"} />`;
  const timed = all.filter((each) => each.parts.length);
  // The log of events does not say what was deleted.
  const newest = all.findLast((each) => each.state === "complete" && (live || each.in_storage));
  const failed = all.filter((each) => each.state === "failed");
  const counts = live ? live.status.checkpoints : null;
  const mean = (list, value) => (list.length ? list.reduce((sum, each) => sum + value(each), 0) / list.length : null);
  const complete = all.filter((each) => each.state === "complete");
  const phases = PHASES.map(([name, title, tone]) => ({ name: title, tone, text: timed.length ? duration(mean(timed, (each) => each.phases[name] || 0)) : "" }));
  return html`
    <${Facts}
      facts=${[
        ["Newest complete", newest ? number(newest.checkpoint) : "none", newest ? `${moment(newest.at_ms)}, epoch ${number(newest.epoch)}` : ""],
        ["Size", newest ? size(newest.total_bytes) : "–", newest ? `${size(newest.uploaded_bytes)} of it new` : ""],
        ["Takes", duration(mean(complete, (each) => each.took_ms)), `mean of ${complete.length}`],
        ["Mode", newest ? newest.mode : "–", ""],
        counts && ["This run", `${number(counts.completed)} complete`, [counts.failed && `${counts.failed} failed`, counts.subsumed && `${counts.subsumed} subsumed`].filter(Boolean).join(", ") || "none failed", counts.failed ? "warn" : ""],
      ]}
    />
    <${InProgress} all=${all} live=${live} />
    <${Section} title="Where the time goes" about="From the first epoch that a checkpoint covers until its rows are visible. Point at a column for its figures.">
      ${timed.length
        ? html`<${Legend} parts=${phases} />
            <${Columns}
              label=${`Phases of the last ${timed.length} checkpoints; the table below has the figures`}
              text=${duration}
              columns=${timed.map((each) => ({
                key: keyOf(each),
                parts: each.parts,
                bad: each.state === "failed",
                tell: `Checkpoint ${each.checkpoint} at ${clock(each.at_ms)}: ${PHASES.map(([name, title]) => `${title} ${duration(each.phases[name] || 0)}`).join(", ")}`,
              }))}
            />`
        : html`<${Empty} text="No checkpoint's phases are known: manifests do not have them, and this machine has no log of the job's events." />`}
    <//>
    ${failed.length
      ? html`<${Section} title="Failures" about="Also of earlier runs, as long as the log of events on this machine has them.">
          <ul class="failures">
            ${failed.toReversed().map((each) => html`<li><b>Checkpoint ${each.checkpoint}</b> at ${moment(each.at_ms)}, ${each.total_partitions ? `${plural(each.acknowledged, "partition")} of ${each.total_partitions} had reported: ` : ""}${each.reason}</li>`)}
          </ul>
        <//>`
      : ""}
    <${Section} title="Which files each references" about="A checkpoint uploads what is new, and references the files of earlier ones. A file is deleted when no checkpoint references it.">
      ${past ? html`<${FilesPicture} past=${past} />` : html`<${Empty} text="Reading the job's folder…" />`}
    <//>
    <${Section} title="All of them" about="Those of this run, those that are in storage, and those of earlier runs that the log of events on this machine has.">
      <${Table}
        caption="Checkpoints"
        empty="none"
        rows=${all.toReversed()}
        mark=${(each) => (each.state === "failed" || each.state === "damaged" ? "bad" : "")}
        columns=${[
          { name: "Checkpoint", text: (each) => number(each.checkpoint), right: true },
          { name: "State", text: (each) => html`<span class=${`state ${each.state.replace(" ", "-")}`}>${each.state}</span>` },
          { name: "At", text: (each) => moment(each.at_ms) },
          { name: "Epoch", text: (each) => number(each.epoch), right: true },
          { name: "Took", text: (each) => duration(each.took_ms), right: true },
          { name: "Slowest partition", text: slowest },
          { name: "New", text: (each) => size(each.uploaded_bytes), right: true },
          { name: "Shared", text: (each) => (each.total_bytes ? size(each.total_bytes - each.uploaded_bytes) : "–"), right: true },
          { name: "Files kept", text: (each) => (each.in_storage ? number(each.files) : "–"), right: true },
          { name: "Why", text: (each) => firstLine(each.reason) || "–", wide: true, spare: true },
        ]}
      />
    <//>
  `;
}

function slowest(each) {
  if (!each.partitions || !each.partitions.length) return "–";
  const one = each.partitions.reduce((a, b) => (a.async_ms >= b.async_ms ? a : b));
  return `${one.uid}[${one.partition}] ${duration(one.async_ms)}`;
}

function InProgress({ all, live }) {
  const running = all.filter((each) => each.state === "in progress");
  if (!running.length || !live) return "";
  return running.map((each) => {
    const missing = each.waits_for;
    return html`<p class="note" role="status">
      <b>Checkpoint ${each.checkpoint}</b> is in progress for ${age(live.at_ms - each.triggered_ms)}:${" "}
      ${number(each.acknowledged)} of ${plural(each.total_partitions, "partition")} have reported.
      ${missing.length
        ? html` It waits for ${missing.slice(0, 6).join(", ")}${missing.length > 6 ? ` and ${missing.length - 6} more` : ""}.`
        : " All of its parts are there: it is being published."}
    </p>`;
  });
}

// A later run may use the number of one that failed.
const keyOf = (each) => `${each.checkpoint}/${each.triggered_ms || 0}`;

const NAMES = { completed: "complete", in_progress: "in progress", triggered: "in progress" };

// The checkpoints in storage, those of earlier runs by the log of events, and those of this run, by number.
function merged(live, past, history) {
  const all = new Map();
  for (const each of past ? past.checkpoints : [])
    all.set(keyOf(each), { ...each, at_ms: each.created_ms, took_ms: each.duration_ms, in_storage: true, phases: {}, parts: [] });
  const add = (each, more) => {
    const stored = all.get(keyOf(each)) || {};
    all.set(keyOf(each), {
      ...stored,
      checkpoint: each.checkpoint,
      state: stored.in_storage && stored.state !== "complete" ? stored.state : NAMES[each.status] || each.status,
      epoch: each.epoch,
      mode: each.mode,
      triggered_ms: each.triggered_ms,
      uploaded_bytes: each.uploaded_bytes,
      total_bytes: each.total_bytes,
      acknowledged: each.acknowledged,
      total_partitions: each.total_partitions,
      waits_for: [],
      reason: each.failure || stored.reason || "",
      ...more,
      partitions: more.partitions && more.partitions.length ? more.partitions : stored.partitions || [],
      parts: each.phases
        ? PHASES.map(([name, , tone]) => ({ tone, value: more.phases[name] || 0 }))
        : each.status === "failed"
          ? [{ tone: "grey", value: more.took_ms || 0 }]
          : [],
    });
  };
  for (const each of history && history.checkpoints ? history.checkpoints : [])
    add(each, { at_ms: each.triggered_ms + each.duration_ms, took_ms: each.duration_ms, phases: each.phases || {} });
  for (const each of live ? live.checkpoints : [])
    add({ ...each, acknowledged: each.partitions.length }, {
      at_ms: each.completed_ms || each.triggered_ms,
      took_ms: each.end_to_end_ms,
      partitions: each.partitions,
      waits_for: each.waits_for,
      phases: { ...(each.phases || {}), shown_ms: each.sinks.reduce((sum, sink) => sum + sink.shown_ms, 0) },
    });
  return [...all.values()].sort((a, b) => a.checkpoint - b.checkpoint || (a.triggered_ms || 0) - (b.triggered_ms || 0));
}
