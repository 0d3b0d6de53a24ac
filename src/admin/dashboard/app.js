// The dashboard: which view is shown, and what stands above all of them.

import { h, pill, seconds, show } from "./dom.js";
import { onNews, start, state } from "./live.js";
import * as overview from "./overview.js";
import * as calls from "./calls.js";
import * as ladder from "./ladder.js";
import * as route from "./route.js";
import * as system from "./system.js";

const VIEWS = [
  [/^\/?$/, overview.view, "Overview"],
  [/^\/calls$/, calls.view, "Calls"],
  [/^\/call\/(.+)$/, ladder.view, "A call"],
  [/^\/route$/, route.view, "What if"],
  [/^\/dns$/, system.dns, "DNS"],
  [/^\/system$/, system.view, "System"],
];

const main = document.getElementById("main");
let leave = () => {};
let shown = null;

function navigate() {
  const hash = location.hash.replace(/^#/, "");
  if (hash === "main") return main.focus();
  const [path, query] = hash.split(/\?(.*)/s);
  const params = new URLSearchParams(query ?? "");
  for (const [pattern, view, title] of VIEWS) {
    const match = pattern.exec(path);
    if (!match) continue;
    for (const link of document.querySelectorAll("nav a")) {
      const target = link.getAttribute("href").slice(1);
      const here = target === path || (target === "/" && path === "") || (target === "/calls" && path.startsWith("/call/"));
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const another = shown !== null && shown !== path;
    shown = path;
    leave();
    main.replaceChildren();
    document.title = `${title} – ${state.news?.name ?? "sbe"}`;
    const args = match.slice(1).map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
    leave = view(main, params, ...args) ?? (() => {});
    if (another) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    return;
  }
  location.hash = "#/";
}

function head() {
  const news = state.news;
  if (!news) return;
  document.getElementById("node").textContent = news.name;
  const pillOf = state.link === "lost" ? pill("off", "Not known")
    : news.draining ? pill("warn", "Draining")
    : !news.ready ? pill("warn", "Not ready")
    : news.overload.shedding ? pill("bad", "Overloaded")
    : pill("ok", "Ready");
  show(document.getElementById("state"), pillOf);
  const link = {
    live: () => [h("i", { class: "beat", "aria-hidden": "true" }), "live"],
    polling: () => ["every few seconds"],
    lost: () => [pill("bad", `no news for ${seconds(Math.round((performance.now() - state.at) / 1000))}`)],
    connecting: () => ["connecting"],
  }[state.link]();
  show(document.getElementById("link"), h("span", null, ...link));
}

onNews(head);
addEventListener("hashchange", navigate);
start();
navigate();
