// Rendering, formats of figures, and requests to the server: what all views use.

import { h, render } from "./vendor/preact.js";
import { useEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

// What a condition leaves out is null: at its place nothing is looked for. For an empty text, Preact would take the next
// element of the same type when the condition holds, and make that one anew: a section above another closed what was
// open in it and took its focus.
const gap = (child) => (child === "" ? null : child);
const build = htm.bind((type, props, ...children) => h(type, props, ...children.map(gap)));
export const html = (...parts) => {
  const made = build(...parts);
  return Array.isArray(made) ? made.map(gap) : made;
};
export { render, useEffect, useMemo, useRef, useState };

// --- figures with units

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TB`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 120) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

// An age in whole seconds: it changes once a second, not ten times.
export const age = (ms) => (ms < 120000 ? `${Math.max(0, Math.round(ms / 1000))} s` : duration(ms));

export const rate = (perSecond) =>
  perSecond === null || perSecond === undefined
    ? "–"
    : perSecond >= 10 || perSecond === 0
      ? `${whole.format(perSecond)}/s`
      : `${perSecond.toFixed(1)}/s`;

export const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`);

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

const two = (value) => String(value).padStart(2, "0");

export function clock(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function moment(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return at.toDateString() === new Date().toDateString() ? clock(ms) : `${day} ${clock(ms)}`;
}

// An event time in ISO 8601, in UTC as the engine has it.
export const eventTime = (text) =>
  text ? `${text.slice(0, 10)} ${text.slice(11, 19)}` : "–";

export const firstLine = (text) => (text || "").split("\n")[0];

// --- requests

export async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    return { error: "the page's server does not answer", hint: "is `strandline ui` still running?" };
  }
  if (answer.status === 401 || answer.status === 403) return { error: (await answer.text()).trim() };
  try {
    return await answer.json();
  } catch {
    return { error: `the server answered with code ${answer.status}`, hint: "its terminal says more" };
  }
}

// What a path answers, asked again whenever `again` changes; the former answer stays until then.
export function useAnswer(path, again = "") {
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    let wanted = true;
    if (path) ask(path).then((value) => wanted && setAnswer({ path, value }));
    return () => {
      wanted = false;
    };
  }, [path, again]);
  return answer && answer.path === path ? answer.value : null;
}

// The former answer while the next one is awaited.
export function useKept(answer) {
  const [kept, setKept] = useState(null);
  useEffect(() => {
    if (answer) setKept(answer);
  }, [answer]);
  return answer || kept;
}

// The newest event of a stream; `merge` makes the next value of the former one and an event.
export function useEvents(path, merge = (_, event) => event) {
  const [value, setValue] = useState(null);
  useEffect(() => {
    setValue(null);
    const source = new EventSource(path);
    source.onmessage = (event) => setValue((before) => ({ ...merge(before, JSON.parse(event.data)), lost: false }));
    source.onerror = () => setValue((before) => (before ? { ...before, lost: true } : { lost: true }));
    return () => source.close();
  }, [path]);
  return value;
}
