// Partitions: rows, state and busy share of each, skew in words, and the keys with most of the rows.

import { Bar, Empty, Hidden, Section, Table } from "./parts.js";
import { duration, html, number, percent, rate, size } from "./lib.js";

const SKEWED = 1.5;

export function PartitionsView({ live, past, all }) {
  if (!live) return html`<${Stored} past=${past} />`;
  const uids = [...new Set(live.status.keepers.map((each) => each.uid))];
  if (!uids.length) return html`<${Empty} text=${live.status.operators.length ? "Keepers are starting." : "The job has no keyed operator."} />`;
  const rates = new Map(live.rates.map((each) => [`${each.uid}/${each.partition}`, each]));
  const keys = new Map(live.status.operators.map((each) => [each.uid, each.heaviest_keys]));
  return html`
    ${uids.map((uid) => html`<${Operator} uid=${uid} skew=${live.skews[uid]} keys=${keys.get(uid)} shown=${all.values} keepers=${live.status.keepers.filter((each) => each.uid === uid)} rates=${rates} standbys=${live.status.standbys.filter((each) => each.uid === uid)} />`)}
    ${!all.values && live.status.operators.some((each) => each.heaviest_keys.length) ? html`<${Hidden} what="name the keys" />` : ""}
  `;
}

function Operator({ uid, skew, keys, shown, keepers, rates, standbys }) {
  const total = keepers.reduce((sum, each) => sum + each.all_rows_in, 0);
  const share = (each) => (total ? each.all_rows_in / total : 0);
  const most = Math.max(...keepers.map(share), 0.0001);
  const of = (each) => rates.get(`${uid}/${each.partition}`);
  return html`
    <${Section} title=${uid} about=${skew}>
      <${Table}
        caption=${`Partitions of ${uid}`}
        empty="none"
        rows=${keepers}
        mark=${(each) => (keepers.length > 1 && share(each) * keepers.length >= SKEWED ? "held" : "")}
        columns=${[
          { name: "Partition", text: (each) => number(each.partition), right: true },
          { name: "Rows in", text: (each) => number(each.all_rows_in), right: true },
          { name: "Share", text: (each) => html`<${Bar} value=${share(each)} whole=${most} tone="blue" text=${percent(share(each))} />`, right: true },
          { name: "Now", text: (each) => (of(each) ? rate(of(each).rows_in_per_s) : "–"), right: true },
          { name: "Busy", text: (each) => (of(each) ? percent(of(each).busy) : "–"), right: true },
          { name: "State", text: (each) => size(each.state_bytes), right: true },
          { name: "Memory", text: (each) => size(each.memory_bytes), right: true },
          { name: "Late", text: (each) => number(each.late_rows), right: true },
          { name: "Failed", text: (each) => number(each.failed_events || null), right: true, spare: true },
          { name: "Cache hits", text: hits, right: true, spare: true },
          { name: "Restore took", text: (each) => duration(each.restore_ms), right: true },
          { name: "Process", text: (each) => `${each.pid} on ${each.host}` },
          ...(standbys.length ? [{ name: "Standby", text: (each) => standby(standbys.find((one) => one.partition === each.partition)) }] : []),
        ]}
      />
    <//>
    ${keys && keys.length ? html`<${HeaviestKeys} uid=${uid} keys=${keys} shown=${shown} />` : ""}
  `;
}

// The keys with most of the rows lately, named only where the page shows values.
function HeaviestKeys({ uid, keys, shown }) {
  const columns = shown ? Object.keys(keys[0].key) : [];
  return html`
    <${Section} title=${`Heaviest keys of ${uid}`} about="Estimates, from a sample of the rows of the last minute or so.">
      <${Table}
        caption=${`Heaviest keys of ${uid}`}
        empty="none"
        fit=${true}
        rows=${keys}
        columns=${[
          ...columns.map((column) => ({ name: column, text: (each) => html`<code>${each.key[column]}</code>` })),
          { name: "Share of all rows", text: (each) => html`<${Bar} value=${each.share} whole=${1} tone="blue" text=${about(each)} />`, right: true },
          { name: "Partition", text: (each) => number(each.partition), right: true },
        ]}
      />
    <//>
  `;
}

const about = (key) => `${percent(key.share)} ± ${Math.max(1, Math.ceil(100 * key.error - 1e-9))} %`;

function hits(keeper) {
  const { cache_hits: found = 0, cache_misses: missed = 0 } = keeper.metrics;
  return found + missed ? percent(found / (found + missed)) : "–";
}

const standby = (one) => (!one ? "–" : one.failure || (one.host ? `on ${one.host}, checkpoint ${one.checkpoint ?? "none"}` : "no second host"));

function Stored({ past }) {
  const newest = past && past.checkpoints.findLast((each) => each.state === "complete");
  if (!newest) return html`<${Empty} text="No driver of the job answers here, and no checkpoint of it can be read." />`;
  return html`
    <${Section} title="At the newest checkpoint" about=${`No driver of the job answers here. Checkpoint ${newest.checkpoint} has these partitions.`}>
      <${Table}
        caption="Partitions"
        empty="The job has no keyed operator."
        rows=${newest.partitions}
        columns=${[
          { name: "Operator", text: (each) => each.uid },
          { name: "Partition", text: (each) => number(each.partition), right: true },
          { name: "Size", text: (each) => size(each.bytes), right: true },
          { name: "Files", text: (each) => number(each.files), right: true },
          { name: "New", text: (each) => size(each.uploaded_bytes), right: true },
          { name: "Synchronous", text: (each) => duration(each.sync_ms), right: true },
          { name: "Written and uploaded", text: (each) => duration(each.async_ms), right: true },
        ]}
      />
    <//>
  `;
}
