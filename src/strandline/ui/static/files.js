// The picture of incremental checkpoints: a column for each checkpoint, a row for each file that it references.

import { Empty, Legend } from "./parts.js";
import { html, number, plural, size, useState } from "./lib.js";

const MOST_HEIGHT = 380;
const LEFT = 8;

export function FilesPicture({ past }) {
  const [told, setTold] = useState("");
  const numbers = past.checkpoints.filter((each) => each.state === "complete").map((each) => each.checkpoint);
  const files = past.files.filter((file) => file.in.some((each) => numbers.includes(each)));
  if (!files.length) return html`<${Empty} text="No complete checkpoint references a file in storage." />`;
  const step = Math.max(14, Math.min(64, Math.floor(720 / numbers.length)));
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
  const bytes = (checkpoint, test) => files.filter((file) => file.in.includes(checkpoint) && test(file)).reduce((sum, file) => sum + file.bytes, 0);
  return html`
    <${Legend} parts=${[{ name: "new in this checkpoint", tone: "blue" }, { name: "shared with an earlier one", tone: "pale" }]} />
    <div class="scroll" tabindex="0" role="region" aria-label="Checkpoints and files">
      <svg
        class="files" width=${width} height=${tall * files.length} role="img" onMouseMove=${point} onMouseLeave=${() => setTold("")}
        aria-label=${`${plural(files.length, "file")} and ${plural(numbers.length, "checkpoint")}; the table below has the sums`}
      >
        ${files.map((file, row) =>
          numbers.map((checkpoint, column) =>
            file.in.includes(checkpoint)
              ? html`<rect x=${LEFT + column * step + 1} y=${row * tall} width=${step - 2} height=${tall * 0.85} class=${isNew(file, checkpoint) ? "blue" : "pale"} />`
              : "",
          ),
        )}
      </svg>
      <table class="sums">
        <caption class="unseen">Bytes of each checkpoint</caption>
        <thead><tr><th scope="col">Checkpoint</th>${numbers.map((each) => html`<th scope="col" class="right">${number(each)}</th>`)}</tr></thead>
        <tbody>
          <tr><th scope="row">new</th>${numbers.map((each, at) => html`<td class="right">${at ? size(bytes(each, (file) => isNew(file, each))) : "–"}</td>`)}</tr>
          <tr><th scope="row">shared</th>${numbers.map((each, at) => html`<td class="right">${at ? size(bytes(each, (file) => !isNew(file, each))) : size(bytes(each, () => true))}</td>`)}</tr>
        </tbody>
      </table>
    </div>
    <p class="told">${told || `${plural(files.length, "file")}, ${size(past.files_bytes)} in storage${past.files_left_out ? `; ${plural(past.files_left_out, "smaller file")} left out of the picture` : ""}. The oldest checkpoint that is kept shows what it has as shared.`}</p>
  `;
}
