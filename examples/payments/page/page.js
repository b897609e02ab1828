// The page: payments, alerts, one card's state, a proof, and a fork beside the job.

import { Actions } from "./actions.js";
import { CardChart, Lines } from "./charts.js";
import { amount, clock, eventTime, html, kind, megabytes, number, render, useEvents, useState } from "./lib.js";

function Page() {
  const [card, setCard] = useState("");
  const view = useEvents(`events?card=${encodeURIComponent(card)}`);
  const [kept, setKept] = useState(null);
  // While another card is asked for, the former view stays.
  if (view && view.points && view !== kept) setKept(view);
  const shown = view && view.points ? view : kept;
  return html`
    <header class="top">
      <img src="icon.svg" alt="" width="28" height="28" />
      <h1>Payments</h1>
      ${shown ? html`<span class=${`state ${shown.state}`}>${shown.state}</span>` : ""}
      ${shown ? html`<span class="about">Operations: <code>strandline ui --local-dir ${shown.local_dir}</code></span>` : ""}
    </header>
    <main>
      ${view && view.lost && !(shown && shown.is_last) ? html`<p class="lost" role="status">The dashboard does not answer. Figures are as of its last answer; has the demo ended?</p>` : ""}
      ${shown && shown.is_last ? html`<p class="passed" role="status">The demo has ended. ${shown.outcome} Next: <code>make demo ARGS=--stay</code> goes on until Ctrl-C.</p>` : ""}
      ${shown && shown.passed && !shown.is_last ? html`<p class="passed">${shown.passed}</p>` : ""}
      ${shown ? html`<${Body} view=${shown} onCard=${setCard} />` : html`<p class="empty">Asking the dashboard…</p>`}
    </main>
  `;
}

function Body({ view, onCard }) {
  const waiting = Math.max(0, view.arrived - view.processed);
  const total = Object.values(view.alerts).reduce((sum, each) => sum + each, 0);
  const facts = [
    ["Payments arrived", number(view.arrived)],
    ["Processed", number(view.processed), waiting ? `${number(waiting)} wait` : "none waits"],
    ["Payments per second", number(view.rate)],
    ["Alerts in the sink", number(total), Object.entries(view.alerts).map(([name, count]) => `${number(count)} ${kind(name)}`).join(", ")],
    ["Keepers", number(view.parallelism), `${number(view.restarts)} ${view.restarts === 1 ? "restart" : "restarts"} of this run`],
  ];
  return html`
    <dl class="facts">${facts.map(([name, value, note]) => html`<div><dt>${name}</dt><dd>${value}</dd>${note ? html`<dd class="note">${note}</dd>` : ""}</div>`)}</dl>
    <${Actions} view=${view} />
    <div class="pair">
      <${Proof} audit=${view.audit} />
      <section>
        <h2 class="unseen">What has happened</h2>
        ${view.messages.length
          ? html`<div class="scroll journal" tabindex="0" role="region" aria-label="What has happened"><ol>${[...view.messages].reverse().map((text) => html`<li>${text.trim()}</li>`)}</ol></div>`
          : html`<p class="empty">Nothing has happened yet.</p>`}
      </section>
    </div>
    <div class="pair">
      <${Lines} title="Payments" points=${view.points} marks=${view.marks} lines=${[{ name: "arrived", at: 1, tone: "pale" }, { name: "processed", at: 2, tone: "blue" }]} />
      <${Lines} title="Alerts in the sink" points=${view.points} marks=${view.marks} lines=${[{ name: "visible", at: 3, tone: "red" }]} />
    </div>
    ${view.fork ? html`<${Fork} fork=${view.fork} main=${view} onCard=${onCard} />` : ""}
    <${Card} card=${view.card} onCard=${onCard} />
    <div class="pair">
      <section>
        <h2>Fraud alerts, as the sink's readers see them</h2>
        <${AlertTable} caption="Newest alerts" alerts=${view.newest_alerts} onCard=${onCard} empty="No alert is visible yet: they appear with the first checkpoint." />
      </section>
      <section>
        <h2>Payments as they come</h2>
        <${Table} caption="Newest payments" rows=${view.newest_payments} empty="No payment has come yet."
          columns=${[
            ["time", (row) => eventTime(row.ts)],
            ["card", (row) => html`<${CardButton} card=${row.card} onCard=${onCard} />`],
            ["country", (row) => row.country],
            ["amount", (row) => amount(row.amount_cents), "right"],
            ["merchant", (row) => row.merchant, "minor"],
          ]} />
      </section>
    </div>
    <div class="pair">
      <section>
        <h2>Checkpoints</h2>
        <${Table} caption="Newest checkpoints" rows=${[...view.checkpoints].reverse()} empty="None is complete yet."
          columns=${[
            ["checkpoint", (row) => row.checkpoint, "right"],
            ["epoch", (row) => row.epoch, "right"],
            ["took", (row) => `${number(row.took_ms)} ms`, "right"],
            ["pause", (row) => `${row.pause_ms.toFixed(2)} ms`, "right"],
            ["new", (row) => megabytes(row.new_bytes), "right"],
            ["all", (row) => megabytes(row.bytes), "right"],
          ]} />
      </section>
      <section>
        <h2>Keepers</h2>
        <${Table} caption="Keepers" rows=${view.keepers} empty="None runs yet."
          columns=${[
            ["partition", (row) => row.partition, "right"],
            ["process", (row) => row.pid, "right"],
            ["epoch", (row) => row.epoch, "right"],
            ["payments", (row) => number(row.rows), "right"],
            ["processes before", (row) => row.restores, "right"],
          ]} />
      </section>
    </div>
  `;
}

// What is compared, and whether it agrees: two countings that share no code.
function Proof({ audit, title = "Do the numbers agree?" }) {
  if (!audit) {
    return html`<section class="proof"><h2>${title}</h2><p class="empty">The next checkpoint will be compared with a plain count of the payments' files.</p></section>`;
  }
  const rows = [
    ["Payments", number(audit.payments), number(audit.payments), audit.cents_in_files !== null],
    ["Their sum", amount(audit.cents), amount(audit.cents_in_files), audit.cents === audit.cents_in_files],
    ["Alerts", number(audit.alerts), number(audit.alerts_expected), !audit.missing && !audit.surplus],
  ];
  if (audit.cents_in_files === null) rows[0][2] = "no file ends there";
  return html`
    <section class=${`proof ${audit.agrees ? "ok" : "bad"}`}>
      <h2>${title} <span class="verdict">${audit.agrees ? "Yes, exactly once" : "No"}</span></h2>
      <p class="about">Checkpoint ${audit.checkpoint}, compared at ${clock(audit.at_s)} with a count of the payments' files in plain Python.
        ${audit.agrees ? "" : ` ${number(audit.missing)} alerts are missing, ${number(audit.surplus)} are too many.`}</p>
      <div class="scroll" tabindex="0" role="region" aria-label=${title}>
        <table>
          <thead><tr><td></td><th scope="col" class="right">in state and sink</th><th scope="col" class="right">in the files</th></tr></thead>
          <tbody>${rows.map(([name, ours, theirs, agrees]) => html`<tr class=${agrees ? "" : "differs"}>
            <th scope="row"><span aria-hidden="true">${agrees ? "✓" : "✗"}</span> ${name}<span class="unseen"> ${agrees ? "agree" : "differ"}</span></th><td class="right">${ours}</td><td class="right">${theirs}</td>
          </tr>`)}</tbody>
        </table>
      </div>
    </section>
  `;
}

function Fork({ fork, main, onCard }) {
  const kinds = Object.keys(fork.ours);
  const rule = (rules) => `${rules.tests} small payments, ${rules.deviations} deviations`;
  return html`
    <section class="fork">
      <h2>Side by side: demo and ${fork.name} <span class=${`state ${fork.state}`}>${fork.state}</span></h2>
      <p class="about">Both go on from payment ${number(fork.since)}; demo is at ${number(main.processed)}, the fork at ${number(fork.processed)}.
        ${fork.until ? ` Alerts are compared up to ${eventTime(fork.until)}, to which both have given theirs.` : " Both have no alerts to compare yet."}</p>
      <div class="pair beside">
      <div class="scroll" tabindex="0" role="region" aria-label="Alerts of both jobs">
        <table>
          <thead><tr><th scope="col">alerts since the fork</th><th scope="col" class="right">demo<small>${rule(fork.usual)}</small></th><th scope="col" class="right">fork<small>${rule(fork.rules)}</small></th></tr></thead>
          <tbody>${kinds.map((name) => html`<tr class=${fork.ours[name] === fork.theirs[name] ? "" : "differs"}><th scope="row">${kind(name)}</th><td class="right">${number(fork.ours[name])}</td><td class="right">${number(fork.theirs[name])}</td></tr>`)}</tbody>
        </table>
      </div>
      <${Proof} audit=${fork.audit} title="Do the fork's numbers agree?" />
      </div>
      <div class="pair">
        <div><h3>Only demo alerts</h3><${AlertTable} caption="Alerts of demo alone" alerts=${fork.only_ours} onCard=${onCard} empty="None so far." /></div>
        <div><h3>Only the fork alerts</h3><${AlertTable} caption="Alerts of the fork alone" alerts=${fork.only_theirs} onCard=${onCard} empty="None so far." /></div>
      </div>
    </section>
  `;
}

function Card({ card, onCard }) {
  const [asked, setAsked] = useState("");
  if (!card) return html`<section><h2>One card's path through the state</h2><p class="empty">It begins with the first alert's card.</p></section>`;
  const now = card.steps.at(-1);
  return html`
    <section>
      <div class="section">
        <div>
          <h2>One card's path through the state: ${card.card}</h2>
          <p class="about">${now
            ? html`Looked up in its keeper each second. As of epoch ${number(now.epoch)}: <b>${number(now.count)}</b> payments, in sum <b>${amount(now.total)}</b>, mean ${amount(now.mean)} ± ${amount(now.deviation)}, last seen in ${now.country || "–"}.`
            : "The state has nothing for this card yet, or the job does not run at the moment."}</p>
        </div>
        <form class="ask" onSubmit=${(event) => { event.preventDefault(); onCard(asked.trim()); }}>
          <label>Another card <input name="card" placeholder="card-000042" autocomplete="off" value=${asked} onInput=${(event) => setAsked(event.target.value)} /></label>
          <button type="submit">Look up</button>
        </form>
      </div>
      <div class="pair wide">
        <figure class="chart">
          <figcaption>Amounts
            <span class="key"><span class="dot blue"></span>remembered payments</span><span class="key"><span class="ring"></span>alerts</span>
            <span class="key"><span class="dash"></span>mean</span>${now && now.count >= 20 ? html`<span class="key"><span class="dash red"></span>unusual from here</span>` : ""}
          </figcaption>
          <${CardChart} card=${card} deviations=${6} />
        </figure>
        <${Table} caption="Steps of the card's state" rows=${[...card.steps].reverse().slice(0, 6)} empty="No look-up has found it yet."
          columns=${[
            ["seen at", (row) => clock(row.at)],
            ["epoch", (row) => number(row.epoch), "right"],
            ["payments", (row) => number(row.count), "right"],
            ["sum", (row) => amount(row.total), "right"],
            ["country", (row) => row.country],
          ]} />
      </div>
    </section>
  `;
}

const CardButton = ({ card, onCard }) => html`<button type="button" class="link" onClick=${() => onCard(card)}>${card}</button>`;

const AlertTable = ({ alerts, caption, empty, onCard }) => html`
  <${Table} caption=${caption} rows=${alerts} empty=${empty}
    columns=${[
      ["time", (row) => eventTime(row.ts)],
      ["card", (row) => html`<${CardButton} card=${row.card} onCard=${onCard} />`],
      ["kind", (row) => kind(row.kind)],
      ["amount", (row) => amount(row.amount_cents), "right"],
      ["score", (row) => row.score, "right minor"],
    ]} />
`;

// columns: [name, text(row), class]
function Table({ caption, rows, columns, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}>
      <table>
        <caption class="unseen">${caption}</caption>
        <thead><tr>${columns.map(([name, , look]) => html`<th scope="col" class=${look || ""}>${name}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${columns.map(([, text, look]) => html`<td class=${look || ""}>${text(row)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>
  `;
}

render(html`<${Page} />`, document.getElementById("page"));
