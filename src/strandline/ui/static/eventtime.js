// Event time: the watermark of each source, and who holds it back.

import { Bar, Empty, Facts, Section, Table } from "./parts.js";
import { age, duration, eventTime, html, number, plural } from "./lib.js";

export function EventTimeView({ live, past }) {
  if (!live) return html`<${Stored} past=${past} />`;
  const status = live.status;
  const marks = status.watermarks;
  if (!marks.length) return html`<${Empty} text="The job has no watermark(): it has no event time." />`;
  const times = marks.flatMap((mark) => mark.furthest_behind.map((each) => Date.parse(each.time)));
  const newest = Math.max(...times);
  return html`
    <${Facts}
      facts=${[
        ["Watermark (UTC)", eventTime(status.watermark), "no older events are expected"],
        ["Late rows", number(status.late_rows), "in the job's life"],
        ["Newest event time (UTC)", times.length ? eventTime(new Date(newest).toISOString()) : "–", "of those below"],
      ]}
    />
    <p class=${`neck ${holder(marks).held ? "held" : ""}`}>${holder(marks).text}</p>
    ${marks.map((mark) => html`<${Mark} mark=${mark} newest=${newest} isLeast=${mark === least(marks)} />`)}
  `;
}

const least = (marks) => marks.filter((mark) => mark.time).sort((a, b) => Date.parse(a.time) - Date.parse(b.time))[0];

function holder(marks) {
  const silent = marks.find((mark) => !mark.time);
  if (silent) return { held: true, text: `${nameOf(silent)} has had no event yet: the watermark waits for the first one. With idle=, it would be waited for only that long.` };
  const mark = least(marks);
  const slow = mark.furthest_behind.find((each) => !each.idle);
  if (!slow) return { text: "All sources are idle: the watermark is at the newest event time of all." };
  const others = marks.flatMap((each) => each.furthest_behind).filter((each) => each !== slow);
  const fastest = Math.max(...others.map((each) => Date.parse(each.time)));
  const gap = fastest - Date.parse(slow.time);
  const whose = slow.origin ? `'${slow.origin}' of ${nameOf(mark)}` : nameOf(mark);
  const since = slow.silent_ms < 5000 ? "it has events, and they are that old" : `it has had no event for ${age(slow.silent_ms)}`;
  return gap > 0
    ? { held: gap > 60000, text: `${whose} holds the watermark back: it is ${duration(gap)} behind the fastest, and ${since}.` }
    : { text: `Nothing holds the watermark back: ${nameOf(mark)} is the only one, or the others are no further.` };
}

const nameOf = (mark) => (mark.source ? `source ${mark.source}` : "the source");

function Mark({ mark, newest, isLeast }) {
  const rows = mark.furthest_behind;
  const span = Math.max(...rows.map((each) => newest - Date.parse(each.time)), 1);
  const more = mark.origins - rows.length;
  const about = `Column ${mark.column}; ${plural(mark.origins, "value")} known, ${mark.idle} idle.${more > 0 ? ` The ${rows.length} furthest behind are shown.` : ""}${isLeast ? " The job's watermark is this one." : ""}`;
  return html`
    <${Section} title=${mark.source ? `Source ${mark.source}` : "The source"} about=${about}>
      <${Table}
        caption=${`Watermark of ${nameOf(mark)}`}
        empty="It has had no event yet."
        rows=${rows}
        mark=${(each) => (isLeast && each.origin === mark.slowest && !each.idle ? "held" : "")}
        columns=${[
          { name: "Value", text: (each) => each.origin || "(all of it)" },
          { name: "Reached (UTC)", text: (each) => eventTime(each.time) },
          { name: "Behind the newest", text: (each) => html`<${Bar} value=${newest - Date.parse(each.time)} whole=${span} tone=${each.idle ? "grey" : "amber"} text=${duration(newest - Date.parse(each.time))} />`, right: true },
          { name: "Last event", text: (each) => (each.silent_ms < 1000 ? "just now" : `${age(each.silent_ms)} ago`), right: true },
          { name: "Waited for", text: (each) => (each.idle ? "no, it is idle" : "yes") },
        ]}
      />
    <//>
  `;
}

function Stored({ past }) {
  if (!past || !past.newest) return html`<${Empty} text="No driver of the job answers here, and no checkpoint of it can be read." />`;
  const stored = Object.entries(past.newest.watermarks);
  return html`
    <${Section} title="At the newest checkpoint" about=${`No driver of the job answers here. Checkpoint ${past.newest.checkpoint} has these times.`}>
      <${Table}
        caption="Stored event times"
        empty="The checkpoint has no event time."
        rows=${stored}
        columns=${[
          { name: "Of", text: ([name]) => storedName(name) },
          { name: "Time (UTC)", text: ([, us]) => eventTime(new Date(us / 1000).toISOString()) },
        ]}
      />
    <//>
  `;
}

function storedName(name) {
  if (name === "watermark") return "the watermark";
  if (name === "fired") return "timers have fired up to";
  const [mark, origin] = name.split("/");
  return `newest event of ${decodeURIComponent(mark.split("@")[0]).split(":").filter(Boolean).join(", ")}${origin ? `: ${origin}` : ""}`;
}
