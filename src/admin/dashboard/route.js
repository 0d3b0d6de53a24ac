// What if: where a call would go now, without sending anything.

import { anything, code, count, h, pill, seconds, section, show } from "./dom.js";
import { ask } from "./live.js";
import { candidates, dnsSteps, leftOut } from "./ladder.js";

const RULES = {
  peer_domain: "its domain is the peer's",
  core_next_hops: "its domain is our own, so it goes to the core's next hops",
  number_route: "its number has the longest prefix in [[route]]",
  federation: "federation is open, and its domain is nobody's that is configured",
  route_set: "it follows a route set",
  local: "it is addressed to this element itself",
  refused: "it is refused before a target is chosen",
};
/** What the answer and its parties hold that is shown in its own way. */
const KNOWN = ["party", "targets", "request_uri", "outcome", "text", "valid_for", "steps", "candidates", "left_out"];

function supposed(c) {
  return h("input", { type: "checkbox", "data-instance": c.instance, checked: c.supposed_down === true, "aria-label": `Suppose ${c.target} ${c.instance} down` });
}

function leg(l, i) {
  const further = Object.fromEntries(Object.entries(l).filter(([k, v]) => !KNOWN.includes(k) && v !== null));
  return section(`leg-${i}`, `${i === 0 ? "To" : "Then to"} ${l.party ?? "nobody known"}`,
    h("p", null, "Located: ", l.targets.map((t) => [code(t), " "]),
      l.candidates.length ? h("span", { class: "note" }, `valid for ${seconds(l.valid_for)}`) : pill("bad", l.text)),
    l.request_uri && h("p", null, "Leaves with the Request-URI ", code(l.request_uri)),
    l.candidates.length > 0 && candidates(l.candidates, { down: supposed }),
    leftOut(l.left_out),
    dnsSteps(l.steps),
    Object.keys(further).length > 0 && h("details", null, h("summary", null, "Further"), anything(further)));
}

function answer(r) {
  const all = r.legs.flatMap((l) => l.candidates);
  const first = all.find((c) => c.order === 1) ?? all.find((c) => c.health === "up" || c.health === "unknown");
  const sender = { core: "the core", peer: "a peer" }[r.from] ?? r.from;
  return [
    r.refused
      ? h("div", { class: "verdict bad" }, h("p", null, pill("bad", `Refused with ${r.refused.status}`), ` ${r.refused.text}`))
      : h("div", { class: "verdict ok" }, h("p", null,
        sender && `Asked by ${sender}: `, RULES[r.rule] ?? (r.rule ?? "").replaceAll("_", " "), ". ",
        r.candidates ? [h("b", null, count(r.candidates, "candidate")), first && [", most likely first ", h("b", null, first.target), " ", code(first.instance)], "."] : h("b", null, "Nobody could be reached."))),
    (r.notes ?? []).map((n) => h("p", { class: "note" }, n)),
    r.legs.map(leg),
  ];
}

export function view(main, params) {
  const uri = h("input", { id: "uri", type: "text", inputmode: "url", required: true, maxlength: 4096, autocomplete: "off", autocapitalize: "off", spellcheck: "false", placeholder: "sip:+44207946000@example.com", value: params.get("uri") ?? "" });
  const down = h("input", { id: "down", type: "text", maxlength: 1000, autocomplete: "off", spellcheck: "false", placeholder: "192.0.2.7, udp:192.0.2.8:5060", value: params.get("down") ?? "" });
  const form = h("form", { class: "search" },
    h("div", { class: "field grow" }, h("label", { for: "uri" }, "SIP or tel URI"), uri),
    h("div", { class: "field grow" }, h("label", { for: "down" }, "If these were down ", h("span", { class: "note" }, "(optional)")), down),
    h("div", { class: "field" }, h("button", { class: "strong" }, "Show the way")));
  const out = h("div", { role: "region", "aria-label": "Answer" });
  const said = h("p", { class: "unseen", role: "status" });
  main.append(h("h1", null, "What if"), h("p", { class: "note" }, "Where would a call go at this moment? By the rules and the state that calls meet; DNS is asked where the cache does not know, and nothing is sent to anybody else."), form, said, out);
  let asked = 0;
  const look = async () => {
    const mine = ++asked;
    const query = new URLSearchParams({ uri: uri.value.trim() });
    const gone = down.value.split(",").map((d) => d.trim()).filter(Boolean).join(",");
    if (gone) query.set("down", gone);
    history.replaceState(null, "", `#/route?${query}`);
    if (!out.hasChildNodes()) show(out, h("p", { class: "note" }, "Looking …"));
    try {
      const found = await ask(`/api/v1/resolve?${query}`);
      if (mine !== asked) return;
      show(out, answer(found));
      said.textContent = found.refused ? `Refused with ${found.refused.status}.` : `${count(found.candidates, "candidate")} found.`;
    } catch (e) {
      if (mine === asked) show(out, h("p", { class: "empty", role: "alert" }, e.message));
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    look();
  });
  out.addEventListener("change", (event) => {
    const { instance } = event.target.dataset;
    if (!instance) return;
    const now = new Set(down.value.split(",").map((d) => d.trim()).filter(Boolean));
    if (event.target.checked) now.add(instance);
    else now.delete(instance);
    down.value = [...now].join(", ");
    look();
  });
  if (uri.value) look();
  return () => {
    asked += 1;
  };
}
