// The page: the list of jobs, and the views of one job. The address's part after # says which.

import { Actions } from "./actions.js";
import { CheckpointsView } from "./checkpoints.js";
import { DifferenceView } from "./difference.js";
import { EndsView } from "./ends.js";
import { EpochsView } from "./epochs.js";
import { EventTimeView } from "./eventtime.js";
import { FunctionsView } from "./functions.js";
import { GraphView } from "./graph.js";
import { JobList } from "./jobs.js";
import { KeyView } from "./key.js";
import { PartitionsView } from "./partitions.js";
import { Empty, Failure, State } from "./parts.js";
import { RestartsView } from "./restarts.js";
import { StateView } from "./state.js";
import { firstLine, html, moment, render, useAnswer, useEffect, useEvents, useKept, useRef, useState } from "./lib.js";

const VIEWS = [
  ["graph", "Graph", GraphView],
  ["epochs", "Epochs", EpochsView],
  ["checkpoints", "Checkpoints", CheckpointsView],
  ["partitions", "Partitions", PartitionsView],
  ["functions", "Functions", FunctionsView],
  ["time", "Event time", EventTimeView],
  ["ends", "Sources and sinks", EndsView],
  ["restarts", "Restarts", RestartsView],
  ["state", "State", StateView],
  ["key", "Key", KeyView],
  ["difference", "Difference", DifferenceView],
];

function useHash() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const listen = () => setHash(location.hash);
    addEventListener("hashchange", listen);
    return () => removeEventListener("hashchange", listen);
  }, []);
  return hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
}

function Page() {
  const [job, view, ...rest] = useHash();
  const all = useEvents("api/events");
  const error = all && all.error ? all : null;
  const known = all && all.jobs ? all.jobs.find((each) => each.id === job) : null;
  useEffect(() => {
    document.title = known ? `${known.name} – Strandline` : "Strandline";
  }, [known && known.name]);
  return html`
    <header class="top">
      <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="24" height="24" />Strandline</a>
      ${known ? html`<span class="where"><span aria-hidden="true">/</span> <b>${known.name}</b></span>` : ""}
      <span class="version">${all && all.version ? `${all.version}${all.read_only ? ", read-only" : ""}` : ""}</span>
    </header>
    ${all && all.lost ? html`<p class="lost" role="status">The page's server does not answer. Figures are as of the last answer; is "strandline ui" still running?</p>` : ""}
    ${all && all.problem ? html`<p class="lost" role="status">The directories of checkpoints cannot be listed: ${firstLine(all.problem)}. Jobs are as of the last list; those of this machine are shown as they are.</p>` : ""}
    ${error ? html`<main id="main" tabindex="-1"><${Failure} of=${error} /></main>` : ""}
    ${!all || error || all.lost === undefined
      ? ""
      : !all.jobs
        ? ""
        : job
          ? known
            ? html`<${Job} key=${job} id=${job} view=${view || "graph"} rest=${rest} all=${all} known=${known} />`
            : html`<main id="main" tabindex="-1"><${Empty} text="This job is not known any more." /></main>`
          : html`<main id="main" tabindex="-1"><${JobList} all=${all} /></main>`}
  `;
}

// Events bring what is new: keep the rest.
function merge(before, event) {
  if (!event.status) return { ...event, was: (before && (before.status ? before : before.was)) || null };
  const old = before && !event.anew && before.status ? before : { epochs: [], checkpoints: [], points: [] };
  const checkpoints = new Map(old.checkpoints.map((each) => [each.checkpoint, each]));
  for (const each of event.checkpoints) checkpoints.set(each.checkpoint, each);
  const newer = event.points.filter((point) => !old.points.length || point[0] > old.points.at(-1)[0]);
  return {
    ...event,
    epochs: [...old.epochs, ...event.epochs].slice(-300),
    checkpoints: [...checkpoints.values()].sort((a, b) => a.checkpoint - b.checkpoint).slice(-100),
    points: [...old.points, ...newer].slice(-900),
  };
}

function Job({ id, view, rest, all, known }) {
  const live = useEvents(`api/jobs/${id}/events`, merge);
  // The folder is read again when a checkpoint has ended, and twice a minute.
  const newest = live && live.status ? live.status.checkpoints.completed : 0;
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTurn((value) => value + 1), 30000);
    return () => clearInterval(timer);
  }, []);
  const again = Math.floor(newest / 3);
  const nav = useRef(null);
  // On a narrow screen, the views are a row that scrolls.
  useEffect(() => {
    const current = nav.current.querySelector("[aria-current]");
    if (current) nav.current.scrollTo({ left: current.offsetLeft - 60 });
  }, [view]);
  const past = useKept(useAnswer(`api/jobs/${id}/past`, `${again}/${turn}`));
  const [, , View] = VIEWS.find(([name]) => name === view) || VIEWS[0];
  const state = live && live.status ? live.status.state : known.state;
  // While the driver does not answer, its last figures stay.
  const figures = live && live.status ? live : live && live.error ? live.was : null;
  return html`
    <div class="job">
      <nav aria-label="Views of the job" ref=${nav}>
        ${VIEWS.map(([name, title]) => html`<a href=${`#/${id}/${name}`} aria-current=${name === view ? "page" : null}>${title}</a>`)}
      </nav>
      <main id="main" tabindex="-1">
        <div class="headline">
          <h1>${known.name}</h1>
          <${State} state=${state} />
          <span class="about">${headline(known, live)}</span>
          <${Actions} id=${id} live=${live} all=${all} past=${past} />
        </div>
        ${state === "killed" || state === "failed" ? html`<p class="note">Start the same program again: it goes on from its newest complete checkpoint. The drivers' log is in <a href=${`#/${id}/restarts`}>Restarts</a>.</p>` : ""}
        ${state === "does not answer" ? html`<p class="note">Process ${known.pid} lives, and no driver of the job answers: its machine may be overloaded, or the process stopped.</p>` : ""}
        ${known.problem ? html`<${Failure} of=${{ error: known.problem }} />` : ""}
        ${live && live.error ? html`<${Failure} of=${live} />` : ""}
        ${past && past.error ? html`<${Failure} of=${past} />` : ""}
        ${live === null
          ? html`<${Empty} text="Asking the job's driver…" />`
          : html`<${View} id=${id} live=${figures} past=${past && past.checkpoints ? past : null} turn=${turn} all=${all} rest=${rest} known=${known} />`}
      </main>
    </div>
  `;
}

function headline(known, live) {
  if (live && live.status) return `process ${known.pid}, since ${moment(known.since_ms)}`;
  if (known.state === "killed") return `its driver, process ${known.pid}, is gone without a word`;
  if (known.state === "failed") return `at ${moment(known.ended_ms)}: ${firstLine(known.failure)}`;
  if (known.ended_ms) return `at ${moment(known.ended_ms)}`;
  return known.url;
}

render(html`<${Page} />`, document.getElementById("page"));
