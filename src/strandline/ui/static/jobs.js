// The list of jobs.

import { State, Table } from "./parts.js";
import { firstLine, html, moment } from "./lib.js";

export function JobList({ all }) {
  const empty = `No job runs or ran on this machine with the local_dir ${all.local_dir}. Give the directory of checkpoints to "strandline ui", or the job's local_dir with --local-dir.`;
  return html`
    <h1>Jobs</h1>
    <${Table}
      caption="Jobs"
      empty=${empty}
      rows=${all.jobs}
      columns=${[
        { name: "Job", text: (job) => html`<a href=${`#/${job.id}/graph`}>${job.name}</a>` },
        { name: "State", text: (job) => html`<${State} state=${job.state} />` },
        { name: "Since", text: (job) => moment(job.ended_ms || job.since_ms) },
        { name: "Checkpoints", text: (job) => html`<code>${job.url}</code>`, wide: true },
        { name: "Last failure", text: (job) => job.problem || firstLine(job.failure) || "–", wide: true },
      ]}
    />
  `;
}
