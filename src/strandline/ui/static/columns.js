// Stacked columns, one for each epoch or checkpoint; pointing at one tells its figures.

import { html, useEffect, useRef, useState } from "./lib.js";

const HEIGHT = 150;
const LEAST = 7;

// columns: [{key, parts: [{tone, value}], tell, bad}]; the newest that fit with the least width are shown, at the right.
// `ends` are the texts below the first column and the last.
export function Columns({ columns, label, text, least = LEAST, ends = null }) {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState(null);
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(place.current.clientWidth));
    observer.observe(place.current);
    setWidth(place.current.clientWidth);
    return () => observer.disconnect();
  }, []);
  const shown = columns.slice(-Math.max(1, Math.floor((width - 56) / least)));
  const total = (column) => column.parts.reduce((sum, part) => sum + part.value, 0);
  const most = Math.max(...shown.map(total)) || 1;
  const step = Math.min(26, (width - 56) / shown.length);
  const gap = step < LEAST ? 0.5 : 1.5;
  const left = width - step * shown.length;
  const y = (value) => HEIGHT - (HEIGHT - 12) * (value / most);
  const told = shown.find((each) => each.key === at) || shown.at(-1);
  const point = (event) => {
    const index = Math.floor((event.clientX - place.current.getBoundingClientRect().left - left) / step);
    return shown[Math.max(0, Math.min(shown.length - 1, index))];
  };
  return html`
    <div class="stacks">
      <div ref=${place}>
      ${width
        ? html`<svg
            width=${width} height=${HEIGHT + 1} role="img" aria-label=${label}
            onMouseMove=${(event) => setAt(point(event).key)}
            onMouseLeave=${() => setAt(null)}
          >
            ${[0.5, 1].map(
              (share) => html`<line x1="0" x2=${width} y1=${y(most * share)} y2=${y(most * share)} class="rule" />
                <text x="0" y=${y(most * share) - 3}>${text(most * share)}</text>`,
            )}
            <line x1="0" x2=${width} y1=${HEIGHT} y2=${HEIGHT} class="rule" />
            ${shown.map((column, index) => {
              let top = 0;
              const x = left + index * step;
              return html`
                <g class=${column.key === told.key ? "told" : ""}>
                  ${column.parts.map((part) => {
                    top += part.value;
                    const tall = (HEIGHT - 12) * (part.value / most);
                    return tall > 0.2 ? html`<rect x=${x + 0.5} y=${y(top)} width=${Math.max(1, step - gap)} height=${tall} class=${part.tone} />` : "";
                  })}
                  ${column.bad ? html`<rect x=${x + 0.5} y=${HEIGHT - 10} width=${Math.max(1, step - gap)} height="10" class="red" />` : ""}
                </g>
              `;
            })}
          </svg>`
        : html`<div class="svg-room"></div>`}
      </div>
      ${ends ? html`<p class="ends" style=${{ paddingLeft: `min(${Math.max(0, left)}px, calc(100% - 12rem))` }}><span>${ends[0]}</span><span>${ends[1]}</span></p>` : ""}
      <p class="told">${told ? told.tell : ""}</p>
    </div>
  `;
}
