// A line chart over time (uPlot), in the page's colours.

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

// points: rows of [seconds, value, …]; `at` is the column. Points further apart than `gap` seconds have no line between them.
export function Chart({ title, points, at, text, tone = "--accent", gap = GAP_S }) {
  const place = useRef(null);
  const chart = useRef(null);
  const dark = useDark();
  const values = points.map((point) => point[at]);
  const newest = values.at(-1);
  useEffect(() => {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    const options = {
      width: place.current.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 80, values: (_, ticks) => ticks.map((tick) => clock(1000 * tick)) },
        { ...axis, size: 64, space: 34, values: (_, ticks) => ticks.map(text) },
      ],
      series: [{}, { stroke: colour(tone), fill: `${colour(tone)}22`, width: 1.75, points: { show: false } }],
    };
    chart.current = new uPlot(options, [[], []], place.current);
    const observer = new ResizeObserver(() => {
      const width = place.current.clientWidth;
      if (width && width !== chart.current.width) chart.current.setSize({ width, height: HEIGHT });
    });
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      chart.current.destroy();
    };
  }, [dark, title]);
  useEffect(() => {
    const data = [[], []];
    points.forEach((point, index) => {
      // No page showed the job meanwhile: no line.
      if (index && point[0] - points[index - 1][0] > gap) {
        data[0].push(point[0] - 0.01);
        data[1].push(null);
      }
      data[0].push(point[0]);
      data[1].push(values[index]);
    });
    chart.current.setData(data);
  }, [points, dark, title]);
  return html`
    <figure class="chart">
      <figcaption>${title} <b>${newest === undefined ? "–" : text(newest)}</b></figcaption>
      <div ref=${place} role="img" aria-label=${`${title} over time; now ${newest === undefined ? "not known" : text(newest)}`}></div>
    </figure>
  `;
}
