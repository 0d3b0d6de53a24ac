// Recent calls, and looking for one.

import { NONE, clock, code, count, date, h, ms, num, pill, show, table } from "./dom.js";
import { ask, onNews, state } from "./live.js";

/** The called user's answer, not the network's failure (RFC 6076 §4.7). */
const USERS = [480, 486, 600, 603];
const STATUSES = [403, 404, 408, 480, 484, 486, 487, 488, 500, 502, 503, 600, 603];
const OUTCOMES = [
  ["", "any"], ["ok", "answered"], ["failed", "failed"], ["failover", "moved on to another instance"],
  ["refused", "refused here"], ["cancelled", "cancelled by the caller"],
  ["4xx", "4xx"], ["5xx", "5xx"], ["6xx", "6xx"], ...STATUSES.map((n) => [String(n), String(n)]),
];
const METHODS = ["", "INVITE", "REGISTER", "OPTIONS", "MESSAGE", "SUBSCRIBE", "NOTIFY", "PUBLISH", "REFER"];
const TIMES = [["", "any time"], ["1m", "last minute"], ["5m", "last 5 minutes"], ["15m", "last 15 minutes"], ["1h", "last hour"], ["6h", "last 6 hours"], ["24h", "last day"]];
const LIMIT = 60;

/** How a call ended, in a shape, a colour and a word. */
export function result(c) {
  if (c.ended_ms === null) return pill("info", "Under way");
  if (c.cancelled) return pill("off", "Cancelled");
  if (c.status === null) return pill("bad", "No final answer");
  if (c.status < 300) return pill("ok", c.status);
  return pill(USERS.includes(c.status) || c.status < 400 ? "info" : "bad", c.status);
}

export const callLink = (id) => `#/call/${encodeURIComponent(id)}`;

const COLUMNS = [
  {
    label: "Time", bare: "when",
    of: (c) => h("time", { datetime: new Date(c.started * 1000).toISOString(), title: `${date(c.started)}, this browser's time zone` }, clock(c.started, true)),
  },
  {
    label: "Request", wide: true, bare: "what",
    of: (c) => h("a", { href: callLink(c.call_id), class: "target" }, c.method !== "INVITE" && h("b", null, `${c.method} `), c.uri || NONE),
  },
  { label: "Caller", wide: true, bare: "caller", of: (c) => h("span", { class: "clip" }, c.caller.replace(/;tag=.*$/, "") || NONE) },
  { label: "From", of: (c) => c.from },
  { label: "To", of: (c) => (c.to.length ? c.to.join(", ") : NONE) },
  { label: "Result", bare: "result", of: (c) => [result(c), c.reason && h("span", { class: "note why" }, ` ${c.reason.replaceAll("_", " ")}`)] },
  { label: "Attempts", num: true, of: (c) => (c.attempts_made > 1 ? h("b", null, num(c.attempts_made)) : num(c.attempts_made)) },
  { label: "Took", num: true, bare: "took", of: (c) => ms(c.ended_ms) },
];

export function callsTable(calls, caption, empty) {
  return table(caption, COLUMNS, calls, { empty, name: "calls", key: (c) => `${c.call_id} ${c.started} ${c.method}` });
}

const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
const choice = (id, options, chosen) => {
  const known = options.some(([value]) => value === chosen);
  const all = known || !chosen ? options : [...options, [chosen, chosen]];
  return h("select", { id, name: id }, all.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
};

export function view(main, params) {
  const get = (name) => params.get(name) ?? "";
  const user = h("input", { id: "user", type: "search", value: get("user"), autocomplete: "off", spellcheck: "false", placeholder: "number, user or domain", maxlength: 200 });
  const names = ["core", ...(state.news?.peers ?? []).filter((p) => !p.core).map((p) => p.name)];
  const peer = choice("peer", [["", "any"], ...names.map((n) => [n, n])], get("peer"));
  const outcome = choice("outcome", OUTCOMES, get("outcome"));
  const method = choice("method", METHODS.map((m) => [m, m || "any"]), get("method").toUpperCase());
  const since = choice("since", TIMES, get("since"));
  const follow = h("input", { id: "follow", type: "checkbox", checked: true });
  const form = h("form", { class: "search", role: "search", "aria-label": "Recent calls" },
    field("Caller or called", user), field("Peer", peer), field("Result", outcome), field("Method", method), field("When", since),
    h("div", { class: "field check" }, follow, h("label", { for: "follow" }, "Keep up to date")));
  const said = h("p", { class: "note", role: "status" });
  const found = h("div");
  main.append(h("h1", null, "Recent calls"), form, said, found);

  // Peers become known with the first news.
  const stop = onNews(() => {
    for (const p of state.news?.peers ?? []) {
      if (!p.core && ![...peer.options].some((o) => o.value === p.name)) peer.append(h("option", { value: p.name }, p.name));
    }
  });

  let asked = 0;
  const search = async (byHand) => {
    const query = new URLSearchParams();
    for (const [name, control] of Object.entries({ user, peer, outcome, method, since })) {
      const value = control.value.trim();
      if (value) query.set(name, value);
    }
    const mine = ++asked;
    if (byHand) history.replaceState(null, "", query.size ? `#/calls?${query}` : "#/calls");
    query.set("limit", LIMIT);
    try {
      const { calls } = await ask(`/api/v1/calls?${query}`);
      if (mine !== asked) return;
      const text = calls.length >= LIMIT ? `The ${LIMIT} newest that fit.` : `${count(calls.length, "call")}.`;
      if (said.textContent !== text) said.textContent = text;
      const typed = user.value.trim();
      show(found,
        callsTable(calls, "Recent calls, newest first", "No recent call fits. Calls are listed once they have got their final answer."),
        calls.length === 0 && typed && h("p", null, h("a", { href: callLink(typed) }, "Look for a call with the Call-ID ", code(typed))));
    } catch (e) {
      if (mine !== asked) return;
      said.textContent = e.message;
      show(found);
    }
  };
  let typing;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search(true);
  });
  form.addEventListener("input", (event) => {
    if (event.target === follow) return;
    clearTimeout(typing);
    typing = setTimeout(() => search(true), 250);
  });
  search(false);
  const timer = setInterval(() => {
    if (follow.checked && !document.hidden) search(false);
  }, 2000);
  return () => {
    stop();
    asked += 1;
    clearTimeout(typing);
    clearInterval(timer);
  };
}
