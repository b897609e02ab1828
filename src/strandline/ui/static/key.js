// The key inspector: what an operator has for one key, now and at each checkpoint that is kept, and each change between.

import { Changes } from "./changes.js";
import { Empty, Facts, Failure, Hidden, Section, Table } from "./parts.js";
import { ask, eventTime, html, moment, number, useAnswer, useState } from "./lib.js";

export function KeyView({ id, past, all }) {
  const tables = useAnswer(past && all.values ? `api/jobs/${id}/tables` : null);
  const [operator, setOperator] = useState("");
  const [values, setValues] = useState({});
  const [found, setFound] = useState(null);
  const [asked, setAsked] = useState(false);
  if (!all.values)
    return html`<${Hidden} what="look up a key: its state now and at each checkpoint that is kept, its timers, and each change of it" />`;
  if (!tables) return html`<${Empty} text="Reading the newest checkpoint…" />`;
  if (tables.error) return html`<${Failure} of=${tables} />`;
  const uids = Object.keys(tables.keys);
  if (!uids.length) return html`<${Empty} text="The job has no keyed operator." />`;
  const uid = operator || uids[0];
  const columns = tables.keys[uid];
  const complete = columns.every((column) => values[column.name] !== undefined);
  const look = async (event) => {
    event.preventDefault();
    setAsked(true);
    setFound(await ask(`api/jobs/${id}/key`, { operator: uid, key: columns.map((column) => values[column.name]) }));
    setAsked(false);
  };
  return html`
    <form class="form" onSubmit=${look}>
      <label>Operator
        <select value=${uid} onChange=${(event) => { setOperator(event.target.value); setFound(null); }}>
          ${uids.map((each) => html`<option value=${each}>${each}</option>`)}
        </select>
      </label>
      ${columns.map(
        (column) => html`<label>${column.name} (${column.type})
          <input name=${column.name} autocomplete="off" spellcheck="false" value=${values[column.name] || ""} onInput=${(event) => setValues({ ...values, [column.name]: event.target.value })} />
        </label>`,
      )}
      <button type="submit" class="main" disabled=${asked || !complete}>${asked ? "Looking…" : "Look up"}</button>
    </form>
    ${found ? (found.error ? html`<${Failure} of=${found} />` : html`<${Found} key=${`${uid}/${found.text}`} id=${id} found=${found} keys=${columns.map((column) => column.name)} />`) : html`<${Empty} text="Give a key: its state now, at each checkpoint that is kept, and its timers are shown." />`}
  `;
}

const Found = ({ id, found, keys }) => html`
  <${Facts} facts=${[...found.tables.filter((table) => table.kind === "timers").map(nextTimer), nextExpiry(found.tables)]} />
  <${Changes} id=${id} found=${found} keys=${keys} />
  ${found.tables.map((table) => html`<${History} table=${table} keys=${keys} />`)}
`;

const valueOf = (at, row, name) => row[at.columns.findIndex((column) => column.name === name)];

// Of the running job, or as of its newest checkpoint.
function nextTimer(table) {
  const title = table.table.endsWith("processing") ? "Next timer, clock" : "Next timer, event time";
  if (table.now && !table.now.error) return [title, table.now.first ? eventTime(table.now.first) : "none", "now, in UTC"];
  const at = table.at.at(-1);
  return [title, at.rows.length ? eventTime(valueOf(at, at.rows[0], "time")) : "none", `at checkpoint ${at.checkpoint}, in UTC`];
}

// The soonest of all states, as of the newest checkpoint: a running job does not tell when a value expires.
function nextExpiry(tables) {
  const expiring = tables.filter((table) => table.ttl);
  if (!expiring.length) return ["Next expiry", "never", "no state of the operator has a TTL"];
  const times = expiring.flatMap((table) => {
    const at = table.at.at(-1);
    return at.rows.map((row) => ({ table, at: valueOf(at, row, "expires_at") }));
  });
  const [first] = times.filter((each) => each.at).sort((a, b) => (a.at < b.at ? -1 : 1));
  const as = `at checkpoint ${expiring[0].at.at(-1).checkpoint}, in UTC`;
  return first ? ["Next expiry", eventTime(first.at), `${first.table.table}, by ${first.table.ttl === "event" ? "event time" : "the clock"}, ${as}`] : ["Next expiry", "none", as];
}

// One line for each state that a table was in; checkpoints without a change are one line.
function History({ table, keys }) {
  const versions = [];
  for (const at of table.at) {
    const shown = at.columns.map((column, index) => index).filter((index) => at.columns[index].name !== "key_group" && !keys.includes(at.columns[index].name));
    const text = JSON.stringify(at.rows.map((row) => shown.map((index) => row[index])));
    const last = versions.at(-1);
    if (last && last.text === text) last.to = at;
    else versions.push({ text, from: at, to: at, shown });
  }
  const nothing = versions.every((each) => !each.from.rows.length) && (!table.now || table.now.value === null);
  return html`
    <${Section} title=${table.table} about=${table.kind}>
      ${table.now
        ? html`<p class="now"><b>Now${table.now.epoch ? `, epoch ${number(table.now.epoch)}` : ""}</b> ${table.now.error ? html`<span class="error">${table.now.error}</span>` : table.now.value === null ? "nothing" : html`<code>${table.now.value}</code>`}</p>`
        : ""}
      ${nothing
        ? html`<p class="told">Nothing at any checkpoint that is kept.</p>`
        : html`<${Table}
            fit=${true}
            stack=${true}
            caption=${`${table.table} at checkpoints`}
            empty="No checkpoint that is kept has this state."
            rows=${versions.toReversed()}
            columns=${[
              { name: "Checkpoints", text: (each) => (each.from === each.to ? number(each.from.checkpoint) : `${number(each.from.checkpoint)} – ${number(each.to.checkpoint)}`) },
              { name: "Epoch", text: (each) => number(each.from.epoch), right: true },
              { name: "Taken", text: (each) => moment(each.from.created_ms) },
              { name: "State", text: (each) => html`<${Stored} version=${each} />`, wide: true },
            ]}
          />`}
    <//>
  `;
}

function Stored({ version }) {
  const { rows, columns, has_more: more } = version.from;
  if (!rows.length) return "nothing";
  const line = (row) => version.shown.map((index) => (version.shown.length === 1 ? row[index] ?? "null" : `${columns[index].name} ${row[index] ?? "null"}`)).join(", ");
  return html`<ul class="values">${rows.slice(0, 12).map((row) => html`<li><code>${line(row)}</code></li>`)}${rows.length > 12 ? html`<li class="hint">and ${more ? "more than " : ""}${number(rows.length - 12)} more rows</li>` : ""}</ul>`;
}
