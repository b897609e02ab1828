// Epochs: where the time of each goes.

import { Columns } from "./columns.js";
import { Empty, Facts, Legend, Section, Table } from "./parts.js";
import { clock, duration, html, number, percent, plural } from "./lib.js";

const TONES = ["green", "blue", "violet", "red"];

export function EpochsView({ live }) {
  if (!live) return html`<${Empty} text="Times of epochs are in the memory of a running job's driver: it keeps the last 300." />`;
  const epochs = live.epochs;
  if (!epochs.length) return html`<${Empty} text="No epoch has ended since the job's last start or restart." />`;
  const uids = [...new Set(epochs.flatMap((each) => each.operators.map((one) => one.uid)))];
  const parts = (epoch) => {
    const operators = uids.map((uid, at) => ({ tone: TONES[at % TONES.length], value: (epoch.operators.find((each) => each.uid === uid) || { busy_ms: 0 }).busy_ms }));
    const rest = Math.max(0, epoch.took_ms - epoch.plan_ms - operators.reduce((sum, each) => sum + each.value, 0));
    return [{ tone: "grey", value: epoch.plan_ms }, ...operators, { tone: "amber", value: rest }];
  };
  const names = ["plan", ...uids.map((uid) => `operator ${uid}`), "Spark reads, shuffles and writes rows"];
  const sum = (value) => epochs.reduce((total, each) => total + value(each), 0);
  const sums = names.map((_, at) => sum((each) => parts(each)[at].value));
  const whole = sums.reduce((a, b) => a + b, 0);
  const span = epochs.length > 1 ? epochs.at(-1).ended_ms - epochs[0].ended_ms : 0;
  const idle = span ? Math.max(0, 1 - (sum((each) => each.took_ms) - epochs[0].took_ms) / span) : null;
  const tell = (each) =>
    `Epoch ${number(each.epoch)} at ${clock(each.ended_ms)}: ${plural(each.rows, "row")} in ${duration(each.took_ms)}. ` +
    parts(each).map((part, at) => `${names[at]} ${duration(part.value)}`).join(", ") +
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
      <${Legend} parts=${names.map((name, at) => ({ name, tone: parts(epochs[0])[at].tone, text: whole ? percent(sums[at] / whole) : "" }))} />
      <${Columns}
        label=${`Times of the last ${epochs.length} epochs; the table below has the figures`}
        text=${duration}
        columns=${epochs.map((each) => ({ key: each.epoch, parts: parts(each), tell: tell(each) }))}
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

function operatorTime(epoch, uid) {
  const one = epoch.operators.find((each) => each.uid === uid);
  return one ? `[${one.partition}] ${duration(one.busy_ms)} (${duration(one.mean_busy_ms)})` : "–";
}
