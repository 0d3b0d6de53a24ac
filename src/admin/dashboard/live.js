// News of the node: server-sent events, and asking now and then where these do not come.

const QUIET = 4000;
const POLL = 2000;
const KEPT = 300;

/** What is known: the newest overview, the last minutes second by second, and how it comes. */
export const state = { news: null, history: [], link: "connecting", at: 0 };

const listeners = new Set();
/** Calls back with every piece of news; gives the way to stop. */
export function onNews(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
const tell = () => listeners.forEach((l) => l());

/** An answer in JSON. Errors carry the server's own words. */
export async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new Error("no answer from the node");
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) {
    const more = Array.isArray(body?.errors) && body.errors.length ? `: ${body.errors.join("; ")}` : "";
    throw Object.assign(new Error((body?.error ?? `status ${answer.status}`) + more), { status: answer.status });
  }
  return body;
}

function take(news) {
  state.news = news;
  state.at = performance.now();
  if (news.history) state.history = news.history;
  else if (news.second) state.history.push(news.second);
  if (state.history.length > KEPT) state.history.splice(0, state.history.length - KEPT);
  tell();
}

function setLink(link) {
  if (state.link !== link) {
    state.link = link;
    tell();
  }
}

async function poll() {
  try {
    take(await ask("/api/v1/overview"));
    if (state.link !== "live") setLink("polling");
  } catch {
    state.link = "lost";
    tell();
  }
}

export function start() {
  let source = null;
  const open = () => {
    source?.close();
    source = new EventSource("/api/v1/events");
    source.addEventListener("overview", (event) => {
      state.link = "live";
      take(JSON.parse(event.data));
    });
  };
  poll();
  open();
  let retry = 0;
  setInterval(() => {
    if (document.hidden) return;
    if (performance.now() - state.at < (state.link === "live" ? QUIET : POLL / 2)) return;
    poll();
    // A refused stream is closed for good by the browser: try again, not too often.
    if (source.readyState === EventSource.CLOSED && performance.now() > retry) {
      retry = performance.now() + 15000;
      open();
    }
  }, POLL);
  document.addEventListener("visibilitychange", () => {
    // What was missed meanwhile.
    if (!document.hidden) poll();
  });
}
