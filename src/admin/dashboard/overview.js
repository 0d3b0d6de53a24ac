// What to look at first: is it well, and if not, what is wrong.

import { bar, clock, code, count, h, mark, ms, num, percent, pill, rate, seconds, section, show, spark, table } from "./dom.js";
import { ask, onNews, state } from "./live.js";
import { callsTable } from "./calls.js";

const WINDOW = "last 5 minutes";
const LIMITS = { transactions: "Transactions", connections: "Connections", dns_entries: "DNS cache entries" };

/** What speaks against calm: [kind, text, link]. */
export function troubles(n) {
  const all = [];
  if (state.link === "lost") all.push(["bad", "The node does not answer: what is shown is old."]);
  if (n.draining) all.push(["warn", `Draining: new calls are refused, ${count(n.open, "request")} still open, ${count(n.calls, "call")} up.`, "#/system"]);
  else if (!n.ready) all.push(["warn", `Not ready: ${n.reason}.`]);
  if (n.overload.shedding) {
    all.push(["bad", `Overloaded: ${percent(n.overload.admit_ratio)} of new calls are admitted, messages wait ${ms(n.overload.delay_ms)}.`]);
  }
  for (const p of n.peers) {
    const down = p.instances.filter((i) => !i.up);
    const total = p.instances.length + p.instances_left_out;
    if (total > 0 && p.up === 0) all.push(["bad", `${p.name}: all ${count(total, "instance")} avoided or on trial.`]);
    else if (down.length) {
      const names = [...new Set(down.map((i) => i.target ?? i.address))];
      all.push(["warn", `${p.name}: ${count(total - p.up, "instance")} of ${total} avoided or on trial (${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}). Calls go to the others.`]);
    }
    if (p.max_calls && p.calls >= p.max_calls * 0.9) {
      all.push([p.calls >= p.max_calls ? "bad" : "warn", `${p.name}: ${num(p.calls)} of ${num(p.max_calls)} calls allowed.`]);
    }
  }
  for (const l of n.limits) {
    if (l.limit > 0 && l.used >= l.limit * 0.9) all.push(["bad", `${LIMITS[l.name] ?? l.name}: ${num(l.used)} of ${num(l.limit)}.`]);
  }
  for (const text of n.warnings) all.push(["warn", text, "#/system"]);
  return all;
}

function verdict(n, all) {
  if (state.link === "lost") return ["bad", "No contact with the node"];
  if (all.some(([kind]) => kind === "bad")) return ["bad", "Something is wrong"];
  if (n.draining) return ["warn", "Draining"];
  if (all.length) return ["warn", "Calls go through, with something to look at"];
  return ["ok", "All is well"];
}

let announced = null;
function announce(text) {
  if (announced !== null && announced !== text) document.getElementById("announce").textContent = text;
  announced = text;
}

function tile(label, value, note, course) {
  return h("div", { class: "tile" }, h("dt", null, label), h("dd", null, h("strong", null, value), h("span", { class: "note" }, note), course));
}

function tiles(n) {
  const all = n.window.all;
  const course = (i) => spark(state.history.slice(-120).map((row) => row[i]));
  return h("dl", { class: "tiles" },
    tile("Calls now", num(n.calls), `${count(n.open, "request")} open`, course(0)),
    tile("INVITEs/s", rate(n.rates.invites), `${rate(n.rates.attempts)} attempts/s`, course(1)),
    tile("Failovers/s", rate(n.rates.failovers), `${count(all.failed_over, "call")} in 5 min`, course(3)),
    tile("Refused here/s", rate(n.rates.refused), `${count(all.refused, "call")} in 5 min`, course(4)),
    tile("Answered (ASR)", percent(all.answer_ratio), `${num(all.answered)} of ${count(all.calls, "call")} in 5 min`),
    tile("Effective (SEER)", percent(all.effectiveness), "answered, busy or declined"),
    tile("Post-dial delay", ms(all.delay_ms.p50), `95 % within ${ms(all.delay_ms.p95)}`),
    tile("Handling delay", ms(n.overload.delay_ms), n.overload.enabled ? `shedding above ${ms(n.overload.target_ms)}` : "overload control is off"));
}

export function standing(i) {
  const again = i.down_for === null ? "" : `again in ${seconds(i.down_for)}`;
  return {
    up: () => pill("ok", "Up", typeof i.ramp === "number" && `, at ${percent(i.ramp)} of its share`),
    trial: () => pill("warn", "On trial"),
    down: () => pill("bad", "Avoided", again && `, ${again}`),
    probed_down: () => pill("bad", "Down by probes"),
  }[i.standing]?.() ?? pill("off", i.standing);
}

const why = (i) => [
  i.since !== null && `for ${seconds(i.since)}`,
  i.reason && (i.reason_text ?? i.reason.replaceAll("_", " ")),
  i.standing === "trial" && "the next call tries it",
].filter(Boolean).join(": ");

const INSTANCE = [
  {
    label: "Instance", wide: true,
    of: (i) => h("span", { class: "who" }, i.target && i.target !== i.address.replace(/:\d+$/, "") && h("b", null, i.target), " ", code(i.instance)),
  },
  { label: "State", half: true, of: (i) => [standing(i), !i.up && h("span", { class: "note why" }, why(i))] },
  { label: "Priority", num: true, of: (i) => num(i.priority) },
  { label: "Weight", num: true, of: (i) => num(i.weight) },
  {
    label: "Share of attempts", num: true,
    of: (i) => h("span", { class: "sharecell" }, bar(i.share), h("span", null, percent(i.share))),
  },
  { label: "Attempts", num: true, of: (i) => num(i.attempts) },
  { label: "Answered 2xx", num: true, of: (i) => num(i.ok) },
  { label: "Failed", num: true, of: (i) => (i.failed ? h("b", { class: "badtext" }, num(i.failed)) : "0") },
];

function direction(label, t) {
  if (!t.calls) return h("span", null, h("b", null, label), " no calls");
  return h("span", null, h("b", null, label), ` ${count(t.calls, "call")}, ${percent(t.answer_ratio)} answered`,
    t.delay_ms.p50 !== null && `, delay ${ms(t.delay_ms.p50)}`);
}

function peer(p) {
  const total = p.instances.length + p.instances_left_out;
  const kind = total === 0 ? "off" : p.up === total ? "ok" : p.up === 0 ? "bad" : "warn";
  const word = total === 0 ? "No instance located yet" : `${p.up} of ${total} up`;
  const id = `peer-${p.name}`;
  return h("article", { class: "peer", "data-key": id, "aria-label": p.name },
    h("div", { class: "peerhead" },
      h("h3", null, p.core ? "Core" : p.name),
      pill(kind, word),
      p.calls !== null && h("span", { class: "now" }, h("b", null, num(p.calls)), p.max_calls ? ` of ${num(p.max_calls)} calls` : " calls now"),
      p.max_rate && h("span", { class: "note" }, `at most ${p.max_rate} calls/s`),
      direction("to it:", p.to),
      direction("from it:", p.from)),
    p.instances.length > 0 && table(`Instances of ${p.name}, ${WINDOW}`, INSTANCE, p.instances, { key: (i) => i.instance }),
    p.instances_left_out > 0 && h("p", { class: "note" }, `and ${count(p.instances_left_out, "more instance")}`));
}

const HAPPENED = {
  down: (e) => ["bad", [who(e), " is avoided: ", e.text ?? e.reason.replaceAll("_", " ")]],
  up: (e) => ["ok", [who(e), ` is used again, after ${seconds(e.after)}`]],
  overload_begins: () => ["bad", "Overload: new calls are being shed"],
  overload_ends: () => ["ok", "The overload is over"],
  drain_begins: () => ["warn", "Draining began"],
  drain_ends: () => ["ok", "Draining ended: new calls are accepted"],
};
const who = (e) => [e.peer && `${e.peer}: `, e.target && h("b", null, `${e.target} `), code(e.instance)];

/** What happened lately, newest first. */
function happened(n) {
  const list = n.happened ?? [];
  if (!list.length) return h("p", { class: "empty" }, "Nothing since the start: no instance fell or came back, no overload, no drain.");
  return h("ul", { class: "log", tabindex: 0, "aria-label": "What happened lately" }, list.map((e) => {
    const [kind, what] = HAPPENED[e.event]?.(e) ?? ["off", e.event];
    return h("li", { class: kind, "data-key": `${e.at} ${e.event} ${e.instance ?? ""}` },
      h("time", { datetime: new Date(e.at * 1000).toISOString() }, clock(e.at)), mark(kind), h("span", null, what));
  }));
}

function causes(n) {
  const total = n.window.causes.reduce((sum, c) => sum + c.calls, 0);
  return table(`Failed calls by cause, ${WINDOW}`, [
    {
      label: "Cause", wide: true,
      of: (c) => h("a", { href: `#/calls?outcome=${c.status}` }, c.reason ? `${c.status} from here: ${c.text ?? c.reason.replaceAll("_", " ")}` : `${c.status} from the other side`),
    },
    { label: "Calls", num: true, of: (c) => num(c.calls) },
    { label: "Part", num: true, of: (c) => h("span", { class: "sharecell" }, bar(c.calls / total), h("span", null, percent(c.calls / total))) },
  ], n.window.causes, { empty: `No call has failed in the ${WINDOW}.`, key: (c) => `${c.status}${c.reason}` });
}

function outcomes(n) {
  return table(`Attempts that were given up, ${WINDOW}`, [
    { label: "What the instance did", wide: true, of: (o) => o.text ?? o.outcome.replaceAll("_", " ") },
    { label: "Attempts", num: true, of: (o) => num(o.attempts) },
  ], n.window.outcomes, { empty: `Every attempt got an answer in the ${WINDOW}.`, key: (o) => o.outcome });
}

export function limitsTable(n) {
  return table("Limits", [
    { label: "Limit", wide: true, of: (l) => LIMITS[l.name] ?? l.name },
    { label: "Used", num: true, of: (l) => num(l.used) },
    { label: "Of", num: true, of: (l) => num(l.limit) },
    { label: "Part", num: true, of: (l) => h("span", { class: "sharecell" }, bar(l.used / l.limit), h("span", null, percent(l.used / l.limit))) },
  ], n.limits, { key: (l) => l.name });
}

function overload(n) {
  const o = n.overload;
  if (!o.enabled) return pill("off", "Overload control is off");
  const text = o.shedding ? `Shedding: ${percent(o.admit_ratio)} of new calls admitted` : "Not overloaded";
  return h("p", null, pill(o.shedding ? "bad" : "ok", text), ` messages wait ${ms(o.delay_ms)} (target ${ms(o.target_ms)}), ${num(o.shed)} refused since the start`);
}

export function view(main) {
  const top = h("div");
  const recent = h("div");
  let calls = null;
  let failed = null;
  main.append(top, recent);

  const draw = () => {
    const n = state.news;
    if (!n) return show(top, h("h1", null, "Overview"), h("p", { class: "note" }, "Waiting for the node."));
    const all = troubles(n);
    const [kind, text] = verdict(n, all);
    announce(text);
    const peers = n.peers.filter((p) => !p.core || p.instances.length || p.to.calls);
    show(top,
      h("div", { class: `verdict ${kind}` },
        h("h1", null, mark(kind), h("span", null, text)),
        all.length > 0 && h("ul", null, all.map(([k, t, link]) => h("li", { class: k }, mark(k), link ? h("a", { href: link }, t) : h("span", null, t)))),
        all.length === 0 && h("p", null, `${count(n.instances.up, "instance")} up, up for ${seconds(n.uptime)}, version ${n.version}.`)),
      !n.records && h("p", { class: "empty" }, "limits.records is 0: without records there are no figures of the last minutes, and no recent calls."),
      tiles(n),
      section("peers", "Peers and their instances",
        [...peers].sort((a, b) => a.core - b.core).map(peer),
        n.peers_left_out > 0 && h("p", { class: "note" }, `${count(n.peers_left_out, "quieter peer")} not shown; `, h("a", { href: "/api/v1/peers" }, "all as JSON"), ".")),
      h("div", { class: "columns", "data-key": "columns" },
        section("happened", "What happened lately", happened(n)),
        section("causes", "Why calls failed", causes(n)),
        section("outcomes", "Why attempts were given up", outcomes(n)),
        section("limits", "Load and limits", overload(n), limitsTable(n))));
  };
  const drawCalls = () => {
    if (!calls && !failed) return;
    show(recent,
      section("latest", "Latest calls that moved on",
        calls ? callsTable(calls, "Calls with more than one attempt", "No recent call needed a second attempt.") : h("p", { class: "empty" }, failed),
        h("p", { class: "note" }, h("a", { href: "#/calls?outcome=failover" }, "All that moved on"), " · ", h("a", { href: "#/calls?outcome=failed" }, "All that failed"), " · ", h("a", { href: "#/calls" }, "All recent calls"))));
  };
  const fetchCalls = async () => {
    if (document.hidden) return;
    try {
      calls = (await ask("/api/v1/calls?outcome=failover&limit=6")).calls;
    } catch (e) {
      failed = e.message;
    }
    drawCalls();
  };
  draw();
  fetchCalls();
  const stop = onNews(draw);
  const timer = setInterval(fetchCalls, 3000);
  return () => {
    stop();
    clearInterval(timer);
  };
}

