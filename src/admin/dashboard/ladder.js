// The decision record of a call as a ladder: who, when, what, why.

import { NONE, bar, clock, code, count, date, h, ms, num, percent, pill, s, seconds, section, show, table, terms } from "./dom.js";
import { ask } from "./live.js";
import { result } from "./calls.js";

/** A silence from this length on gets a rung of its own, milliseconds. */
const SILENCE = 400;
const LANE = 64;
const MOST_LANES = 7;

const STEPS = [
  { label: "Name", wide: true, of: (t) => code(t.name) },
  { label: "Type", of: (t) => t.type },
  { label: "Outcome", of: (t) => t.outcome },
  { label: "From", of: (t) => (t.stale ? "cache, run out (the DNS fails)" : t.cached ? "cache" : "asked") },
  { label: "Left to live", num: true, of: (t) => (t.ttl === null ? NONE : `${t.ttl} s`) },
  { label: "Records", wide: true, of: (t) => (t.records.length ? t.records.map((r) => h("code", { class: "record" }, r)) : NONE) },
];

export const dnsSteps = (steps) =>
  steps?.length > 0 && h("details", null, h("summary", null, `DNS: ${count(steps.length, "step")}`), table("DNS steps", STEPS, steps));

const HEALTH = { up: "ok", unknown: "off", trial: "warn", down: "bad", probed_down: "bad" };
const HEALTH_TEXT = { up: "up", trial: "on trial", down: "avoided", probed_down: "down by probes", unknown: "not known" };

/** Candidates of a leg, by priority. `noted`: with what became of each; `down`: a cell to suppose one down. */
export function candidates(list, { noted, down } = {}) {
  const costs = list.some((c) => c.cost !== null && c.cost !== undefined);
  const orders = list.some((c) => c.order !== undefined);
  return table("Candidates", [
    orders && { label: "Tried", num: true, of: (c) => (c.order === undefined ? NONE : h("b", null, `${c.order}.`)) },
    { label: "Instance", wide: true, of: (c) => h("span", { class: "who" }, h("b", null, c.target), " ", code(c.instance)) },
    noted && { label: "What became of it", of: (c) => (c.tried ? h("b", null, `try ${c.tried}`) : c.note ?? NONE) },
    {
      label: noted ? "State then" : "State",
      of: (c) => c.supposed_down ? pill("bad", "supposed down") : pill(HEALTH[c.health] ?? "off", HEALTH_TEXT[c.health] ?? c.health, c.down_for !== null && c.down_for !== undefined && `, ${seconds(c.down_for)} more`),
    },
    { label: "Priority", num: true, of: (c) => num(c.priority) },
    { label: "Weight", num: true, of: (c) => num(c.weight) },
    costs && { label: "Cost", num: true, of: (c) => (c.cost === null ? NONE : h("span", { title: c.ranking ?? c.cost_from }, String(c.cost))) },
    { label: "Share of its rank", num: true, of: (c) => h("span", { class: "sharecell" }, bar(c.share), h("span", null, percent(c.share))) },
    orders && { label: "First choice for", num: true, of: (c) => (c.first === undefined ? NONE : percent(c.first)) },
    down && { label: "Suppose it down", of: down },
  ].filter(Boolean), list.slice(0, 100), { empty: "Nothing was found.", key: (c) => `${c.tier} ${c.instance}` });
}

export const leftOut = (list) =>
  list?.length > 0 && h("details", null, h("summary", null, `Left out: ${num(list.length)}`),
    h("ul", { class: "plainlist" }, list.map((l) => h("li", null, code(l.what), ` ${l.reason.replaceAll("_", " ")}`))));

/** What happened, in order: { at, from, to, text, why, kind, more }. Lanes by number. */
function rungs(r, lanes) {
  const all = [];
  const add = (at, rung) => all.push({ at, ...rung });
  const [SENDER, HERE] = [0, 1];
  const goes = r.to.length ? `Goes to ${r.to.join(", then ")}: ${r.rule_text}.` : `Goes to nobody: ${r.rule_text}.`;
  add(0, { from: SENDER, to: HERE, text: `${r.method} arrives`, why: `Sent by ${r.from}: ${r.identified_by}. ${goes}` });
  for (const leg of r.legs) {
    if (leg.asked_ms === null) {
      add(0, { from: HERE, to: HERE, text: `${leg.party} was not needed`, kind: "quiet" });
      continue;
    }
    const found = leg.candidates ?? [];
    add(leg.asked_ms, {
      from: HERE, to: HERE, text: `Look up ${leg.party}`, why: leg.target && ["Where does ", code(leg.target), " lead?"],
      more: dnsSteps(leg.steps),
    });
    if (leg.answered_ms !== null) {
      add(leg.answered_ms, {
        from: HERE, to: HERE, kind: found.length ? null : "bad",
        text: found.length ? `Found ${count(found.length, "candidate")}` : `Nothing found: ${leg.text ?? ""}`,
        more: [found.length > 0 && h("details", null, h("summary", null, "Candidates, in the order of trying"), candidates(found, { noted: true })), leftOut(leg.left_out)],
      });
    }
  }
  r.attempts.forEach((a, i) => {
    const far = lanes.get(a.instance) ?? lanes.size + 1;
    const name = `try ${i + 1}`;
    const who = a.target ? `${a.target} (${a.instance})` : a.instance;
    add(a.started_ms, { from: HERE, to: far, text: `${r.method}, ${name}: ${who}`, why: `Chosen: ${a.why}.` });
    if (a.rang_ms !== null && a.rang_ms !== undefined && a.rang_ms < (a.ended_ms ?? Infinity)) {
      add(a.rang_ms, { from: far, to: HERE, text: `${name} rings, or shows other progress`, kind: "quiet" });
    } else if (a.first_response_ms !== null && a.first_response_ms < (a.ended_ms ?? Infinity)) {
      add(a.first_response_ms, { from: far, to: HERE, text: `First response of ${name}`, kind: "quiet" });
    }
    if (a.ended_ms !== null) {
      const good = a.status >= 200 && a.status < 300;
      const further = i + 1 < r.attempts.length;
      add(a.ended_ms, {
        from: far, to: HERE, lost: a.status === null, kind: good ? "ok" : further || a.status === null ? "bad" : null,
        text: `${name} ${a.what}`, why: `${ms(a.took_ms)} after it began.`,
      });
    }
  });
  if (r.ended_ms !== null) {
    const good = r.status >= 200 && r.status < 300;
    add(r.ended_ms, {
      from: HERE, to: SENDER, kind: good ? "ok" : r.cancelled ? null : "bad",
      text: r.status === null ? "Ended without a final response" : `${r.status} to the sender`,
      why: r.reason && `${r.reason_text ?? r.reason.replaceAll("_", " ")}.`,
    });
  }
  // Same moment: in the order in which they were written down.
  return all.map((rung, i) => ({ ...rung, i })).sort((a, b) => a.at - b.at || a.i - b.i);
}

function drawing(rung, lanes) {
  const width = lanes * LANE;
  const x = (lane) => lane * LANE + LANE / 2;
  const y = 18;
  const parts = [];
  const lines = Array.from({ length: lanes }, (_, lane) =>
    s("line", { class: `lane${lane === 1 ? " here" : ""}`, x1: x(lane), x2: x(lane), y1: 0, y2: 36, "vector-effect": "non-scaling-stroke" }));
  if (rung.silence) {
    // Nothing is drawn between the lanes.
  } else if (rung.from === rung.to) {
    parts.push(s("circle", { class: "dot", cx: x(rung.from), cy: y, r: 5 }));
  } else {
    const right = rung.to > rung.from;
    const [a, b] = [x(rung.from) + (right ? 3 : -3), x(rung.to) + (right ? -4 : 4)];
    const tip = right ? -7 : 7;
    if (rung.lost) {
      const m = x(rung.from);
      parts.push(s("path", { class: "cross", d: `M${m - 6} ${y - 6}l12 12m0-12-12 12` }));
    } else {
      parts.push(s("path", { class: "arrow", d: `M${a} ${y}H${b}` }));
      parts.push(s("path", { class: "tip", d: `M${b + tip} ${y - 5}L${b} ${y}L${b + tip} ${y + 5}` }));
    }
  }
  const box = (name, how, content) =>
    s("svg", { class: name, viewBox: `0 0 ${width} 36`, width, height: 36, preserveAspectRatio: how }, content);
  return h("div", { class: "lanes", "aria-hidden": "true" }, box("back", "none", lines), box("front", "none", parts));
}

function ladder(r) {
  const names = [...new Set(r.attempts.map((a) => a.instance))];
  const lanes = new Map(names.slice(0, MOST_LANES - 2).map((name, i) => [name, i + 2]));
  const count_ = 2 + Math.max(lanes.size, r.attempts.length ? 1 : 0);
  const shownNames = new Map(r.attempts.map((a) => [a.instance, (a.target ?? a.instance).split(".")[0]]));
  const heads = ["sender", "here", ...[...lanes.keys()].map((n) => shownNames.get(n))].slice(0, count_);
  // The last lane stands for all further instances.
  if (names.length > lanes.size) heads[count_ - 1] = "others";
  const steps = [];
  let before = 0;
  for (const rung of rungs(r, lanes)) {
    if (rung.at - before >= SILENCE) steps.push({ silence: rung.at - before, at: before });
    steps.push(rung);
    before = Math.max(before, rung.at);
  }
  return h("div", { class: "ladder" },
    h("div", { class: "heads", "aria-hidden": "true" }, h("span", { class: "at" }, "ms"),
      h("span", { class: "names" }, heads.map((n) => h("span", null, n)))),
    h("ol", null, steps.map((rung) => rung.silence
      ? h("li", { class: "silence" }, h("span", { class: "at" }), drawing(rung, count_), h("div", { class: "told" }, `${ms(rung.silence)} of waiting`))
      : h("li", { class: rung.kind }, h("span", { class: "at" }, rung.at.toFixed(1), h("span", { class: "unseen" }, " ms")), drawing(rung, count_),
        h("div", { class: "told" }, h("p", null, rung.text), rung.why && h("p", { class: "why" }, rung.why), rung.more)))));
}

/** Where the time went: one bar. */
function spent(r) {
  const parts = [
    ...r.legs.filter((l) => l.asked_ms !== null && l.answered_ms !== null && l.answered_ms - l.asked_ms > 0.05)
      .map((l) => [`looking up ${l.party}`, l.answered_ms - l.asked_ms]),
    ...r.attempts.map((a, i) => [`try ${i + 1}`, a.took_ms]),
  ].filter(([, took]) => took !== null);
  if (!parts.length) return null;
  return parts.map(([name, took]) => `${name} ${ms(took)}`).join(", ");
}

function request(r, i) {
  const answered = r.ended_ms === null ? "" : ` after ${ms(r.ended_ms)}`;
  const cause = r.reason && `: ${r.reason_text ?? r.reason.replaceAll("_", " ")}`;
  return section(`request-${i}`, `${r.method} at ${clock(r.started, true)}`,
    terms(
      ["Result", result(r), answered, r.attempts.length === 0 && r.ended_ms !== null && ", answered here", cause],
      ["Request-URI", code(r.uri)],
      ["Caller", code(r.caller)],
      ["Sent by", `${r.from}, `, code(r.remote), ` over ${r.transport.toUpperCase()}`],
      ["Time spent", spent(r)],
      ["Date", date(r.started)]),
    ladder(r));
}

export function view(main, _params, callId) {
  const body = h("div");
  main.append(h("p", { class: "back" }, h("a", { href: "#/calls" }, "Recent calls")),
    h("h1", { class: "callid" }, "Call ", code(callId)), body);
  let timer;
  let gone = false;
  const load = async () => {
    try {
      const { requests } = await ask(`/api/v1/calls/${encodeURIComponent(callId)}`);
      if (gone) return;
      show(body, requests.map(request));
      if (requests.some((r) => r.ended_ms === null)) timer = setTimeout(load, 1000);
    } catch (e) {
      if (!gone) show(body, h("p", { class: "empty", role: "alert" }, e.message));
    }
  };
  load();
  return () => {
    gone = true;
    clearTimeout(timer);
  };
}
