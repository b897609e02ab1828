// Two charts as SVG: lines over time with marks of what was done, and the path of a card through its state.

import { amount, clock, eventTime, html, kind, number, useEffect, useRef, useState } from "./lib.js";

const HEIGHT = 170;
const LEFT = 58;
const BOTTOM = 24;
const TOP = 22;
const LETTER = 6.8;
const ROWS = 4;

// A drawing as wide as its place.
function useWidth() {
  const place = useRef(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.round(entry.contentRect.width))));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return [place, width];
}

function ticks(least, most, count) {
  const step = 10 ** Math.floor(Math.log10(Math.max(1e-9, (most - least) / count)));
  const wide = [1, 2, 5, 10].map((each) => each * step).find((each) => (most - least) / each <= count);
  const found = [];
  for (let at = Math.ceil(least / wide) * wide; at <= most; at += wide) found.push(at);
  return found;
}

const short = (value) => (value >= 1e6 ? `${+(value / 1e6).toFixed(2)} M` : value >= 1e4 ? `${+(value / 1e3).toFixed(1)} k` : number(value));

// Where each mark's label goes, so that none covers another; where there is no room, a mark has none.
function labels(marks, width) {
  const ends = [];
  return marks.map(([at, text]) => {
    const long = text.length * LETTER;
    const left = at + 4 + long > width ? at - 4 - long : at + 4;
    let row = 0;
    while (row < ROWS && ends[row] > left) row += 1;
    ends[row] = left + long + 6;
    return { at, left, row, text };
  });
}

// points: [seconds, value, …]; lines: [{name, at, tone}]; marks: [[seconds, text]].
export function Lines({ title, points, lines, marks }) {
  const [place, width] = useWidth();
  const first = points.length ? points[0][0] : 0;
  const last = points.length ? points.at(-1)[0] : 1;
  const all = points.flatMap((point) => lines.map((line) => point[line.at]));
  const most = Math.max(1, ...all);
  const least = Math.min(...all, most) > most / 2 ? Math.min(...all) * 0.98 : 0;
  const x = (seconds) => LEFT + ((seconds - first) / Math.max(1, last - first)) * (width - LEFT - 12);
  const y = (value) => HEIGHT - BOTTOM - ((value - least) / (most - least || 1)) * (HEIGHT - BOTTOM - TOP);
  const seen = marks.filter(([at]) => at >= first);
  return html`
    <figure class="chart">
      <figcaption>${title}
        ${lines.map((line) => html`<span class="key"><span class=${`dot ${line.tone}`}></span>${line.name} <b>${points.length ? number(points.at(-1)[line.at]) : "–"}</b></span>`)}
      </figcaption>
      <div ref=${place} class="room">
        <svg width=${width} height=${HEIGHT} role="img" aria-label=${`${title}: ${lines.map((line) => `${line.name} ${points.length ? number(points.at(-1)[line.at]) : "not known"}`).join(", ")}. ${seen.map(([at, text]) => `${text} at ${clock(at)}`).join(", ")}`}>
          ${ticks(least, most, 4).map((value) => html`<g class="tick"><line x1=${LEFT} x2=${width - 12} y1=${y(value)} y2=${y(value)} /><text x=${LEFT - 8} y=${y(value) + 4} text-anchor="end">${short(value)}</text></g>`)}
          <text class="time" x=${LEFT} y=${HEIGHT - 6}>${points.length ? clock(first) : ""}</text>
          <text class="time" x=${width - 12} y=${HEIGHT - 6} text-anchor="end">${points.length ? clock(last) : ""}</text>
          ${labels(seen.map(([at, text]) => [x(at), text]), width).map(({ at, left, row, text }) => html`<g class="mark">
            <line x1=${at} x2=${at} y1=${TOP - 8} y2=${HEIGHT - BOTTOM} />
            ${row < ROWS ? html`<text x=${left} y=${TOP - 4 + row * 14}>${text}</text>` : ""}
          </g>`)}
          ${lines.map((line) => html`<polyline class=${line.tone} points=${points.map((point) => `${x(point[0]).toFixed(1)},${y(point[line.at]).toFixed(1)}`).join(" ")} />`)}
        </svg>
      </div>
    </figure>
  `;
}

// A card's payments in event time, by amount, with the limit that its state draws for the next one.
export function CardChart({ card, deviations }) {
  const [place, width] = useWidth();
  const payments = card.payments.map(([ts, cents]) => [Date.parse(ts), cents]);
  const alerts = card.alerts.map((alert) => [Date.parse(alert.ts), alert.amount_cents, alert.kind]);
  const newest = card.steps.at(-1);
  const limit = newest && newest.count >= 20 ? newest.mean + deviations * newest.deviation : null;
  // The alerts of a card may be older than what its state remembers.
  const times = [...payments, ...alerts].map(([ts]) => ts);
  const first = Math.min(...times);
  const last = Math.max(...times);
  const values = [...payments, ...alerts].map(([, cents]) => cents);
  const low = Math.log10(Math.max(10, Math.min(...values)) * 0.8);
  const high = Math.log10(Math.max(...values, limit || 0, 1000) * 1.3);
  const x = (ts) => LEFT + ((ts - first) / Math.max(1, last - first)) * (width - LEFT - 24);
  const y = (cents) => HEIGHT - BOTTOM - ((Math.log10(Math.max(10, cents)) - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const wide = high - low > 1.6;
  const steps = (wide ? [1, 10, 100, 1000, 10000] : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]).map((each) => each * 100).filter((cents) => Math.log10(cents) >= low && Math.log10(cents) <= high);
  return html`
    <div ref=${place} class="room">
      ${times.length
        ? html`<svg width=${width} height=${HEIGHT} role="img" aria-label=${`${payments.length} payments of ${card.card}, and ${alerts.length} alerts`}>
            ${steps.map((cents) => html`<g class="tick"><line x1=${LEFT} x2=${width - 12} y1=${y(cents)} y2=${y(cents)} /><text x=${LEFT - 8} y=${y(cents) + 4} text-anchor="end">${number(cents / 100)}</text></g>`)}
            ${newest ? html`<line class="mean" x1=${LEFT} x2=${width - 12} y1=${y(newest.mean)} y2=${y(newest.mean)} />` : ""}
            ${limit ? html`<line class="limit" x1=${LEFT} x2=${width - 12} y1=${y(limit)} y2=${y(limit)} />` : ""}
            ${payments.map(([ts, cents]) => html`<circle class="payment" cx=${x(ts)} cy=${y(cents)} r="4"><title>${amount(cents)} at ${eventTime(new Date(ts).toISOString())}</title></circle>`)}
            ${alerts.map(([ts, cents, what]) => html`<circle class="alert" cx=${x(ts)} cy=${y(cents)} r="8"><title>${kind(what)}: ${amount(cents)}</title></circle>`)}
            <text class="time" x=${LEFT} y=${HEIGHT - 6}>${eventTime(new Date(first).toISOString())}</text>
            <text class="time" x=${width - 12} y=${HEIGHT - 6} text-anchor="end">${eventTime(new Date(last).toISOString())}</text>
          </svg>`
        : html`<p class="empty">This card has no payments yet.</p>`}
    </div>
  `;
}
