// Rendering, formats of figures, and requests: what the parts of the page share.

import { h, render } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, useEffect, useRef, useState };

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const money = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const amount = (cents) => (cents === null || cents === undefined ? "–" : money.format(cents / 100));
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
export const kind = (name) => name.replaceAll("_", " ");
export const clock = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 8);
// Event times are in UTC, as the payments have them.
export const eventTime = (text) => (text ? `${text.slice(5, 10)} ${text.slice(11, 19)}` : "–");

export async function act(name, wanted) {
  try {
    const answer = await fetch(`act/${name}`, { method: "POST", body: JSON.stringify(wanted) });
    return answer.headers.get("Content-Type") === "application/json" ? await answer.json() : { error: (await answer.text()).trim() };
  } catch {
    return { error: "the dashboard does not answer: has the demo ended?" };
  }
}

// The newest event of a stream; after the last one, nothing is asked for again.
export function useEvents(path) {
  const [view, setView] = useState(null);
  useEffect(() => {
    const source = new EventSource(path);
    source.onmessage = (event) => {
      const newest = JSON.parse(event.data);
      if (newest.is_last) source.close();
      setView({ ...newest, lost: false });
    };
    source.onerror = () => setView((before) => (before ? { ...before, lost: true } : { lost: true }));
    return () => source.close();
  }, [path]);
  return view;
}
