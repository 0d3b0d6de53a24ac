// What the browser tests stand on: a demo, a browser, and checks that are counted.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import dgram from "node:dgram";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

export const OUT = process.env.OUT;
const require = createRequire(path.join(OUT, "package.json"));
const { chromium } = require("playwright-core");
const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

let failed = 0;
let passed = 0;

/** Notes whether something holds. */
export function check(holds, what, more = "") {
  if (holds) passed += 1;
  else {
    failed += 1;
    console.log(`  FAILED: ${what} ${more}`);
  }
}

/** Runs one test; an error is a failure of it. */
export async function test(name, body) {
  const before = failed;
  const start = Date.now();
  try {
    await body();
  } catch (error) {
    failed += 1;
    console.log(`  FAILED: ${String(error.message ?? error).split("\n").slice(0, 6).join("\n    ")}`);
  }
  console.log(`${failed === before ? "ok  " : "FAIL"} ${name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
}

export function end() {
  console.log(`${passed} checks passed, ${failed} failed; screenshots in ${OUT}`);
  return failed === 0 ? 0 : 1;
}

/** Starts `sbe demo` and waits for its dashboard. */
export async function demo(args = []) {
  const child = spawn(process.env.SBE, ["demo", ...args], { stdio: ["ignore", "pipe", "pipe"] });
  const url = await new Promise((resolve, reject) => {
    let text = "";
    const look = (data) => {
      text += data;
      const found = /dashboard\s+(http:\/\/\S+)/.exec(text);
      if (found) resolve(found[1].replace(/\/$/, ""));
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    child.on("exit", (code) => reject(new Error(`the demo ended with ${code}: ${text}`)));
  });
  return { url, stop: () => child.kill("SIGTERM") };
}

export async function browser() {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "sbe-browser-"));
  const launched = await chromium.launch({ executablePath: "/usr/bin/chromium", headless: true, args: FLAGS, env: { ...process.env, HOME: profile } });
  return {
    context: (options) => launched.newContext(options),
    close: async () => {
      await launched.close();
      fs.rmSync(profile, { recursive: true, force: true });
    },
  };
}

/** JSON of the admin interface, not through the browser. */
export const json = async (url) => (await fetch(url)).json();

/** Waits until something holds. */
export async function until(what, holds, most = 30000) {
  const end_ = Date.now() + most;
  for (;;) {
    const value = await holds();
    if (value) return value;
    if (Date.now() > end_) throw new Error(`waited in vain for: ${what}`);
    await new Promise((r) => setTimeout(r, 200));
  }
}

/** Sends a datagram and gives the first answer. */
export async function datagram(host, port, text) {
  const socket = dgram.createSocket("udp4");
  try {
    return await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error("no answer to a datagram")), 5000);
      socket.on("message", (data) => {
        clearTimeout(timer);
        resolve(data.toString("latin1"));
      });
      socket.bind(0, "127.0.0.1", () => {
        const { port: own } = socket.address();
        socket.send(text.replaceAll("{port}", own), port, host);
      });
    });
  } finally {
    socket.close();
  }
}

/** Faults of accessibility that are serious or worse. */
export async function axe(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter((v) => ["serious", "critical", "moderate"].includes(v.impact))
    .map((v) => `${v.impact} ${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.any[0]?.message ?? n.failureSummary ?? ""}`).join(" | ")}`);
}
