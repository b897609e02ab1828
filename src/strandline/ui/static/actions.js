// Buttons that change a running job; each says first what it will do.

import { age, ask, html, moment, number, useEffect, useRef, useState } from "./lib.js";

const absolute = (url) => url.startsWith("/") || url.includes("://");

// The checkpoints that are kept, as options; the newest is where the job is.
const older = (past) =>
  (past && past.checkpoints ? past.checkpoints : [])
    .filter((each) => each.state === "complete")
    .slice(0, -1)
    .reverse()
    .map((each) => [each.checkpoint, `${each.checkpoint}, epoch ${number(each.epoch)}, of ${moment(each.created_ms)}`]);

// What each button asks for, and says: {title, says(status), fields, body(values), done(answer)}
const ACTIONS = {
  checkpoint: {
    title: "Checkpoint",
    says: () => "Takes a checkpoint now and waits for it. Epochs go on meanwhile.",
    body: () => ({}),
    done: (answer) => `Checkpoint ${answer.checkpoint} is complete.`,
  },
  savepoint: {
    title: "Savepoint",
    says: () => "Takes a checkpoint, and makes a folder of it that no job owns or deletes. Epochs go on meanwhile.",
    fields: [{ name: "url", label: "New folder: an absolute path or a URL", check: (text) => absolute(text) || "an absolute path or a URL" }],
    body: (values) => ({ url: values.url }),
    done: (answer) => `The savepoint is in ${answer.url}.`,
  },
  rescale: {
    title: "Rescale",
    says: () => "Takes a checkpoint, and goes on from it with this number of partitions for each operator without one of its own. The job pauses for the restore. It holds until the next start.",
    fields: [{ name: "parallelism", label: "Partitions", check: (text) => /^[1-9][0-9]*$/.test(text) || "a number from 1 on" }],
    body: (values) => ({ parallelism: Number(values.parallelism) }),
    done: (answer) => `The job goes on with parallelism ${answer.parallelism}.`,
  },
  rollback: {
    title: "Roll back",
    says: () => "Goes back to an older checkpoint that is kept. Later checkpoints become void for ever; exactly-once sinks take back what they have shown since, and others write it again. The sources are read again from there.",
    fields: [{ name: "checkpoint", label: "Checkpoint", check: (text) => text !== "", options: older }],
    body: (values) => ({ checkpoint: Number(values.checkpoint) }),
    done: () => "The job has gone back.",
    grave: true,
  },
  stop: {
    title: "Stop",
    says: (status) =>
      status.uncovered_ms
        ? `Takes a last checkpoint and ends the job and its keepers: its program goes on after await_termination(). Nothing is processed again at the next start. Not in a checkpoint now: ${age(status.uncovered_ms)}.`
        : "Takes a last checkpoint and ends the job and its keepers: its program goes on after await_termination(). Nothing is processed again at the next start.",
    body: () => ({ checkpoint: true }),
    done: () => "The job has ended.",
    grave: true,
  },
};

export function Actions({ id, live, all, past }) {
  // The dialog stays with its outcome, also when the job has ended meanwhile.
  const [open, setOpen] = useState(null);
  const isLive = !all.read_only && live && live.status;
  const running = (isLive && live.actions) || [];
  return html`
    ${isLive
      ? html`<div class="actions" role="group" aria-label="Commands">
          ${Object.entries(ACTIONS).map(
            ([name, action]) => html`<button type="button" class=${action.grave ? "grave" : ""} onClick=${() => setOpen({ name, status: live.status })}>${action.title}…</button>`,
          )}
        </div>`
      : ""}
    ${running.map((each) => html`<p class="note" role="status">${each.name}: ${each.step || "asked for"}${each.total ? `, ${number(each.done)} of ${number(each.total)} ${each.unit}` : ""}</p>`)}
    ${open ? html`<${Dialog} key=${open.name} id=${id} ...${open} past=${past} onClose=${() => setOpen(null)} />` : ""}
  `;
}

function Dialog({ id, name, status, past, onClose }) {
  const action = ACTIONS[name];
  const dialog = useRef(null);
  const [values, setValues] = useState({});
  const [outcome, setOutcome] = useState(null);
  const [asked, setAsked] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  const set = (field, event) => setValues({ ...values, [field.name]: event.target.value });
  const problems = (action.fields || []).filter((field) => field.check((values[field.name] || "").trim()) !== true);
  const send = async (event) => {
    event.preventDefault();
    if (asked || problems.length) return;
    setAsked(true);
    const trimmed = Object.fromEntries(Object.entries(values).map(([key, text]) => [key, text.trim()]));
    setOutcome(await ask(`api/jobs/${id}/actions/${name}`, action.body(trimmed)));
  };
  return html`
    <dialog ref=${dialog} onClose=${onClose} aria-labelledby="dialog-title">
      <form onSubmit=${send}>
        <h2 id="dialog-title">${action.title}: ${status.job}</h2>
        <p>${action.says(status)}</p>
        ${(action.fields || []).map(
          (field) => html`<label>${field.label}
            ${field.options
              ? html`<select name=${field.name} value=${values[field.name] || ""} onChange=${(event) => set(field, event)} disabled=${asked}>
                  <option value="">choose one</option>
                  ${field.options(past).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
                </select>`
              : html`<input name=${field.name} autocomplete="off" value=${values[field.name] || ""} onInput=${(event) => set(field, event)} disabled=${asked} />`}
          </label>`,
        )}
        <div role="status">
          ${asked && !outcome ? html`<p class="hint">The job is working on it. You can close this: it goes on.</p>` : ""}
          ${outcome && outcome.error ? html`<p class="error">${outcome.error}${outcome.hint ? ` Next step: ${outcome.hint}` : ""}</p>` : ""}
          ${outcome && !outcome.error ? html`<p class="done">${action.done(outcome)}</p>` : ""}
        </div>
        <div class="buttons">
          <button type="button" onClick=${() => dialog.current.close()}>${asked ? "Close" : "Cancel"}</button>
          ${asked ? "" : html`<button type="submit" class=${action.grave ? "grave main" : "main"} disabled=${problems.length > 0}>${action.title}</button>`}
        </div>
      </form>
    </dialog>
  `;
}
