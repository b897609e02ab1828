// The state browser: operators, their states, rows of a snapshot, and SQL over them.

import { Empty, Failure, Hidden, Section, Table } from "./parts.js";
import { Plot } from "./plot.js";
import { ask, html, number, plural, size, useAnswer, useKept, useRef, useState } from "./lib.js";

export function StateView({ id, past, all }) {
  const [checkpoint, setCheckpoint] = useState("");
  const suffix = checkpoint ? `?checkpoint=${checkpoint}` : "";
  const tables = useAnswer(past ? `api/jobs/${id}/tables${suffix}` : null);
  const known = useKept(tables);
  const [table, setTable] = useState("");
  const kept = past ? past.checkpoints.filter((each) => each.state === "complete").toReversed() : [];
  if (past && !kept.length) return html`<${Empty} text="The job has no complete checkpoint: there is no state to read yet." />`;
  const chooser = html`
    <label>Snapshot
      <select value=${checkpoint} onChange=${(event) => setCheckpoint(event.target.value)}>
        <option value="">newest checkpoint</option>
        ${kept.map((each) => html`<option value=${each.checkpoint}>checkpoint ${each.checkpoint}, epoch ${number(each.epoch)}</option>`)}
      </select>
    </label>
  `;
  return html`
    <${Section} title="States" about=${tables && tables.url ? `Tables of checkpoint ${tables.checkpoint}, epoch ${number(tables.epoch)}. Each state of each operator is one.` : "Each state of each operator is a table."} tools=${chooser}>
      ${!tables
        ? html`<${Empty} text="Reading the snapshot…" />`
        : tables.error
          ? html`<${Failure} of=${tables} />`
          : html`<${Table}
              caption="Tables"
              empty="The job has no keyed operator."
              rows=${tables.tables}
              mark=${(each) => (each.table === table ? "chosen" : "")}
              columns=${[
                { name: "Table", text: (each) => (all.values ? html`<button type="button" class="link" aria-pressed=${each.table === table} onClick=${() => setTable(each.table)}>${each.table}</button>` : each.table) },
                { name: "Kind", text: (each) => each.kind },
                { name: "Columns", text: (each) => html`<code>${Object.entries(each.columns).map(([name, type]) => `${name} ${type}`).join(", ")}</code>`, wide: true },
                ...(tables.tables.some((each) => each.rows !== null) ? [{ name: "Rows", text: (each) => number(each.rows), right: true }, { name: "Size", text: (each) => size(each.bytes), right: true }] : []),
              ]}
            />`}
    <//>
    ${!all.values
      ? html`<${Hidden} what="see rows and use SQL" />`
      : html`${table ? html`<${Rows} id=${id} table=${table} checkpoint=${checkpoint} onClose=${() => setTable("")} />` : ""}
          ${known ? html`<${Query} id=${id} checkpoint=${checkpoint} first=${known.tables && known.tables.length ? known.tables[0].table : ""} />` : ""}`}
  `;
}

function Rows({ id, table, checkpoint, onClose }) {
  const rows = useAnswer(`api/jobs/${id}/rows?table=${encodeURIComponent(table)}${checkpoint ? `&checkpoint=${checkpoint}` : ""}`);
  return html`
    <${Section} title=${table} about="Its first rows, in the order of key groups." tools=${html`<button type="button" onClick=${onClose}>Close</button>`}>
      ${!rows ? html`<${Empty} text="Reading rows…" />` : html`<${Result} of=${rows} caption=${`Rows of ${table}`} />`}
    <//>
  `;
}

// `first` is the table of the query that is suggested at the beginning: later, it might be put into what is typed.
function Query({ id, checkpoint, first }) {
  const [sql, setSql] = useState(first ? `SELECT count(*) AS rows FROM ${first}` : "");
  const [result, setResult] = useState(null);
  const [running, setRunning] = useState(false);
  const field = useRef(null);
  // What the field has: a key may come before the state has what was typed.
  const run = async (event) => {
    event.preventDefault();
    setRunning(true);
    setResult(await ask(`api/jobs/${id}/query${checkpoint ? `?checkpoint=${checkpoint}` : ""}`, { sql: field.current.value }));
    setRunning(false);
  };
  return html`
    <${Section} title="SQL" about="One SELECT of DuckDB's SQL. Tables are called as above; metadata.files, metadata.partitions and metadata.history describe the snapshot. A result with numbers is plotted, too.">
      <form onSubmit=${run}>
        <label class="unseen" for="sql">SQL</label>
        <textarea id="sql" ref=${field} rows="4" spellcheck="false" value=${sql} onInput=${(event) => setSql(event.target.value)} onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run(event)}></textarea>
        <p class="form"><button type="submit" class="main" disabled=${running || !sql.trim()}>${running ? "Running…" : "Run"}</button><span class="hint">Ctrl+Enter runs it, too.</span></p>
      </form>
      ${result && result.columns ? html`<${Plot} key=${JSON.stringify(result.columns)} of=${result} />` : ""}
      ${result ? html`<${Result} of=${result} caption="Result" />` : ""}
    <//>
  `;
}

export function Result({ of, caption }) {
  if (of.error) return html`<${Failure} of=${of} />`;
  return html`
    <${Table}
      caption=${caption}
      fit=${true}
      empty="No rows."
      rows=${of.rows}
      columns=${of.columns.map((column, at) => ({ name: column.name, right: column.is_number, text: (row) => (row[at] === null ? html`<span class="null">null</span>` : row[at]) }))}
    />
    <p class="told">${of.has_more ? "The first " : ""}${plural(of.rows.length, "row")} of checkpoint ${of.checkpoint}, epoch ${number(of.epoch)}.</p>
  `;
}
