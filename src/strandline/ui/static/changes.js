// Each change of a key: the server runs the job's program over recorded epochs, and the page goes through them step by step.

import { Empty, Failure, Section, Table } from "./parts.js";
import { ask, eventTime, html, moment, number, plural, useEffect, useState } from "./lib.js";

const POLL_MS = 700;

export function Changes({ id, found, keys }) {
  const checkpoints = checkpointsOf(found);
  const [start, setStart] = useState(beforeLastChange(found, checkpoints));
  const [run, setRun] = useState(null);
  const [refusal, setRefusal] = useState(null);
  const take = (answer) => {
    setRefusal(answer.error ? answer : null);
    if (!answer.error) setRun(answer.run);
  };
  const running = run !== null && run.state === "running";
  useEffect(() => {
    let wanted = true;
    const look = () => ask(`api/jobs/${id}/changes`).then((answer) => wanted && take(answer));
    look();
    const timer = running ? setInterval(look, POLL_MS) : null;
    return () => {
      wanted = false;
      clearInterval(timer);
    };
  }, [id, running]);
  const { program, has_changed: hasChanged, why_not: whyNot, command, limit_minutes: limit, is_running: isRunning } = found.changes;
  const origin = checkpoints.find((each) => each.checkpoint === start);
  const isIts = run !== null && run.operator === found.operator && JSON.stringify(run.key) === JSON.stringify(found.key);
  // A running job goes on while its program starts again: the end is the newest checkpoint that is shown.
  const newest = checkpoints.length ? checkpoints.at(-1).epoch : 0;
  const begin = async () => take(await ask(`api/jobs/${id}/changes`, { operator: found.operator, key: found.key, start, to: isRunning ? newest : null }));
  const cancel = async () => take(await ask(`api/jobs/${id}/changes/cancel`, {}));
  return html`
    <${Section} title="Each change" about="With the event that made it, and what it gave, between checkpoints.">
      ${whyNot
        ? html`<p class="note">Not from this page: ${whyNot}. In a terminal: <code>${command.replace("CHECKPOINT", start ?? "CHECKPOINT")}</code></p>`
        : checkpoints.length < 2
          ? html`<p class="note">This needs two checkpoints that are kept: the epochs between them run again.</p>`
          : html`
              <p>Runs the job's own program, <code>${program}</code>, in a process of this machine: from checkpoint ${number(start)} over ${origin.epoch + 1 === newest ? "" : `epoch ${number(origin.epoch + 1)} to `}epoch ${number(newest)}${isRunning ? "" : ", and what is recorded behind it"}. Sources are read again; nothing is written to sinks and checkpoints. It ends after ${number(limit)} minutes at most.</p>
              ${hasChanged ? html`<p class="neck held">The program's file has changed since the job was started: what runs is the new one.</p>` : ""}
              <div class="form choice">
                <label>From checkpoint
                  <select name="start" value=${start} disabled=${running} onChange=${(event) => setStart(Number(event.target.value))}>
                    ${checkpoints.slice(0, -1).toReversed().map((each) => html`<option value=${each.checkpoint}>${number(each.checkpoint)}, epoch ${number(each.epoch)}, of ${moment(each.created_ms)}</option>`)}
                  </select>
                </label>
                <button type="button" class="main" disabled=${running} onClick=${begin}>Each change</button>
                ${running ? html`<button type="button" onClick=${cancel}>Cancel</button>` : ""}
              </div>
            `}
      <div role="status">${running ? html`<${Progress} run=${run} isIts=${isIts} />` : ""}</div>
      ${refusal ? html`<${Failure} of=${refusal} />` : ""}
      ${isIts && run.state === "failed" ? html`<${Failure} of=${run} />` : ""}
      ${isIts && run.state === "cancelled" ? html`<p class="note">It was cancelled: nothing is known of its epochs.</p>` : ""}
      ${isIts && run.state === "done" ? html`<${Result} key=${`${run.start}/${run.changes}`} run=${run} keys=${keys} />` : ""}
    <//>
  `;
}

// The checkpoints at which the key was looked up, oldest first.
function checkpointsOf(found) {
  const all = new Map(found.tables.flatMap((table) => table.at.map((each) => [each.checkpoint, each])));
  return [...all.values()].sort((a, b) => a.checkpoint - b.checkpoint);
}

// The checkpoint behind which the state has changed last; without a change, the last but one.
function beforeLastChange(found, checkpoints) {
  const text = ({ checkpoint }) => JSON.stringify(found.tables.map((table) => (table.at.find((each) => each.checkpoint === checkpoint) || { rows: [] }).rows));
  const texts = checkpoints.map(text);
  const changed = texts.findLastIndex((each, at) => at > 0 && each !== texts[at - 1]);
  const before = checkpoints[changed > 0 ? changed - 1 : checkpoints.length - 2];
  return before ? before.checkpoint : null;
}

function Progress({ run, isIts }) {
  const whose = isIts ? "" : ` of the key ${run.key.join(", ")}`;
  if (run.total === null) return html`<p class="hint">The history${whose} begins: the program starts, up to its job…</p>`;
  return html`<p class="hint"><progress max=${run.total} value=${run.done} aria-label="Epochs that have run"></progress> ${number(run.done)} of ${plural(run.total, "epoch")}${whose} ${run.total === 1 ? "has" : "have"} run; ${plural(run.changes, "change")} found.</p>`;
}

function Result({ run, keys }) {
  const { steps } = run;
  const end = run.first_epoch + run.done;
  const epochs = run.done > 1 ? `, epochs ${number(run.first_epoch)} to ${number(end - 1)}` : run.done ? `, epoch ${number(run.first_epoch)}` : "";
  const failed = run.done < run.total ? ` Epoch ${number(end)} failed again.` : "";
  const range = `From checkpoint ${number(run.start)}${epochs}: ${plural(run.changes, "change")}.${failed}`;
  if (!steps.length) return html`<${Empty} text=${`${range} An older checkpoint has more epochs after it.`} />`;
  const last = steps.findLastIndex((step) => step.rows.length);
  const left = run.changes - steps.length;
  return html`
    <p class="told">${range} What has happened since is not in it.</p>
    <div class="gave">
      <h3>What it last gave</h3>
      ${last < 0 ? html`<p>Nothing in these ${plural(steps.length, "step")}.</p>` : html`<p class="hint">${placeOf(steps[last])}</p><${Rows} step=${steps[last]} />`}
    </div>
    <${Steps} steps=${steps} left=${left} keys=${keys} />
  `;
}

const placeOf = (step) => `epoch ${number(step.epoch)}, ${moment(step.now_ms)}`;

// The key is the same in all of them.
const cause = (step, keys) =>
  step.call === "epoch" ? plural(step.events.length + step.events_left_out, "event") : step.call === "on_timer" ? "a timer" : lineOf(step.events[0].filter(([name]) => !keys.includes(name)));

const lineOf = (fields) => fields.map(([name, text]) => (name ? `${name} ${text ?? "null"}` : (text ?? "null"))).join(", ");

function Steps({ steps, left, keys }) {
  const [at, setAt] = useState(steps.length - 1);
  const [list, setList] = useState(null);
  const go = (to) => setAt(Math.min(Math.max(to, 0), steps.length - 1));
  // The list scrolls, and the page stays where it is.
  useEffect(() => {
    const chosen = list && list.querySelector("[aria-selected=true]");
    if (chosen) list.scrollTop = chosen.offsetTop - (list.clientHeight - chosen.offsetHeight) / 2;
  }, [at, list]);
  const press = (event) => {
    const to = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    go(to);
  };
  const button = (text, to, isOff) => html`<button type="button" aria-disabled=${isOff} onClick=${() => go(to)}>${text}</button>`;
  return html`
    <div class="steps">
      <div class="stepper" onKeyDown=${press}>
        <div class="buttons" role="group" aria-label="Steps; arrow keys go back and forward">
          ${button("First", 0, at === 0)}${button("Back", at - 1, at === 0)}${button("Forward", at + 1, at === steps.length - 1)}${button("Last", steps.length - 1, at === steps.length - 1)}
        </div>
        <ol ref=${setList} role="listbox" tabindex="0" aria-label="Changes, oldest first" aria-activedescendant=${`step-${at}`}>
          ${steps.map(
            (step, index) => html`<li role="option" id=${`step-${index}`} aria-selected=${index === at} onClick=${() => setAt(index)}>
              <b>${number(step.epoch)}</b> ${moment(step.now_ms)} <span>${cause(step, keys)}</span>
            </li>`,
          )}
        </ol>
        ${left ? html`<p class="hint">${plural(left, "earlier change is", "earlier changes are")} left out; <code>strandline history</code> shows all in a terminal.</p>` : ""}
      </div>
      <${Step} step=${steps[at]} at=${at} count=${steps.length} />
    </div>
  `;
}

function Step({ step, at, count }) {
  const { shown, changed_left_out: changedLeft, same_left_out: sameLeft } = step.parts;
  const isTimer = step.call === "on_timer";
  return html`
    <div class="step">
      <div role="status"><h3>Step ${at + 1} of ${count}: ${placeOf(step)}</h3></div>
      <h4>${step.call === "epoch" ? "Events of the key in the epoch" : isTimer ? "Made by the timer of" : "Made by the event"}${step.call === "epoch" || isTimer ? "" : html` <span class="hint">(${step.call})</span>`}</h4>
      ${isTimer
        ? html`<p>${eventTime(step.events[0][0][1])}</p>`
        : step.events.length
          ? step.events.map((fields) => html`<${Fields} fields=${fields} />`)
          : html`<p class="hint">None: time has changed it.</p>`}
      ${step.events_left_out ? html`<p class="hint">and ${plural(step.events_left_out, "more event")}</p>` : ""}
      <h4>State</h4>
      <${Table}
        caption=${`State before and after step ${at + 1}`}
        stack=${true}
        empty="No state before and after."
        rows=${shown}
        mark=${(part) => (part.change ? "held" : "")}
        columns=${[
          { name: "Part", text: (part) => html`<code>${part.path || "value"}</code>` },
          { name: "Before", text: (part) => (part.before === null ? "–" : html`<code>${part.before}</code>`), wide: true },
          { name: "After", text: (part) => (part.after === null ? "–" : html`<code>${part.after}</code>`), wide: true },
          { name: "Change", text: (part) => part.change || "same" },
        ]}
      />
      ${changedLeft || sameLeft ? html`<p class="hint">and ${number(changedLeft)} more that changed, ${number(sameLeft)} that did not</p>` : ""}
      <h4>Timers</h4>
      ${step.timers.length
        ? html`<ul class="values">${step.timers.map((timer) => html`<li>${timer.change} for ${eventTime(timer.at)}, ${timer.clock ? "of the clock" : "of event time"}</li>`)}</ul>`
        : html`<p class="hint">${step.call === "epoch" ? "Not known of a built-in operator." : "None set or deleted."}</p>`}
      <h4>Gave</h4>
      ${step.rows.length ? html`<${Rows} step=${step} />` : html`<p class="hint">No row.</p>`}
    </div>
  `;
}

const Rows = ({ step }) => html`
  ${step.rows.map((row) => html`<div>${row.side ? html`<p class="hint">to the side output ${row.side}</p>` : ""}<${Fields} fields=${row.fields} /></div>`)}
  ${step.rows_left_out ? html`<p class="hint">and ${plural(step.rows_left_out, "more row")}</p>` : ""}
`;

const Fields = ({ fields }) =>
  fields.some(([name]) => name)
    ? html`<dl class="fields">${fields.map(([name, text]) => html`<div><dt>${name}</dt><dd><code>${text ?? "null"}</code></dd></div>`)}</dl>`
    : html`<p class="fields"><code>${lineOf(fields)}</code></p>`;
