// Difference: the state of two checkpoints, key by key, also of two jobs, such as a job and its fork.

import { Empty, Failure, Section, Table } from "./parts.js";
import { ask, html, moment, number, percent, useAnswer, useState } from "./lib.js";

const PARTS = [[1, "all keys"], [0.1, "a tenth of the keys"], [0.01, "a hundredth of the keys"]];

export function DifferenceView({ id, past, all, known }) {
  const [other, setOther] = useState(id);
  const theirs = useAnswer(other === id ? null : `api/jobs/${other}/past`);
  const [chosen, setChosen] = useState({ before: "", after: "", sample: 1 });
  const [found, setFound] = useState(null);
  const [comparing, setComparing] = useState(false);
  const ours = complete(past);
  if (!past) return html`<${Empty} text="Reading the checkpoints…" />`;
  if (!ours.length) return html`<${Empty} text="The job has no complete checkpoint: there is no state to compare yet." />`;
  const after = other === id ? ours : complete(theirs);
  const before = chosen.before || String((ours.at(-2) || ours.at(-1)).checkpoint);
  const until = chosen.after || (after.length ? String(after.at(-1).checkpoint) : "");
  const compare = async (event) => {
    event.preventDefault();
    setComparing(true);
    const answer = await ask(`api/jobs/${id}/difference`, { before: Number(before), after: Number(until), job: other, sample: Number(chosen.sample) });
    setFound({ ...answer, before, after: until, other: all.jobs.find((each) => each.id === other) });
    setComparing(false);
  };
  return html`
    <${Section} title="Difference" about="Of two checkpoints that are kept: which keys one has and the other lacks, and which have another state. Backend, form and parallelism do not matter, nor what had expired.">
      <form class="form" onSubmit=${compare}>
        <label>Before
          <select name="before" value=${before} onChange=${(event) => setChosen({ ...chosen, before: event.target.value })}>${ours.map(option)}</select>
        </label>
        ${all.jobs.length > 1
          ? html`<label>After, of job
              <select name="job" value=${other} onChange=${(event) => { setOther(event.target.value); setChosen({ ...chosen, after: "" }); }}>
                ${all.jobs.map((each) => html`<option value=${each.id}>${each.id === id ? `${known.name} (this one)` : each.name}</option>`)}
              </select>
            </label>`
          : ""}
        <label>${all.jobs.length > 1 ? "Checkpoint" : "After"}
          <select name="after" value=${until} onChange=${(event) => setChosen({ ...chosen, after: event.target.value })}>${after.map(option)}</select>
        </label>
        <label>Compare
          <select name="sample" value=${chosen.sample} onChange=${(event) => setChosen({ ...chosen, sample: event.target.value })}>
            ${PARTS.map(([part, text]) => html`<option value=${part}>${text}</option>`)}
          </select>
        </label>
        <button type="submit" class="main" disabled=${comparing || !until}>${comparing ? "Comparing…" : "Compare"}</button>
      </form>
      ${found && found.error ? html`<${Failure} of=${found} />` : ""}
    <//>
    ${found && found.states ? html`<${Found} found=${found} all=${all} />` : ""}
  `;
}

const complete = (past) => (past && past.checkpoints ? past.checkpoints.filter((each) => each.state === "complete") : []);

const option = (each) => html`<option value=${each.checkpoint}>checkpoint ${each.checkpoint}, epoch ${number(each.epoch)}, ${moment(each.created_ms)}</option>`;

function Found({ found, all }) {
  const equal = found.states.filter((each) => each.equal);
  const other = found.states.filter((each) => !each.equal);
  const read = found.groups_read < found.groups ? ` Read: ${number(found.groups_read)} of ${number(found.groups)} key groups, ${percent(found.groups_read / found.groups)}.` : "";
  return html`
    <${Section} title=${`From checkpoint ${found.before} to checkpoint ${found.after}${found.other ? ` of ${found.other.name}` : ""}`} about=${`${other.length ? `${number(other.length)} of ${number(found.states.length)} states differ.` : "No differences."}${read}`}>
      <${Table}
        caption="States that differ"
        empty=${equal.length ? "All states are equal." : "There are no states."}
        rows=${other}
        columns=${[
          { name: "State", text: name },
          { name: "Keys added", text: (each) => count(each, "added"), right: true },
          { name: "Changed", text: (each) => count(each, "changed"), right: true },
          { name: "Removed", text: (each) => count(each, "removed"), right: true },
          { name: "Rows before", text: (each) => (compared(each) ? number(each.rows_before + each.rows_unread) : "–"), right: true },
          { name: "Rows after", text: (each) => (compared(each) ? number(each.rows_after + each.rows_unread) : "–"), right: true },
          { name: "Remark", text: remark, spare: true },
        ]}
      />
      ${equal.length ? html`<p class="told">Equal: ${equal.map(name).join(", ")}.</p>` : ""}
      ${!all.values && other.length ? html`<p class="note hidden">Keys and values are hidden. Start the page with <code>strandline ui --values shown</code> to see which keys differ.</p>` : ""}
    <//>
    ${other
      .filter((each) => each.keys.length)
      .map(
        (each) => html`
          <${Section} title=${name(each)} about=${each.added + each.changed + each.removed > each.keys.length ? `${number(each.keys.length)} of the keys that differ.` : "The keys that differ."}>
            <${Table}
              caption=${`Keys of ${name(each)} that differ`}
              empty="none"
              rows=${each.keys}
              columns=${[
                { name: "Key", text: (key) => html`<code>${key.key}</code>` },
                { name: "Change", text: (key) => key.change },
                { name: "Before", text: (key) => html`<code>${key.before || "–"}</code>`, wide: true },
                { name: "After", text: (key) => html`<code>${key.after || "–"}</code>`, wide: true },
              ]}
            />
          <//>
        `,
      )}
  `;
}

const name = (each) => (each.state ? `${each.operator}.${each.state}` : each.operator);
const compared = (each) => !each.only && !each.why_not;
const count = (each, what) => (compared(each) ? number(each[what]) : "–");
const remark = (each) => (each.only ? `only ${each.only}` : each.why_not ? `not compared: ${each.why_not}` : each.notes.join("; ") || "–");
