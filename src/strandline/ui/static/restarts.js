// Restarts and rescales: when, why, and what they cost; generations; the drivers' log.

import { Empty, Failure, Section, Table } from "./parts.js";
import { age, html, moment, number, useAnswer, useKept, useState } from "./lib.js";

export function RestartsView({ id, live, past, turn }) {
  const count = live ? live.interruptions.length : 0;
  const history = useKept(useAnswer(`api/jobs/${id}/history?hours=1`, `${count}/${turn}`));
  // Those of this run may not be in the log yet.
  const known = new Map([...(history && history.interruptions ? history.interruptions : []), ...(live ? live.interruptions : [])].map((each) => [each.at_ms, each]));
  return html`
    <${Section} title="Restarts and rescales" about="After failures, by commands, and rollbacks; also of earlier runs on this machine. Rows after the checkpoint were processed again; exactly-once sinks had not shown them.">
      ${live || history
        ? html`<${Table}
            caption="Interruptions"
            stack=${true}
            empty=${live ? "The job has worked without interruption since its start." : "The log of events on this machine has no interruption of the job."}
            rows=${[...known.values()].sort((a, b) => b.at_ms - a.at_ms)}
            columns=${[
              { name: "At", text: (each) => moment(each.at_ms) },
              { name: "What", text: (each) => (each.kind === "failure" ? "restart after a failure" : each.cause) },
              { name: "Cause", text: (each) => (each.kind === "failure" ? html`<${Cause} text=${each.cause} />` : "asked for"), wide: true },
              { name: "Down for", text: (each) => age(each.down_ms), right: true },
              { name: "From checkpoint", text: (each) => number(each.checkpoint), right: true },
              { name: "Rows again", text: (each) => number(each.repeated_rows), right: true },
            ]}
          />`
        : html`<${Empty} text="Reading the log of events…" />`}
    <//>
    <${Section} title="Generations" about="Each start and each restart of the job is a generation. It begins with a checkpoint; later ones of older generations are void.">
      ${past
        ? html`<${Table}
            caption="Generations"
            empty="The job's folder has no record of a generation."
            rows=${past.generations.toReversed()}
            columns=${[
              { name: "Generation", text: (each) => number(each.generation) },
              { name: "Begins with", text: (each) => (each.checkpoint !== null ? `checkpoint ${each.checkpoint}` : each.restored ? html`<code>${each.restored}</code> of job ${each.job}` : "nothing"), wide: true },
              { name: "Its checkpoints that are kept", text: (each) => past.checkpoints.filter((one) => one.generation === each.generation).map((one) => one.checkpoint).join(", ") || "none", wide: true },
            ]}
          />`
        : html`<${Empty} text="Reading the job's folder…" />`}
      ${past && past.damaged_records.length ? html`<${Failure} of=${{ error: `Damaged records: ${past.damaged_records.join("; ")}` }} />` : ""}
    <//>
    <${Log} id=${id} again=${count} />
  `;
}

function Cause({ text }) {
  const [first, ...rest] = text.split("\n");
  return rest.length ? html`<details><summary>${first}</summary><pre>${rest.join("\n")}</pre></details>` : first;
}

function Log({ id, again }) {
  const [details, setDetails] = useState(false);
  const [turn, setTurn] = useState(0);
  const entries = useAnswer(`api/jobs/${id}/log`, `${again}/${turn}`);
  if (!entries) return html`<${Empty} text="Reading the drivers' log…" />`;
  if (entries.error) return html`<${Failure} of=${entries} />`;
  const shown = entries.filter((each) => details || each.level !== "DEBUG").toReversed();
  const tools = html`
    <label class="check"><input type="checkbox" checked=${details} onChange=${() => setDetails(!details)} /> each checkpoint, too</label>
    <button type="button" onClick=${() => setTurn(turn + 1)}>Read again</button>
  `;
  return html`
    <${Section} title="What its drivers have logged" about="On this machine, newest first; earlier runs, too." tools=${tools}>
      <${Table}
        caption="Log of the drivers"
        empty="No driver of the job has written a log on this machine."
        rows=${shown}
        mark=${(each) => (each.level === "ERROR" ? "bad" : each.level === "WARNING" ? "held" : "")}
        columns=${[
          { name: "At", text: (each) => moment(Date.parse(each.at)) },
          { name: "Process", text: (each) => each.pid, right: true, minor: true },
          { name: "Level", text: (each) => each.level.toLowerCase(), minor: true },
          { name: "Text", text: (each) => html`<${Cause} text=${each.text} />`, wide: true },
        ]}
      />
    <//>
  `;
}
