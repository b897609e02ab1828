// Line charts (uPlot), in the page's colours; and one of a figure over time.

import uPlot from "./vendor/uplot.js";
import { clock, html, useEffect, useRef, useState } from "./lib.js";

const HEIGHT = 130;
const GAP_S = 5;

function useDark() {
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const listen = (event) => setDark(event.matches);
    query.addEventListener("change", listen);
    return () => query.removeEventListener("change", listen);
  }, []);
  return dark;
}

// The place of a plot of `data`, which is as wide as there is room. `options` are uPlot's, by the page's colours and what
// axes have in common; they are asked for again when `kind` changes.
export function usePlot({ data, height, kind, options }) {
  const place = useRef(null);
  const plot = useRef(null);
  const dark = useDark();
  useEffect(() => {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const width = place.current.clientWidth || 300;
    plot.current = new uPlot({ width, height, legend: { show: false }, ...options(colour, axis) }, data.map(() => []), place.current);
    const observer = new ResizeObserver(() => {
      const room = place.current.clientWidth;
      if (room && room !== plot.current.width) plot.current.setSize({ width: room, height });
    });
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [dark, kind]);
  useEffect(() => plot.current.setData(data), [data, dark, kind]);
  return place;
}

// points: rows of [seconds, value, …]; `at` is the column. Points further apart than `gap` seconds have no line between them.
export function Chart({ title, points, at, text, tone = "--accent", gap = GAP_S }) {
  const newest = points.length ? points.at(-1)[at] : undefined;
  const data = [[], []];
  points.forEach((point, index) => {
    // No page showed the job meanwhile: no line.
    if (index && point[0] - points[index - 1][0] > gap) {
      data[0].push(point[0] - 0.01);
      data[1].push(null);
    }
    data[0].push(point[0]);
    data[1].push(point[at]);
  });
  const place = usePlot({
    data,
    height: HEIGHT,
    kind: title,
    options: (colour, axis) => ({
      cursor: { y: false, points: { size: 6 } },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 80, values: (_, ticks) => ticks.map((tick) => clock(1000 * tick)) },
        { ...axis, size: 64, space: 34, values: (_, ticks) => ticks.map(text) },
      ],
      series: [{}, { stroke: colour(tone), fill: `${colour(tone)}22`, width: 1.75, points: { show: false } }],
    }),
  });
  return html`
    <figure class="chart">
      <figcaption>${title} <b>${newest === undefined ? "–" : text(newest)}</b></figcaption>
      <div ref=${place} role="img" aria-label=${`${title} over time; now ${newest === undefined ? "not known" : text(newest)}`}></div>
    </figure>
  `;
}
