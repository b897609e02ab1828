// The key inspector: what an operator has for one key, now and at each checkpoint that is kept.

import { Empty, Failure, Hidden, Section, Table } from "./parts.js";
import { ask, html, moment, number, useAnswer, useState } from "./lib.js";

export function KeyView({ id, past, all }) {
  const tables = useAnswer(past && all.values ? `api/jobs/${id}/tables` : null);
  const [operator, setOperator] = useState("");
  const [values, setValues] = useState({});
  const [found, setFound] = useState(null);
  const [asked, setAsked] = useState(false);
  if (!all.values)
    return html`<${Hidden} what="look up a key: its state now and at each checkpoint that is kept, and its timers" />`;
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
    ${found ? (found.error ? html`<${Failure} of=${found} />` : found.tables.map((table) => html`<${History} table=${table} keys=${columns.map((column) => column.name)} />`)) : html`<${Empty} text="Give a key: its state now, at each checkpoint that is kept, and its timers are shown." />`}
  `;
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
