// Elements, text and numbers. Nothing here makes markup of text: every value becomes a text node or an attribute.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** An element with attributes and children; what is null, undefined or false is left out. */
export const h = (name, props, ...children) => fill(document.createElement(name), props, children);

/** Likewise of SVG. */
export const s = (name, props, ...children) => fill(document.createElementNS(SVG, name), props, children);

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/** Makes `old` equal to `wanted` and touches only what differs: focus, selection and what is unfolded stay. */
function morph(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Whether details are unfolded is the reader's decision.
    if (!wanted.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !(name === "open" && old.nodeName === "DETAILS")) {
      old.setAttribute(name, value);
    }
  }
  if (old.nodeName === "INPUT" && old.type === "checkbox") old.checked = wanted.checked;
  show(old, ...wanted.childNodes);
}

/** Makes `wanted` the children of `parent`, keeping those that are alike. */
export function show(parent, ...wanted) {
  const next = wanted.flat(Infinity).filter((n) => n instanceof Node);
  const keyed = new Map();
  for (const child of parent.childNodes) {
    const key = keyOf(child);
    if (key !== null) keyed.set(key, child);
  }
  let at = parent.firstChild;
  for (const node of next) {
    const key = keyOf(node);
    let match = key === null ? at : keyed.get(key);
    if (match && alike(match, node) && (key !== null || keyOf(match) === null)) {
      if (match === at) at = at.nextSibling;
      else parent.insertBefore(match, at);
      morph(match, node);
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** What stands for "not known". */
export const NONE = "–";
const known = (v) => typeof v === "number" && Number.isFinite(v);

export const num = (v) => (known(v) ? whole.format(v) : NONE);
export const rate = (v) => (known(v) ? (v < 10 ? tenth : whole).format(v) : NONE);
export const percent = (v) => (!known(v) ? NONE : `${v > 0.99 && v < 1 ? tenth.format(Math.floor(v * 1000) / 10) : whole.format(v * 100)} %`);

/** Milliseconds, with as many digits as matter. */
export function ms(v) {
  if (!known(v)) return NONE;
  if (v < 10) return `${v.toFixed(1)} ms`;
  return v < 1000 ? `${Math.round(v)} ms` : seconds(v / 1000);
}

/** A stretch of time: 4.2 s, 3 min 20 s, 2 h 5 min, 4 d 3 h. */
export function seconds(v) {
  if (!known(v)) return NONE;
  if (v < 10) return `${v.toFixed(1)} s`;
  const t = Math.round(v);
  if (t < 60) return `${t} s`;
  const two = (a, unit, b, small) => (b ? `${a} ${unit} ${b} ${small}` : `${a} ${unit}`);
  if (t < 3600) return two(Math.floor(t / 60), "min", t % 60, "s");
  if (t < 86400) return two(Math.floor(t / 3600), "h", Math.floor((t % 3600) / 60), "min");
  return two(Math.floor(t / 86400), "d", Math.floor((t % 86400) / 3600), "h");
}

export const bytes = (v) => (known(v) ? `${tenth.format(v / 1048576)} MiB` : NONE);

const two = (n) => String(n).padStart(2, "0");
/** A moment's time of day, in the reader's zone. */
export function clock(unix, millis = false) {
  if (!known(unix)) return NONE;
  const d = new Date(unix * 1000);
  const day = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return millis ? `${day}.${String(d.getMilliseconds()).padStart(3, "0")}` : day;
}
export function date(unix) {
  if (!known(unix)) return NONE;
  const d = new Date(unix * 1000);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
}
export const count = (n, one, many = `${one}s`) => `${num(n)} ${n === 1 ? one : many}`;

// One shape for each state, so that colour is never all there is.
const SHAPES = {
  ok: "M2.5 6.5 5 9l4.5-5.5",
  warn: "M6 1.5 11 10.5H1zM6 5v2.5M6 9v.2",
  bad: "M2.5 2.5l7 7m0-7-7 7",
  off: "M2 6h8",
  info: "M6 5v5M6 2.2v.2",
};

/** A state: shape, colour and word. */
export const pill = (kind, ...text) =>
  h("span", { class: `pill ${kind}` }, mark(kind), h("span", null, ...text));
export const mark = (kind) =>
  s("svg", { class: "shape", viewBox: "0 0 12 12", "aria-hidden": "true" }, s("path", { d: SHAPES[kind] ?? SHAPES.off }));

/** The course of a number. Only to look at: what it says stands beside it. */
export function spark(values, top) {
  const [w, t] = [120, 28];
  const max = Math.max(top ?? 0, 1, ...values);
  const step = w / Math.max(values.length - 1, 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(t - 1 - (v / max) * (t - 3)).toFixed(1)}`);
  const line = points.join(" ");
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${w} ${t}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    values.length > 1 && s("polygon", { points: `0,${t} ${line} ${w},${t}` }),
    values.length > 1 && s("polyline", { points: line, "vector-effect": "non-scaling-stroke" }),
  );
}

/** A part of a whole as a bar, beside its number. */
export function bar(share, planned) {
  const part = Math.max(0, Math.min(1, known(share) ? share : 0));
  return s(
    "svg",
    { class: "share", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "rail", width: 100, height: 8 }),
    s("rect", { class: "part", width: (part * 100).toFixed(1), height: 8 }),
    known(planned) && s("rect", { class: "plan", x: Math.min(98.5, planned * 100).toFixed(1), width: 1.5, height: 8 }),
  );
}

/**
 * A table. Columns: { label, num, wide, of(row) }. On a narrow screen each row becomes a block with its labels, so the
 * roles are written out: they survive a changed display.
 */
export function table(caption, columns, rows, { key, empty, seen, name } = {}) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty ?? "Nothing.");
  const head = columns.map((c) =>
    h("th", { scope: "col", role: "columnheader", class: c.num ? "num" : null }, c.label));
  const body = rows.map((row) =>
    h("tr", { role: "row", "data-key": key ? key(row) : null },
      columns.map((c) =>
        h("td", { role: "cell", class: [c.num && "num", c.wide && "wide", c.half && "half", c.bare && `bare ${c.bare}`].filter(Boolean).join(" ") || null, "data-label": c.label },
          c.of(row)))));
  return h("table", { role: "table", class: name },
    h("caption", { class: seen ? null : "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, body));
}

/** Terms and what they are; pairs without a value are left out. */
export const terms = (...pairs) =>
  h("dl", null, pairs.filter((p) => p && p[1] !== null && p[1] !== undefined)
    .map(([term, ...what]) => h("div", null, h("dt", null, term), h("dd", null, ...what))));

export const code = (text) => h("code", null, text);
export const section = (id, title, ...content) =>
  h("section", { "aria-labelledby": id, "data-key": id }, h("h2", { id }, title), ...content);

const MANY = 9;

/** Any JSON, readable: for what this page does not know yet. What its name tells to be a time is shown as one. */
export function anything(value, name = "") {
  if (typeof value === "number" && /(^|_)(age|ago|for|in|request|success)$/.test(name)) return seconds(value);
  if (typeof value === "number" && name === "at") return `${date(value)} ${clock(value)}`;
  if (Array.isArray(value)) {
    if (value.length === 0) return "none";
    if (value.every((v) => v && typeof v === "object" && !Array.isArray(v))) {
      const names = [...new Set(value.flatMap(Object.keys))];
      if (names.length > MANY) return value.slice(0, 50).map((v) => anything(v, name));
      return table(words(name) || "List", names.map((n) => ({
        label: words(n),
        num: value.every((v) => typeof (v[n] ?? 0) === "number"),
        of: (row) => anything(row[n] ?? null, n),
      })), value.slice(0, 200));
    }
    return h("ul", { class: "plainlist" }, value.slice(0, 200).map((v) => h("li", null, anything(v, name))));
  }
  if (value && typeof value === "object") {
    return terms(...Object.entries(value).map(([k, v]) => [words(k), anything(v, k)]));
  }
  if (value === null || value === undefined) return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? num(value) : tenth.format(value);
  return String(value);
}
const words = (name) => name.replaceAll("_", " ");
