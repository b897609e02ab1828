// The picture of incremental checkpoints: a column for each checkpoint, a row for each file that it references.

import { Empty, Legend, Table } from "./parts.js";
import { html, number, plural, size, useState } from "./lib.js";

const MOST_HEIGHT = 380;
const LEFT = 80;
const FOOT = 64;

export function FilesPicture({ past }) {
  const [told, setTold] = useState("");
  const numbers = past.checkpoints.filter((each) => each.state === "complete").map((each) => each.checkpoint);
  const files = past.files.filter((file) => file.in.some((each) => numbers.includes(each)));
  if (!files.length) return html`<${Empty} text="No complete checkpoint references a file in storage." />`;
  const step = Math.max(8, Math.min(110, Math.floor(820 / numbers.length)));
  const tall = Math.max(2, Math.min(9, MOST_HEIGHT / files.length));
  const width = LEFT + step * numbers.length;
  const isNew = (file, checkpoint) => file.in[0] === checkpoint && checkpoint !== numbers[0];
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const file = files[Math.floor((event.clientY - box.top) / tall)];
    const checkpoint = numbers[Math.floor((event.clientX - box.left - LEFT) / step)];
    if (!file || !checkpoint) return;
    const owner = file.uid ? `${file.uid}[${file.partition}]` : "positions of the sources";
    setTold(`${file.name} of ${owner}, ${size(file.bytes)}: referenced by ${file.in.length === 1 ? "checkpoint" : "checkpoints"} ${file.in.join(", ")}`);
  };
  const bytes = (checkpoint, wanted) => files.filter((file) => file.in.includes(checkpoint) && isNew(file, checkpoint) === wanted).reduce((sum, file) => sum + file.bytes, 0);
  const sums = numbers.map((checkpoint) => ({ checkpoint, new: bytes(checkpoint, true), shared: bytes(checkpoint, false) }));
  // Where columns are narrow, not each has its figures below it.
  const every = Math.ceil(70 / step);
  return html`
    <${Legend} parts=${[{ name: "new in this checkpoint", tone: "blue" }, { name: "shared with an earlier one", tone: "pale" }]} />
    <div class="scroll" tabindex="0" role="region" aria-label="Checkpoints and files">
      <svg
        class="files" width=${width} height=${tall * files.length + FOOT} role="img" onMouseMove=${point} onMouseLeave=${() => setTold("")}
        aria-label=${`${plural(files.length, "file")} and ${plural(numbers.length, "checkpoint")}; a table has the sums`}
      >
        ${files.map((file, row) =>
          numbers.map((checkpoint, column) =>
            file.in.includes(checkpoint)
              ? html`<rect x=${LEFT + column * step + 1} y=${row * tall} width=${step - 2} height=${tall * 0.85} class=${isNew(file, checkpoint) ? "blue" : "pale"} />`
              : "",
          ),
        )}
        ${["checkpoint", "new", "shared"].map((name, line) => html`<text x="0" y=${tall * files.length + 20 + 18 * line}>${name}</text>`)}
        ${sums.map((sum, column) =>
          column % every
            ? ""
            : [number(sum.checkpoint), column ? size(sum.new) : "–", size(sum.shared)].map(
                (text, line) => html`<text x=${LEFT + (column + 0.5) * step} y=${tall * files.length + 20 + 18 * line} text-anchor="middle" class=${line ? "" : "strong"}>${text}</text>`,
              ),
        )}
      </svg>
    </div>
    <table class="unseen">
      <caption>Bytes of each checkpoint</caption>
      <thead><tr><th scope="col">Checkpoint</th><th scope="col">New</th><th scope="col">Shared</th></tr></thead>
      <tbody>${sums.map((sum) => html`<tr><th scope="row">${sum.checkpoint}</th><td>${size(sum.new)}</td><td>${size(sum.shared)}</td></tr>`)}</tbody>
    </table>
    <p class="told">${told || `${plural(files.length, "file")}, ${size(past.files_bytes)} in storage${past.files_left_out ? `; ${plural(past.files_left_out, "smaller file")} left out of the picture` : ""}. The oldest checkpoint that is kept shows what it has as shared.`}</p>
    <${FilesOf} files=${files} numbers=${numbers} leftOut=${past.files_left_out} />
  `;
}

// The files of one checkpoint, and which of them the one before has, too.
function FilesOf({ files, numbers, leftOut }) {
  const [chosen, setChosen] = useState("");
  const checkpoint = numbers.includes(Number(chosen)) ? Number(chosen) : numbers.at(-1);
  const before = numbers[numbers.indexOf(checkpoint) - 1];
  const own = files.filter((file) => file.in.includes(checkpoint));
  const isShared = (file) => file.in.includes(before);
  const shared = own.filter(isShared);
  return html`
    <details class="more">
      <summary>The files of one checkpoint</summary>
      <p class="form"><label>Checkpoint
        <select value=${String(checkpoint)} onChange=${(event) => setChosen(event.target.value)}>${numbers.toReversed().map((each) => html`<option value=${String(each)}>${each}</option>`)}</select>
      </label>
      <span>${before === undefined ? `Checkpoint ${checkpoint} is the oldest that is kept.` : `Checkpoint ${checkpoint} shares ${number(shared.length)} of its ${plural(own.length, "file")} with checkpoint ${before}: ${size(shared.reduce((sum, file) => sum + file.bytes, 0))} of ${size(own.reduce((sum, file) => sum + file.bytes, 0))}.`}${leftOut ? ` Without ${plural(leftOut, "smaller file")} of all checkpoints.` : ""}</span></p>
      <${Table}
        caption=${`Files of checkpoint ${checkpoint}`}
        empty="It references no file."
        rows=${own.toSorted((a, b) => isShared(a) - isShared(b))}
        columns=${[
          { name: "File", text: (file) => html`<code>${file.name}</code>` },
          { name: "Of", text: (file) => (file.uid ? `${file.uid}[${file.partition}]` : "positions of the sources") },
          { name: "Size", text: (file) => size(file.bytes), right: true },
          { name: "New or shared", text: (file) => (isShared(file) ? `shared with checkpoint ${before}` : before === undefined ? "–" : "new") },
          { name: "Referenced by", text: (file) => file.in.join(", "), wide: true },
        ]}
      />
    </details>
  `;
}
