// Epochs: where the time of each goes, now and in the last hours.

import { Columns } from "./columns.js";
import { Empty, Facts, Failure, Legend, Section, Table } from "./parts.js";
import { clock, duration, firstLine, html, moment, number, percent, plural, rate, useAnswer, useKept, useState } from "./lib.js";

const TONES = ["green", "blue", "violet", "red"];
const HOURS = [["1", "the last hour"], ["6", "the last 6 hours"], ["24", "the last 24 hours"], ["0", "all that is kept"]];

export function EpochsView({ id, live, turn }) {
  return html`
    ${live ? html`<${Newest} epochs=${live.epochs} />` : ""}
    <${Timeline} id=${id} live=${live} turn=${turn} />
  `;
}

// The parts of the time of an epoch, or of the sum of several; and what they are called.
const uidsOf = (list) => [...new Set(list.flatMap((each) => each.operators.map((one) => one.uid)))];
const namesOf = (uids) => ["plan", ...uids.map((uid) => `operator ${uid}`), "Spark reads, shuffles and writes rows"];

function partsOf(epoch, uids) {
  const operators = uids.map((uid, at) => ({ tone: TONES[at % TONES.length], value: (epoch.operators.find((each) => each.uid === uid) || { busy_ms: 0 }).busy_ms }));
  const rest = Math.max(0, epoch.took_ms - epoch.plan_ms - operators.reduce((sum, each) => sum + each.value, 0));
  return [{ tone: "grey", value: epoch.plan_ms }, ...operators, { tone: "amber", value: rest }];
}

function legendOf(list, uids) {
  const sums = namesOf(uids).map((_, at) => list.reduce((sum, each) => sum + partsOf(each, uids)[at].value, 0));
  const whole = sums.reduce((a, b) => a + b, 0);
  return namesOf(uids).map((name, at) => ({ name, tone: partsOf(list[0], uids)[at].tone, text: whole ? percent(sums[at] / whole) : "" }));
}

function Newest({ epochs }) {
  if (!epochs.length) return html`<${Empty} text="No epoch has ended since the job's last start or restart." />`;
  const uids = uidsOf(epochs);
  const names = namesOf(uids);
  const sum = (value) => epochs.reduce((total, each) => total + value(each), 0);
  const span = epochs.length > 1 ? epochs.at(-1).ended_ms - epochs[0].ended_ms : 0;
  const idle = span ? Math.max(0, 1 - (sum((each) => each.took_ms) - epochs[0].took_ms) / span) : null;
  const tell = (each) =>
    `Epoch ${number(each.epoch)} at ${clock(each.ended_ms)}: ${plural(each.rows, "row")} in ${duration(each.took_ms)}. ` +
    partsOf(each, uids).map((part, at) => `${names[at]} ${duration(part.value)}`).join(", ") +
    (each.checkpoint ? `. It carried checkpoint ${each.checkpoint}` : "");
  return html`
    <${Facts}
      facts=${[
        ["Last epoch", duration(epochs.at(-1).took_ms), plural(epochs.at(-1).rows, "row")],
        ["Mean", duration(sum((each) => each.took_ms) / epochs.length), `of the last ${epochs.length}`],
        ["Rows an epoch", number(sum((each) => each.rows) / epochs.length), "mean"],
        ["Between epochs", idle === null ? "–" : percent(idle), "of the time: no rows, or the trigger"],
        ["Longest pause", duration(Math.max(...epochs.map((each) => each.pause_ms))), "for a checkpoint's synchronous part"],
      ]}
    />
    <${Section} title="Where an epoch's time goes" about="Of each operator, its slowest partition, without the time in which it waited for rows.">
      <${Legend} parts=${legendOf(epochs, uids)} />
      <${Columns}
        label=${`Times of the last ${epochs.length} epochs; the table below has the figures`}
        text=${duration}
        columns=${epochs.map((each) => ({ key: each.epoch, parts: partsOf(each, uids), tell: tell(each) }))}
      />
    <//>
    <${Section} title="The last epochs">
      <${Table}
        caption="Epochs"
        empty="none"
        rows=${epochs.toReversed()}
        columns=${[
          { name: "Epoch", text: (each) => number(each.epoch), right: true },
          { name: "Ended", text: (each) => clock(each.ended_ms) },
          { name: "Rows", text: (each) => number(each.rows), right: true },
          { name: "Took", text: (each) => duration(each.took_ms), right: true },
          { name: "Plan", text: (each) => duration(each.plan_ms), right: true },
          ...uids.map((uid) => ({ name: `${uid}: slowest (mean)`, text: (each) => operatorTime(each, uid), right: true })),
          { name: "Pause", text: (each) => duration(each.pause_ms), right: true },
          { name: "Checkpoint", text: (each) => (each.checkpoint ? number(each.checkpoint) : "–"), right: true },
        ]}
      />
    <//>
  `;
}

// The last hours in steps of time, from the log of events: also of a job that does not run.
function Timeline({ id, live, turn }) {
  const [hours, setHours] = useState("6");
  const history = useKept(useAnswer(`api/jobs/${id}/history?hours=${hours}`, turn));
  const tools = html`
    <label>Show
      <select value=${hours} onChange=${(event) => setHours(event.target.value)}>
        ${HOURS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}
      </select>
    </label>
  `;
  const section = (children) => html`
    <${Section} title=${live ? "The last hours" : "Where its epochs' time went"} about="Sums of the epochs of each step of time, in which bars are the share of the time: the rest passed between epochs. Red: a restart or a rescale." tools=${tools}>${children}<//>
  `;
  if (!history) return section(html`<${Empty} text="Reading the log of events…" />`);
  if (history.error) return section(html`<${Failure} of=${history} />`);
  const steps = history.steps;
  if (!steps.length)
    return section(html`<${Empty} text="The log of events on this machine has no epoch of this job: its drivers write it into their local_dir, ten seconds after the first epoch at the latest." />`);
  const uids = uidsOf(steps);
  const names = namesOf(uids);
  // The first step and the last are not whole.
  const length = (each) => Math.max(1, (each === steps.at(-1) ? each.ended_ms : each.at_ms + history.step_ms) - (each === steps[0] ? each.began_ms : each.at_ms));
  const busy = (each) => Math.min(1, each.took_ms / length(each));
  const span = (at_ms) => `${moment(at_ms)} – ${clock(at_ms + history.step_ms)}`;
  const breaks = (at_ms) => history.interruptions.filter((each) => each.at_ms >= at_ms && each.at_ms < at_ms + history.step_ms);
  const tell = (each) =>
    `${span(each.at_ms)}: ${plural(each.epochs, "epoch")}, ${plural(each.rows, "row")}. ` +
    partsOf(each, uids).map((part, at) => `${names[at]} ${duration(part.value)}`).join(", ") +
    `. Between epochs ${percent(1 - busy(each))} of the time.`;
  const told = (at_ms) => breaks(at_ms).map((each) => ` ${each.kind === "failure" ? "A restart" : "A rescale"} at ${clock(each.at_ms)}: ${firstLine(each.cause)}.`).join("");
  const byTime = new Map(steps.map((each) => [each.at_ms, each]));
  const columns = [];
  for (let at_ms = steps[0].at_ms; at_ms <= steps.at(-1).at_ms; at_ms += history.step_ms) {
    const each = byTime.get(at_ms);
    columns.push({
      key: at_ms,
      parts: each ? partsOf(each, uids).map((part) => ({ ...part, value: part.value / length(each) })) : [],
      bad: breaks(at_ms).length > 0,
      tell: (each ? tell(each) : `${span(at_ms)}: no epoch ended.`) + told(at_ms),
    });
  }
  const last = steps.at(-1);
  const epochs = steps.reduce((total, each) => total + each.epochs, 0);
  return section(html`
    ${live
      ? ""
      : html`<${Facts}
          facts=${[
            ["Last epoch", number(last.last), `ended ${moment(last.ended_ms)}`],
            ["Mean", duration(steps.reduce((total, each) => total + each.took_ms, 0) / Math.max(1, epochs)), `of ${plural(epochs, "epoch")}`],
            ["Slowest", duration(Math.max(...steps.map((each) => each.slowest_ms))), `epoch ${number(steps.reduce((a, b) => (a.slowest_ms >= b.slowest_ms ? a : b)).slowest)}`],
            ["Rows", number(steps.reduce((total, each) => total + each.rows, 0)), "in this time"],
          ]}
        />`}
    <${Legend} parts=${legendOf(steps, uids)} />
    <${Columns} label=${`Shares of the time in steps of ${duration(history.step_ms)}, from ${moment(columns[0].key)} to ${moment(last.ended_ms)}; the table below has the figures`} text=${percent} columns=${columns} least=${2} ends=${[moment(columns[0].key), moment(last.ended_ms)]} />
    <div class="more"><${Table}
      caption="Epochs in steps of time"
      empty="none"
      rows=${steps.toReversed()}
      mark=${(each) => (breaks(each.at_ms).length ? "bad" : "")}
      columns=${[
        { name: "From", text: (each) => moment(each.at_ms) },
        { name: "Epochs", text: (each) => number(each.epochs), right: true },
        { name: "Rows", text: (each) => number(each.rows), right: true },
        { name: "Rate", text: (each) => rate((1000 * each.rows) / length(each)), right: true },
        { name: "Slowest epoch", text: (each) => `${number(each.slowest)}: ${duration(each.slowest_ms)}`, right: true },
        { name: "Plan", text: (each) => duration(each.plan_ms), right: true },
        ...uids.map((uid) => ({ name: `${uid}: slowest (mean)`, text: (each) => operatorTime(each, uid), right: true })),
        { name: "Spark", text: (each) => duration(partsOf(each, uids).at(-1).value), right: true },
        { name: "Between", text: (each) => percent(1 - busy(each)), right: true },
      ]}
    /></div>
  `);
}

function operatorTime(epoch, uid) {
  const one = epoch.operators.find((each) => each.uid === uid);
  return one ? `[${one.partition}] ${duration(one.busy_ms)} (${duration(one.mean_busy_ms)})` : "–";
}
