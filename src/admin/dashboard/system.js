// DNS, ALTO, certificates, limits, and the few things that can be done.

import { NONE, anything, bytes, clock, code, count, date, h, num, pill, seconds, section, show, table, terms } from "./dom.js";
import { ask, onNews, state } from "./live.js";
import { limitsTable } from "./overview.js";

/** Asks before something is done; true: do it. */
function sure(title, text, yes) {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text;
  document.getElementById("ask-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** A button that asks, does it, and says what came of it in `said`. */
function action(said, label, { title, text, yes, method = "POST", path, done, strong }) {
  const button = h("button", { type: "button", class: strong ? "strong" : null }, label);
  button.addEventListener("click", async () => {
    if (!(await sure(title, text, yes))) return;
    button.disabled = true;
    try {
      said.textContent = done(await ask(path, { method }));
    } catch (e) {
      said.textContent = `${title} failed: ${e.message}`;
    }
    button.disabled = false;
    button.focus();
  });
  return button;
}

/** Asks again and again while a view is shown. */
function every(period, job) {
  job();
  const timer = setInterval(() => {
    if (!document.hidden) job();
  }, period);
  return () => clearInterval(timer);
}

export function dns(main) {
  const filter = h("input", { id: "filter", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "part of a name or record" });
  const said = h("p", { class: "note", role: "status" });
  const cache = h("div");
  const alto = h("div");
  let known = null;
  const one = (entry) => action(said, "Flush", {
    title: "Flush this name", text: `All records of ${entry.name} are asked for again when a call needs them.`, yes: "Flush",
    method: "DELETE", path: `/api/v1/dns/${encodeURIComponent(entry.name)}`, done: () => `${entry.name} has been flushed.`,
  });
  const columns = [
    { label: "Name", wide: true, of: (e) => code(e.name) },
    { label: "Type", of: (e) => e.type },
    {
      label: "Outcome",
      of: (e) => pill(e.outcome === "found" ? (e.stale ? "warn" : "ok") : e.outcome === "servfail" || e.outcome === "timeout" ? "bad" : "off", e.outcome, e.stale && ", run out"),
    },
    { label: "Age", num: true, of: (e) => (typeof e.age === "number" ? seconds(e.age) : NONE) },
    { label: "Left to live", num: true, of: (e) => (e.stale ? "0 s" : seconds(e.ttl)) },
    { label: "Records", wide: true, of: (e) => (e.records.length ? e.records.map((r) => h("code", { class: "record" }, r)) : NONE) },
  ];
  const draw = () => {
    if (!known) return;
    const needle = filter.value.trim().toLowerCase();
    const fits = known.entries.filter((e) => !needle || `${e.name} ${e.type} ${e.records.join(" ")}`.toLowerCase().includes(needle));
    const hits = Object.entries(known.cache).map(([word, n]) => `${word} ${num(n)}`).join(", ");
    show(cache,
      h("p", { class: "note", "data-key": "sum" }, `${count(known.count, "record set")}, ${count(known.queries, "question")} put to `, known.servers.map((a) => [code(a), " "]), `· cache: ${hits}`),
      table("DNS cache", columns, fits.slice(0, 300), { empty: known.count ? "No entry fits." : "The cache is empty.", key: (e) => `${e.name} ${e.type}` }),
      fits.length > 300 && h("p", { class: "note" }, `and ${num(fits.length - 300)} more: narrow it down`));
    // One button for the name that is looked at: hundreds would be in the way of the keyboard.
    const names = [...new Set(fits.map((e) => e.name))];
    const only = needle && names.length === 1 ? names[0] : null;
    if (single.dataset.name !== (only ?? "")) {
      single.dataset.name = only ?? "";
      single.replaceChildren(...(only ? [one({ name: only })] : []));
    }
  };
  const single = h("span", { "data-name": "" });
  const all = action(said, "Flush the whole cache", {
    title: "Flush the DNS cache", text: "Everything is asked for again when calls need it; also what keeps calls going while the DNS is down.", yes: "Flush all",
    method: "DELETE", path: "/api/v1/dns", done: () => "The DNS cache has been flushed.",
  });
  const costs = action(said, "Flush all costs", {
    title: "Flush the costs", text: "All costs are forgotten and asked for again; until then weights decide.", yes: "Flush",
    method: "DELETE", path: "/api/v1/alto", done: () => "The costs have been flushed.",
  });
  main.append(h("h1", null, "DNS and ALTO"),
    h("section", { "aria-labelledby": "dns-head" }, h("h2", { id: "dns-head" }, "DNS cache"),
      h("div", { class: "search" }, h("div", { class: "field grow" }, h("label", { for: "filter" }, "Show only"), filter), h("div", { class: "field buttons" }, all, single)),
      said, cache),
    alto);
  filter.addEventListener("input", draw);
  const stop = every(2000, async () => {
    try {
      known = await ask("/api/v1/dns?limit=2000");
      draw();
      const a = await ask("/api/v1/alto");
      show(alto, section("alto", "ALTO", a.configured === false
        ? h("p", { class: "empty" }, "No [alto] is configured: weights decide among servers of equal priority.")
        : [h("div", { class: "buttons" }, costs), anything(a)]));
    } catch (e) {
      said.textContent = e.message;
    }
  });
  return stop;
}

const left = (days) => pill(days < 0 ? "bad" : days < 7 ? "bad" : days < 30 ? "warn" : "ok", days < 0 ? `expired ${count(-days, "day")} ago` : count(days, "day"));
const CERTIFICATE = [
  { label: "File", wide: true, of: (c) => code(c.file) },
  { label: "Shown to", of: (c) => c.peer ?? "everybody" },
  { label: "Names", wide: true, of: (c) => c.names.map((n) => h("code", { class: "record" }, n)) },
  { label: "Valid from", num: true, of: (c) => date(c.not_before) },
  { label: "Until", num: true, of: (c) => date(c.not_after) },
  { label: "Left", num: true, of: (c) => left(c.days_left) },
];
const LISTENER = [
  { label: "Transport", of: (l) => l.transport.toUpperCase() },
  { label: "Bound to", wide: true, of: (l) => code(l.bind) },
  { label: "Side", of: (l) => l.realm },
  { label: "Advertised as", of: (l) => (l.advertise ? code(l.advertise) : NONE) },
];
const ACTION = [
  { label: "When", of: (a) => h("time", { datetime: new Date(a.at * 1000).toISOString() }, `${date(a.at)} ${clock(a.at)}`) },
  { label: "Action", wide: true, of: (a) => code(`${a.method} ${a.path}`) },
  { label: "From", of: (a) => code(a.from) },
  { label: "Role", of: (a) => a.role ?? NONE },
  { label: "Result", of: (a) => pill(a.status < 300 ? "ok" : "bad", a.status) },
];

export function view(main) {
  const said = h("p", { class: "note", role: "status" });
  const drain = action(said, "Drain", {
    title: "Drain", text: "New calls are refused with 503, so that they go elsewhere; calls that are up go on. /readyz says so to load balancers.", yes: "Drain",
    path: "/api/v1/drain", done: (r) => `Draining: ${count(r.open, "request")} open, ${count(r.calls, "call")} up.`,
  });
  const undrain = action(said, "End draining", {
    title: "End draining", text: "New calls are accepted again.", yes: "Accept calls",
    path: "/api/v1/undrain", done: () => "New calls are accepted again.",
  });
  const reload = action(said, "Reload the configuration", {
    title: "Reload the configuration", text: "The file and all certificates are read again and taken over as a whole, or not at all.", yes: "Reload",
    path: "/api/v1/reload",
    done: (r) => ["The configuration has been taken over.", r.restart_needed.length ? `A restart is needed for ${r.restart_needed.join(", ")}.` : "", ...r.warnings].filter(Boolean).join(" "),
  });
  const parts = h("div");
  main.append(h("h1", null, "System"),
    h("section", { "aria-labelledby": "do" }, h("h2", { id: "do" }, "Actions"), h("div", { class: "buttons" }, drain, undrain, reload), said),
    parts);
  let status = null;
  let certificates = null;
  let audit = null;
  const draw = () => {
    const n = state.news;
    if (n) {
      drain.hidden = n.draining;
      undrain.hidden = !n.draining;
    }
    if (!status || !certificates || !n) return;
    show(parts,
      section("certificates", "Certificates",
        certificates.warnings.map((w) => h("p", null, pill("warn", w))),
        table("Certificates", CERTIFICATE, certificates.certificates, { empty: "No [tls] is configured: there are none.", key: (c) => c.file + (c.peer ?? "") })),
      h("div", { class: "columns", "data-key": "columns" },
        section("listeners", "Listeners", table("Listeners", LISTENER, status.listeners)),
        section("sys-limits", "Limits", limitsTable(n))),
      section("process", "Process", terms(
        ["Version", status.version],
        ["Up for", seconds(status.uptime)],
        ["Configuration", status.config ? code(status.config) : "not from a file"],
        ["Reloads", `${num(status.reloads.ok)} taken over, ${num(status.reloads.error)} refused`],
        ["Workers", num(status.workers)],
        ["Memory", bytes(status.memory)],
        ["File descriptors", num(status.descriptors)],
        ["Transactions", `${num(status.transactions.server)} server, ${num(status.transactions.client)} client, ${num(status.transactions.open)} without a final response`],
        ["Requests", num(status.requests)],
        ["Attempts", `${num(status.attempts)}, ${num(status.failovers)} of them left for the next candidate`])),
      section("audit", "What was done", table("Actions, newest first", ACTION, audit.actions.slice(0, 50), { empty: "Nothing since the start.", key: (a) => `${a.at} ${a.path}` })),
      section("raw", "As data", h("p", null, ["metrics", "api/v1/status", "api/v1/overview", "api/v1/peers", "api/v1/calls", "api/v1/certificates"].map((p) => [h("a", { href: `/${p}` }, `/${p}`), " "]))));
  };
  const stopNews = onNews(draw);
  const stop = every(3000, async () => {
    try {
      [status, certificates, audit] = await Promise.all([ask("/api/v1/status"), ask("/api/v1/certificates"), ask("/api/v1/audit")]);
      draw();
    } catch (e) {
      said.textContent = e.message;
    }
  });
  return () => {
    stopNews();
    stop();
  };
}
