// The plot of a query's result: lines over times or numbers, or bars of what has a name. Which columns, the result suggests.

import { usePlot } from "./chart.js";
import { Legend } from "./parts.js";
import { html, number, plural, useMemo, useState } from "./lib.js";

const HEIGHT = 240;
const TONES = ["green", "blue", "violet", "amber", "red", "muted"];
const MOST_BARS = 40;
const MOST_Y = 4;
// Columns whose largest values are further apart than that have no common scale by default.
const SCALE = 20;
const ROW = -1;
// The distances of marks on an axis of times.
const TIMES_S = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, ...[1, 2, 5, 10, 30, 90, 365, 3650].map((days) => 86400 * days)];

const figure = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4, notation: "compact" });

// `of` is a result: {columns: [{name, is_number, is_time}], rows}. Without numbers, or with one row, there is no plot.
export function Plot({ of }) {
  const columns = of.columns.map((column, at) => ({ ...column, at, values: of.rows.map((row) => parse(column, row[at])) }));
  const numbers = columns.filter((each) => each.is_number && each.values.some((value) => value !== null));
  const [chosen, setChosen] = useState({});
  if (!numbers.length || of.rows.length < 2) return "";
  // In another result, the chosen column may be the only one that has numbers.
  const x = numbers.some((each) => each.at !== chosen.x) ? (chosen.x ?? suggestX(columns, numbers)) : suggestX(columns, numbers);
  const names = columns.filter((each) => !each.is_number && !each.is_time);
  const by = names.some((each) => each.at === chosen.by && each.at !== x) || chosen.by === ROW ? chosen.by : suggestBy(columns, names, x);
  const possible = numbers.filter((each) => each.at !== x);
  const kept = possible.filter((each) => (chosen.y || []).includes(each.at));
  const y = kept.length ? kept : suggestY(possible, by !== ROW);
  const across = x === ROW ? { name: "row", at: ROW, is_number: true, values: of.rows.map((_, at) => at + 1) } : columns[x];
  const choose = (change) => setChosen({ ...chosen, x, by, y: y.map((each) => each.at), ...change });
  const toggle = (at) => choose({ y: y.some((each) => each.at === at) ? y.map((each) => each.at).filter((each) => each !== at) : [...y.map((each) => each.at), at] });
  const drawn = { of, across, y, by: by === ROW ? null : columns[by] };
  const isEmpty = !across.values.some((at, row) => at !== null && y.some((each) => each.values[row] !== null));
  return html`
    <figure class="plot" aria-label="Plot of the result">
      <div class="form">
        <label>x axis
          <select value=${String(x)} onChange=${(event) => choose({ x: Number(event.target.value), by: undefined, y: undefined })}>
            ${columns.filter((each) => !each.is_number || numbers.length > 1).map((each) => html`<option value=${String(each.at)}>${each.name}</option>`)}
            <option value=${String(ROW)}>number of the row</option>
          </select>
        </label>
        ${names.some((each) => each.at !== x)
          ? html`<label>One ${across.is_number || across.is_time ? "line" : "bar"} for each
              <select value=${String(by)} onChange=${(event) => choose({ by: Number(event.target.value) })}>
                <option value=${String(ROW)}>–</option>
                ${names.filter((each) => each.at !== x).map((each) => html`<option value=${String(each.at)}>${each.name}</option>`)}
              </select>
            </label>`
          : ""}
        ${possible.length > 1
          ? html`<fieldset><legend>y axis</legend>
              ${possible.map((each) => html`<label class="check"><input type="checkbox" checked=${y.includes(each)} onChange=${() => toggle(each.at)} /> ${each.name}</label>`)}
            </fieldset>`
          : ""}
      </div>
      ${!across.is_number && !across.is_time
        ? html`<${Bars} ...${drawn} />`
        : isEmpty
          ? html`<p class="told">No row has a value of both ${across.name} and ${y.map((each) => each.name).join(", ")}.</p>`
          : html`<${Lines} ...${drawn} />`}
    </figure>
  `;
}

// --- which columns

function parse(column, cell) {
  if (cell === null) return null;
  // A time without a zone is shown as it is stored.
  const value = column.is_number ? Number(cell) : column.is_time ? Date.parse(`${cell.slice(0, 10)}T${(cell.slice(11).replace("Z", "") || "00:00:00").slice(0, 12)}Z`) / 1000 : cell;
  return Number.isNaN(value) || value === Infinity || value === -Infinity ? null : value;
}

function suggestX(columns, numbers) {
  const time = columns.find((each) => each.is_time);
  const name = columns.find((each) => !each.is_number && !each.is_time);
  if (time || name) return (time || name).at;
  return numbers.length > 1 ? numbers[0].at : ROW;
}

// A line or a bar for each value of a name, if there are several rows at a place.
function suggestBy(columns, names, x) {
  if (x === ROW || new Set(columns[x].values).size === columns[x].values.length) return ROW;
  const others = names.filter((each) => each.at !== x);
  const few = others.find((each) => new Set(each.values).size <= TONES.length);
  const name = few || (columns[x].is_number || columns[x].is_time ? null : others[0]);
  return name ? name.at : ROW;
}

function suggestY(possible, single) {
  const wanted = possible.filter((each) => each.name !== "key_group");
  const all = wanted.length ? wanted : possible;
  const size = (each) => Math.max(...each.values.map((value) => Math.abs(value ?? 0)));
  const first = Math.max(size(all[0]), 1e-12);
  return all.filter((each, at) => !at || (!single && size(each) <= SCALE * first && size(each) >= first / SCALE)).slice(0, MOST_Y);
}

// --- lines

function Lines({ of, across, y, by }) {
  const [pointed, setPointed] = useState(null);
  const { series, left, data } = useMemo(() => seriesOf(across, y, by), [of, across.at, by && by.at, y.map((each) => each.at).join()]);
  const xs = data[0];
  const repeats = (each) => each.points.size < xs.length && [...each.points.values()].some((values) => values.length > 1);
  const text = across.is_time ? timeText(xs) : (value) => figure.format(value);
  const place = usePlot({
    data,
    height: HEIGHT,
    kind: JSON.stringify([across.name, series.map((each) => [each.name, repeats(each)]), xs[0], xs.at(-1), xs.length]),
    options: (colour, axis) => ({
      cursor: { y: false, points: { size: 7 } },
      scales: {
        x: { time: false },
        y: { range: (_, least, most) => (least === null ? [0, 1] : [least >= 0 && least <= most / 2 ? 0 : least - pad(least, most), (most <= 0 && most >= least / 2 ? 0 : most + pad(least, most)) || 1]) },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: across.is_time ? 90 : 60, ...(across.is_time ? { incrs: TIMES_S } : {}), values: (_, ticks) => ticks.map(text) },
        { ...axis, size: 56, space: 34, values: (_, ticks) => ticks.map((tick) => short.format(tick)) },
      ],
      series: [
        {},
        // Rows at one place are no line: points.
        ...series.map((each, at) => ({
          stroke: colour(`--${TONES[at]}`), width: repeats(each) ? 0 : 2, spanGaps: true,
          points: { show: repeats(each) || xs.length <= 40, size: 6, fill: colour(`--${TONES[at]}`) },
        })),
      ],
      hooks: { setCursor: [(plot) => setPointed(plot.cursor.idx ?? null)] },
    }),
  });
  const at = pointed !== null && pointed < xs.length ? pointed : xs.length - 1;
  const all = series.flatMap((each) => [...each.points].flatMap(([where, values]) => values.map((value) => [value, where, each.name])));
  const most = all.reduce((a, b) => (b[0] > a[0] ? b : a));
  const least = all.reduce((a, b) => (b[0] < a[0] ? b : a));
  const one = series.length === 1;
  const where = (value) => `${across.name} ${text(value)}`;
  const label =
    `${series.map((each) => each.name).join(", ")} over ${across.name}, from ${text(xs[0])} to ${text(xs.at(-1))}: ${plural(all.length, "point")}. ` +
    `Least ${figure.format(least[0])} at ${where(least[1])}${one ? "" : ` (${least[2]})`}, most ${figure.format(most[0])} at ${where(most[1])}${one ? "" : ` (${most[2]})`}. The table below has all rows.`;
  return html`
    <${Legend} parts=${series.map((each, index) => ({ name: each.name, tone: TONES[index], text: data[index + 1][at] === null ? "–" : figure.format(data[index + 1][at]) }))} />
    <div ref=${place} role="img" aria-label=${label}></div>
    <p class="told">${`At ${where(xs[at])}. Most: ${figure.format(most[0])} at ${where(most[1])}${one ? "" : ` (${most[2]})`}.`}${left ? ` ${plural(left, "more line")} ${left === 1 ? "is" : "are"} left out.` : ""}</p>
  `;
}

const pad = (least, most) => (most - least || Math.abs(most) || 1) * 0.08;

function seriesOf(across, y, by) {
  const all = new Map();
  const several = y.length > 1;
  across.values.forEach((at, row) => {
    if (at === null) return;
    for (const each of y) {
      const value = each.values[row];
      if (value === null) continue;
      const name = by ? `${by.values[row] ?? "null"}${several ? ` ${each.name}` : ""}` : each.name;
      if (!all.has(name)) all.set(name, { name, points: new Map() });
      const series = all.get(name);
      series.points.set(at, [...(series.points.get(at) || []), value]);
    }
  });
  const series = [...all.values()].slice(0, TONES.length);
  const data = [[], ...series.map(() => [])];
  for (const at of [...new Set(series.flatMap((each) => [...each.points.keys()]))].sort((a, b) => a - b)) {
    // Several rows at one place are several points there.
    const here = series.map((each) => each.points.get(at) || []);
    for (let turn = 0; turn < Math.max(...here.map((each) => each.length)); turn += 1) {
      data[0].push(at);
      here.forEach((each, index) => data[index + 1].push(each[turn] ?? null));
    }
  }
  return { series, left: all.size - series.length, data };
}

// In UTC, as the table has them: with the day if they are of several, without seconds if none has any.
function timeText(xs) {
  const iso = (value) => new Date(1000 * value).toISOString();
  const days = new Set(xs.map((each) => iso(each).slice(0, 10)));
  const span = xs.at(-1) - xs[0];
  if (span > 20 * 86400) return (value) => iso(value).slice(0, 10);
  const upto = span < 600 ? 19 : 16;
  return (value) => `${days.size > 1 ? `${iso(value).slice(5, 10)} ` : ""}${iso(value).slice(11, upto)}`;
}

// --- bars

function Bars({ across, y, by }) {
  const rows = across.values.map((name, row) => ({ name: [name, ...(by ? [by.values[row]] : [])].map((each) => each ?? "null").join(" · "), values: y.map((each) => each.values[row]) }));
  const shown = rows.slice(0, MOST_BARS);
  const values = shown.flatMap((row) => row.values).filter((value) => value !== null);
  const most = Math.max(0, ...values);
  const least = Math.min(0, ...values);
  const share = (value) => `${(100 * value) / (most - least || 1)}%`;
  return html`
    ${y.length > 1 ? html`<${Legend} parts=${y.map((each, at) => ({ name: each.name, tone: TONES[at] }))} />` : ""}
    <table class="bars">
      <caption class="unseen">${`${y.map((each) => each.name).join(", ")} by ${across.name}`}</caption>
      <thead class=${y.length > 1 ? "" : "unseen"}><tr><th scope="col">${across.name}</th><td aria-hidden="true"></td>${y.map((each) => html`<th scope="col" class="right">${each.name}</th>`)}</tr></thead>
      <tbody>
        ${shown.map(
          (row) => html`<tr>
            <th scope="row">${row.name}</th>
            <td aria-hidden="true">${row.values.map(
              (value, at) => html`<span class="bar"><span class=${TONES[at]} style=${{ marginLeft: share(Math.min(0, value) - least), width: share(Math.abs(value)) }}></span></span>`,
            )}</td>
            ${row.values.map((value) => html`<td class="right">${value === null ? "–" : figure.format(value)}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
    ${rows.length > shown.length ? html`<p class="told">The first ${number(shown.length)} of ${plural(rows.length, "row")}: ORDER BY says which these are.</p>` : ""}
  `;
}
