// The buttons. Each says first what it will do, and then what has happened.

import { act, clock, html, number, useEffect, useRef, useState } from "./lib.js";

const partitions = (view) => view.keepers.map((keeper) => [String(keeper.partition), `partition ${keeper.partition}: process ${keeper.pid}`]);

// Where the job can go back to: what it keeps, and the savepoints.
const places = (view) => [
  ...[...view.kept].reverse().map((each) => [`checkpoint ${each.checkpoint}`, `checkpoint ${each.checkpoint}, of ${clock(each.at_s)}, epoch ${number(each.epoch)}`]),
  ...[...view.savepoints].reverse().map((each) => [each.name, `${each.name}: ${number(each.payments)} payments`]),
];

// {title, says(view), fields: [{name, label, options(view) or least and most, first(view)}], wanted(values), possible(view)}
const ACTIONS = {
  kill: {
    title: "Kill a keeper",
    says: () => "Sends kill -9 to the process that holds a partition's state. The job goes back to its newest checkpoint, reads the payments since then again, and no alert is lost or doubled.",
    fields: [{ name: "partition", label: "Keeper", options: partitions }],
    wanted: (values) => ({ partition: Number(values.partition) }),
    grave: true,
  },
  rescale: {
    title: "Rescale",
    says: (view) => `Takes a checkpoint, divides the cards' state among another number of keepers (now ${view.parallelism}), and goes on. Alerts stay the same.`,
    fields: [{ name: "parallelism", label: "Partitions, 1 to 8", least: 1, most: 8, first: (view) => (view.parallelism === 3 ? 2 : 3) }],
    wanted: (values) => ({ parallelism: Number(values.parallelism) }),
  },
  savepoint: {
    title: "Savepoint",
    says: () => "Writes the state of all cards into a folder of Parquet tables, which no job deletes. The job goes on meanwhile, and can go back to it later.",
    wanted: () => ({}),
  },
  back: {
    title: "Go back in time",
    says: () => "Goes back to an older checkpoint or savepoint. Alerts that came later are taken back out of the sink, the payments since then are read again, and the alerts come again. Later checkpoints are void for ever.",
    fields: [{ name: "place", label: "Back to", options: places }],
    wanted: ({ place }) => (place.startsWith("checkpoint ") ? { checkpoint: Number(place.slice(11)) } : { savepoint: place }),
    possible: (view) => places(view).length > 0,
    grave: true,
  },
  fork: {
    title: "Fork with other rules",
    says: () => "Takes a savepoint and starts a second job from it, with the same state and other rules, over the same payments. Both go on side by side; this job does not notice.",
    fields: [
      { name: "tests", label: "Small payments before a big one that are card testing (this job: 4)", least: 1, most: 10, first: () => 6 },
      { name: "deviations", label: "Standard deviations that are an unusual amount (this job: 6)", least: 1, most: 20, first: () => 4 },
    ],
    wanted: (values) => ({ tests: Number(values.tests), deviations: Number(values.deviations) }),
    possible: (view) => !view.fork,
  },
  end_fork: {
    title: "End the fork",
    says: (view) => `Stops the job ${view.fork.name}. The alerts that it has written stay where they are.`,
    wanted: () => ({}),
    possible: (view) => Boolean(view.fork),
  },
};

export function Actions({ view }) {
  // The dialog stays with its outcome.
  const [open, setOpen] = useState(null);
  const runs = view.state === "running" && !view.is_last;
  return html`
    <div class="actions" role="group" aria-label="What can be done to the job">
      ${Object.entries(ACTIONS)
        .filter(([name, action]) => !["fork", "end_fork"].includes(name) || action.possible(view))
        .map(([name, action]) => html`<button type="button" class=${action.grave ? "grave" : ""}
          disabled=${!runs || Boolean(view.doing) || (action.possible && !action.possible(view))}
          onClick=${() => setOpen({ name, view })}>${action.title}…</button>`)}
      <span class="hint" role="status">${view.doing ? `The dashboard is busy: ${ACTIONS[view.doing] ? ACTIONS[view.doing].title.toLowerCase() : view.doing}.` : ""}</span>
    </div>
    ${open ? html`<${Dialog} key=${open.name} ...${open} onClose=${() => setOpen(null)} />` : ""}
  `;
}

function Dialog({ name, view, onClose }) {
  const action = ACTIONS[name];
  const dialog = useRef(null);
  const fields = action.fields || [];
  const [values, setValues] = useState(Object.fromEntries(fields.map((field) => [field.name, String(field.options ? field.options(view)[0][0] : field.first(view))])));
  const [outcome, setOutcome] = useState(null);
  const [asked, setAsked] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  const send = async (event) => {
    event.preventDefault();
    if (asked) return;
    setAsked(true);
    setOutcome(await act(name, action.wanted(values)));
  };
  const set = (field) => (event) => setValues({ ...values, [field.name]: event.target.value });
  return html`
    <dialog ref=${dialog} onClose=${onClose} aria-labelledby="dialog-title">
      <form onSubmit=${send}>
        <h2 id="dialog-title">${action.title}</h2>
        <p>${action.says(view)}</p>
        ${fields.map((field) => html`<label>${field.label}
          ${field.options
            ? html`<select name=${field.name} value=${values[field.name]} onChange=${set(field)} disabled=${asked}>
                ${field.options(view).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
              </select>`
            : html`<input name=${field.name} type="number" required min=${field.least} max=${field.most} value=${values[field.name]} onInput=${set(field)} disabled=${asked} />`}
        </label>`)}
        <div role="status">
          ${asked && !outcome ? html`<p class="hint">Working on it. You can close this: it goes on.</p>` : ""}
          ${outcome && outcome.error ? html`<p class="error">${outcome.error}</p>` : ""}
          ${outcome && outcome.done ? html`<p class="done">Done: ${outcome.done}.</p>` : ""}
        </div>
        <div class="buttons">
          <button type="button" onClick=${() => dialog.current.close()}>${asked ? "Close" : "Cancel"}</button>
          ${asked ? "" : html`<button type="submit" class=${action.grave ? "grave main" : "main"}>${action.title}</button>`}
        </div>
      </form>
    </dialog>
  `;
}
