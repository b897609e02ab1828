// The state browser: operators, their states, rows of a snapshot or of the running job, and SQL over snapshots.

import { Empty, Failure, Hidden, Section, Table } from "./parts.js";
import { Plot } from "./plot.js";
import { ask, html, number, plural, size, useAnswer, useKept, useRef, useState } from "./lib.js";

const NOW = "now";

export function StateView({ id, past, all }) {
  const [chosen, setChosen] = useState("");
  const job = all.jobs.find((each) => each.id === id);
  const runs = job && job.state === "running";
  const kept = past ? past.checkpoints.filter((each) => each.state === "complete").toReversed() : [];
  // Without a checkpoint, there is what the job has now.
  const checkpoint = chosen === NOW && !runs ? "" : chosen || (runs && past && !kept.length ? NOW : "");
  const suffix = checkpoint ? `?checkpoint=${checkpoint}` : "";
  const tables = useAnswer(past ? `api/jobs/${id}/tables${suffix}` : null);
  const known = useKept(tables);
  const [table, setTable] = useState("");
  if (past && !kept.length && !runs) return html`<${Empty} text="The job has no complete checkpoint: there is no state to read yet." />`;
  const chooser = html`
    <label>State
      <select name="snapshot" value=${checkpoint} onChange=${(event) => setChosen(event.target.value)}>
        ${kept.length ? html`<option value="">newest checkpoint</option>` : ""}
        ${runs ? html`<option value=${NOW}>now</option>` : ""}
        ${kept.map((each) => html`<option value=${each.checkpoint}>checkpoint ${each.checkpoint}, epoch ${number(each.epoch)}</option>`)}
      </select>
    </label>
  `;
  return html`
    <${Section} title="States" about=${tables && tables.url ? `Tables of checkpoint ${tables.checkpoint}, epoch ${number(tables.epoch)}. Each state of each operator is one.` : checkpoint === NOW ? "What the job has now, as of its last epoch. Each state of each operator is a table." : "Each state of each operator is a table."} tools=${chooser}>
      ${!tables
        ? html`<${Empty} text=${checkpoint === NOW ? "Asking the job…" : "Reading the snapshot…"} />`
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
                { name: checkpoint === NOW ? "Key" : "Columns", text: (each) => html`<code>${Object.entries(each.columns).map(([name, type]) => `${name} ${type}`).join(", ")}</code>`, wide: true },
                ...(tables.tables.some((each) => each.rows !== null && each.rows !== undefined) ? [{ name: "Rows", text: (each) => number(each.rows), right: true }, { name: "Size", text: (each) => size(each.bytes), right: true }] : []),
              ]}
            />`}
    <//>
    ${!all.values
      ? html`<${Hidden} what="see rows and use SQL" />`
      : html`${table ? (checkpoint === NOW ? html`<${Living} key=${table} id=${id} table=${table} of=${tables && !tables.error ? tables.tables.find((each) => each.table === table) : null} onClose=${() => setTable("")} />` : html`<${Rows} id=${id} table=${table} checkpoint=${checkpoint} onClose=${() => setTable("")} />`) : ""}
          ${checkpoint === NOW ? html`<p class="told">SQL and all rows are of checkpoints: choose one above.</p>` : known ? html`<${Query} id=${id} checkpoint=${checkpoint} first=${known.tables && known.tables.length ? known.tables[0].table : ""} />` : ""}`}
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

// Some keys of the running job, of all partitions or of one, or what it has of a key that is given.
function Living({ id, table, of, onClose }) {
  const [partition, setPartition] = useState("");
  const [texts, setTexts] = useState({});
  const [key, setKey] = useState([]);
  const [again, setAgain] = useState(0);
  const wanted = key.length ? key.map((text) => `&key=${encodeURIComponent(text)}`).join("") : partition && `&partition=${partition}`;
  const rows = useKept(useAnswer(of ? `api/jobs/${id}/rows?checkpoint=${NOW}&table=${encodeURIComponent(table)}${wanted}` : null, again));
  if (!of) return html`<${Empty} text="The job has no such table now." />`;
  const columns = Object.entries(of.columns);
  const look = (event) => {
    event.preventDefault();
    setKey(columns.map(([name]) => texts[name]));
    setAgain(again + 1);
  };
  const tools = html`
    ${of.partitions > 1 && !key.length
      ? html`<label>Partition
          <select name="partition" value=${partition} onChange=${(event) => setPartition(event.target.value)}>
            <option value="">all</option>
            ${Array.from({ length: of.partitions }, (_, each) => html`<option value=${each}>${each}</option>`)}
          </select>
        </label>`
      : ""}
    <button type="button" onClick=${() => setAgain(again + 1)}>Read again</button>
    <button type="button" onClick=${onClose}>Close</button>
  `;
  return html`
    <${Section} title=${table} about="Some keys, as a look-up of each gives them; no epoch waits for it." tools=${tools}>
      <form class="form" onSubmit=${look}>
        ${columns.map(
          ([name, type]) => html`<label>${name} (${type})
            <input name=${name} autocomplete="off" spellcheck="false" value=${texts[name] || ""} onInput=${(event) => setTexts({ ...texts, [name]: event.target.value })} />
          </label>`,
        )}
        <button type="submit" disabled=${columns.some(([name]) => texts[name] === undefined)}>Look up</button>
        ${key.length ? html`<button type="button" onClick=${() => setKey([])}>Some keys</button>` : ""}
      </form>
      ${!rows ? html`<${Empty} text="Asking the job…" />` : html`<${Result} of=${rows} caption=${`Keys of ${table}`} />`}
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
    <p class="told">${
      of.checkpoint === undefined
        ? `${plural(of.rows.length, "key")} as of epoch ${number(of.epoch)}${of.has_more ? "; there are more, or may be" : ""}.`
        : `${of.has_more ? "The first " : ""}${plural(of.rows.length, "row")} of checkpoint ${of.checkpoint}, epoch ${number(of.epoch)}.`
    }</p>
  `;
}
