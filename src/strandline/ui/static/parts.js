// Parts that several views have: tables, facts, bars, notes.

import { html, plural, useState } from "./lib.js";

const FIRST_ROWS = 20;

// columns: {name, text(row), right, wide, minor, spare}. A spare one is left out if no row has a value, a minor one on a narrow screen.
// With `stack`, each row is a card on a narrow screen, in which nothing lies beyond the edge.
export function Table({ columns: possible, rows: every, caption, empty, fit, stack, mark = () => "" }) {
  const [whole, setWhole] = useState(false);
  const rows = whole ? every : every.slice(0, FIRST_ROWS);
  const columns = possible.filter((column) => !column.spare || every.some((row) => column.text(row) !== "–"));
  if (!rows.length) return html`<${Empty} text=${empty} />`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}>
      <table class=${`${fit ? "fit" : ""} ${stack ? "stack" : ""}`}>
        <caption class="unseen">${caption}</caption>
        <thead>
          <tr>${columns.map((column) => html`<th scope="col" class=${`${column.right ? "right" : ""} ${column.minor ? "minor" : ""}`}>${column.name}</th>`)}</tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`<tr class=${mark(row)}>
              ${columns.map(
                (column) => html`<td data-name=${column.name} class=${`${column.right ? "right" : ""} ${column.wide ? "wide" : ""} ${column.minor ? "minor" : ""}`}>
                  ${column.text(row)}
                </td>`,
              )}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${rows.length < every.length ? html`<button type="button" class="more" onClick=${() => setWhole(true)}>Show all ${plural(every.length, "row")}</button>` : ""}
  `;
}

export const Empty = ({ text }) => html`<p class="empty">${text}</p>`;

export const Hidden = ({ what }) =>
  html`<p class="note hidden">Keys and values are hidden. Start the page with <code>strandline ui --values shown</code> to ${what}.</p>`;

export const Failure = ({ of }) =>
  html`<div class="note bad" role="alert"><p>${of.error}</p>${of.hint ? html`<p class="hint">Next step: ${of.hint}</p>` : ""}</div>`;

export const Facts = ({ facts }) => html`
  <dl class="facts">
    ${facts
      .filter(Boolean)
      .map(
        ([name, value, note, tone]) =>
          html`<div class=${tone || ""}><dt>${name}</dt><dd>${value}</dd>${note ? html`<dd class="note-of">${note}</dd>` : ""}</div>`,
      )}
  </dl>
`;

export const Section = ({ title, about, children, tools }) => html`
  <section>
    <header class="section">
      <div><h2>${title}</h2>${about ? html`<p class="about">${about}</p>` : ""}</div>
      ${tools ? html`<div class="tools">${tools}</div>` : ""}
    </header>
    ${children}
  </section>
`;

// A bar of parts: [{value, tone}] of a whole. Without a label, the text beside it says the same.
export function Parts({ parts, whole, label }) {
  return html`
    <span class="parts" role=${label ? "img" : null} aria-label=${label || null} aria-hidden=${label ? null : "true"}>
      ${parts.map((part) =>
        part.value > 0 && whole > 0
          ? html`<span class=${part.tone} style=${{ width: `${(100 * part.value) / whole}%` }}></span>`
          : "",
      )}
    </span>
  `;
}

export const Bar = ({ value, whole, tone, text }) =>
  html`<span class="with-bar"><${Parts} parts=${[{ value, tone }]} whole=${whole} /><span>${text}</span></span>`;

export const Legend = ({ parts }) => html`
  <ul class="legend">
    ${parts.map((part) => html`<li><span class=${`dot ${part.tone}`}></span>${part.name}${part.text ? html` <b>${part.text}</b>` : ""}</li>`)}
  </ul>
`;

export const State = ({ state }) => html`<span class=${`state ${state.replaceAll(" ", "-")}`}>${state || "not running here"}</span>`;
