// The dashboard as an operator uses it: mouse, keyboard, phone, dark, and with messages from people who mean harm.

import { OUT, axe, browser, check, datagram, demo, end, json, test, until } from "./harness.mjs";

const VIEWS = ["#/", "#/calls", "#/route?uri=sip:2345678@demo.example", "#/dns", "#/system"];
const name = (view) => /^#\/(\w*)/.exec(view)[1] || "overview";

const world = await demo(["--rate", "20"]);
const chrome = await browser();
const context = await chrome.context({ viewport: { width: 1280, height: 900 }, colorScheme: "light" });
const page = await context.newPage();
const faults = [];
const strangers = [];
page.on("console", (m) => m.type() === "error" && faults.push(m.text()));
page.on("pageerror", (e) => faults.push(String(e)));
page.on("request", (r) => !r.url().startsWith(world.url) && !r.url().startsWith("data:") && strangers.push(r.url()));

const go = async (view, on = page) => {
  await on.goto(`${world.url}/${view}`);
  await on.waitForSelector("main h1, main .verdict");
};
const text = (selector, on = page) => on.locator(selector).first().innerText();
const tile = (label, on = page) => on.locator(".tile", { has: on.locator("dt", { hasText: label }) }).locator("strong").innerText();

await until("calls that moved on", async () => (await json(`${world.url}/api/v1/calls?outcome=failover&limit=5`)).calls.length >= 3);

await test("the overview shows calls, peers, instances and how calls fare", async () => {
  await go("");
  await page.waitForSelector(".link .beat");
  check((await text("#link")).includes("live"), "news come as events");
  await until("calls in the tile", async () => Number(await tile("Calls now")) > 0);
  await until("a rate", async () => Number(await tile("INVITEs/s")) > 1);
  check(/\d/.test(await tile("Answered")), "an answer-seizure ratio", await tile("Answered"));
  check(/ms/.test(await tile("Post-dial delay")), "a post-dial delay", await tile("Post-dial delay"));
  const peer = page.locator("article.peer[aria-label=demo]");
  await until("three instances by each transport", async () => (await peer.locator("tbody tr").count()) >= 6);
  check((await peer.innerText()).includes("alpha.demo.example"), "instances by name");
  check((await page.locator("#outcomes ~ table tbody tr").count()) > 0, "why attempts were given up");
  const first = await page.evaluate(() => document.querySelector(".tile strong").textContent + performance.now());
  await until("an update by itself", async () => (await page.evaluate(() => document.querySelector(".tile strong").textContent + performance.now())) !== first);
});

await test("an instance that fails is told in words, with reason and time", async () => {
  await until("an instance that is down", async () => (await page.locator("article.peer .pill.bad").count()) > 0);
  const row = page.locator("article.peer tbody tr", { has: page.locator(".pill.bad") }).first();
  await until("a reason", async () => /for \d|it /.test(await row.innerText().catch(() => "")));
  check((await text(".verdict")).includes("demo:"), "the verdict names the peer", await text(".verdict"));
  const lately = await text("section[aria-labelledby=happened]");
  check(/is avoided: /.test(lately) && lately.includes("demo.example"), "and what happened when", lately.slice(0, 300));
});

await test("a call that moved on opens as a ladder of who, when, what, why", async () => {
  await go("");
  await page.locator("#latest ~ table tbody a").first().click();
  await page.waitForSelector(".ladder ol li");
  const told = await text(".ladder ol");
  check(/try 1/.test(told) && /try 2/.test(told), "two tries", told.slice(0, 400));
  check(/Chosen: /.test(told) && /Found \d+ candidate/.test(told) && /Sent by core/.test(told), "reasons");
  const times = await page.locator(".ladder li:not(.silence) .at").allInnerTexts();
  const numbers = times.map(parseFloat);
  check(numbers.length >= 5 && numbers.every((n, i) => i === 0 || n >= numbers[i - 1]), "times in order", times.join(" "));
  await page.locator(".ladder summary", { hasText: "Candidates" }).first().click();
  check((await page.locator(".ladder details[open] tbody tr").count()) > 1, "candidates unfold");
  await page.screenshot({ path: `${OUT}/ladder-light.png`, fullPage: true });
  const faults_ = await axe(page);
  check(faults_.length === 0, "axe: ladder", faults_.join("\n    "));
});

await test("calls are found by number and by result", async () => {
  const { calls } = await json(`${world.url}/api/v1/calls?limit=1&method=INVITE`);
  const number = /sip:(\d+)@/.exec(calls[0].uri)[1];
  await go("#/calls");
  await page.waitForSelector("main tbody tr");
  await page.fill("#user", number);
  await until("one call", async () => (await page.locator("main tbody tr").count()) === 1);
  check((await text("main tbody")).includes(number), "it is that call");
  check(page.url().includes(`user=${number}`), "the address bar can be passed on", page.url());
  await page.fill("#user", "");
  await page.selectOption("#outcome", "failover");
  await until("only calls that moved on", async () => {
    const tries = await page.locator("main tbody td[data-label=Attempts]").allInnerTexts();
    return tries.length > 0 && tries.every((t) => Number(t) > 1);
  });
  await page.screenshot({ path: `${OUT}/calls-light.png` });
  await page.fill("#user", "nobody-at-all");
  await page.waitForSelector("main .empty");
  check((await text("main")).includes("Call-ID"), "and offers to look for a Call-ID");
});

await test("the way of a call is shown, and what if an instance were down", async () => {
  await go("#/route");
  await page.fill("#uri", "sip:2345678@demo.example");
  await page.keyboard.press("Enter");
  await page.waitForSelector("main tbody tr");
  const order = () => page.evaluate(() => [...document.querySelectorAll("main tbody tr")]
    .map((r) => [r.querySelector("td").textContent, r.dataset.key]).filter(([o]) => o.startsWith("1.")).map(([, k]) => k)[0]);
  const before = await until("an order of trying", order);
  await page.locator(`tr[data-key="${before}"] input[type=checkbox]`).check();
  const after = await until("another first", async () => {
    const now = await order();
    return now !== before && now;
  });
  check(Boolean(after), "another instance comes first");
  check((await page.inputValue("#down")).includes(":"), "the address is filled in");
  check((await text("main")).includes("supposed down"), "and marked");
  await page.screenshot({ path: `${OUT}/route-light.png`, fullPage: true });
  await page.fill("#down", "");
  await page.fill("#uri", "sip:x@nobody.invalid");
  await page.click("text=Show the way");
  await until("a refusal", async () => (await text("main")).includes("Refused with 403"));
  await page.fill("#uri", "no uri at all");
  await page.keyboard.press("Enter");
  await page.waitForSelector("main [role=alert]");
});

await test("what stands in messages is text and never markup", async () => {
  const { listeners } = await json(`${world.url}/api/v1/status`);
  const [host, port] = listeners.find((l) => l.transport === "udp" && l.realm === "core").bind.split(":");
  const evil = "<img src=x onerror=window.hacked=1>";
  const id = "<script>window.hacked=2</script>/?#%3Cb%3E'\"&x";
  const invite = (uri, call) => [
    `INVITE ${uri} SIP/2.0`, `Via: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bK${Math.random().toString(36).slice(2)};rport`, "Max-Forwards: 70",
    `From: "${evil}" <sip:evil@core.example>;tag=1`, `To: <${uri}>`, `Call-ID: ${call}`, "CSeq: 1 INVITE",
    "Contact: <sip:evil@127.0.0.1:{port}>", "Content-Length: 0", "", ""].join("\r\n");
  const answer = await datagram(host, Number(port), invite("sip:'onclick=alert(1)'@nobody.invalid", id));
  check(/^SIP\/2.0 [1-6]/.test(answer), "the message was taken", answer.slice(0, 60));
  const bad = await datagram(host, Number(port), invite("sip:<svg/onload=window.hacked=3>@nobody.invalid", "second-evil"));
  check(/^SIP\/2.0 400/.test(bad), "what is no URI is refused before that", bad.slice(0, 60));
  await go("#/calls?user=evil");
  await until("the calls", async () => (await page.locator("main tbody tr").count()) === 1);
  check((await text("main tbody")).includes("<img src=x"), "it is shown as it came");
  await page.locator("main tbody tr", { hasText: "onclick" }).locator("a").first().click();
  await page.waitForSelector(".ladder ol li");
  check((await text("h1")).includes("<script>"), "the Call-ID too", await text("h1"));
  check((await page.locator("main img, main script, main svg[onload]").count()) === 0, "nothing of it became an element");
  check((await page.evaluate(() => window.hacked)) === undefined, "nothing of it ran");
  await go("#/route?uri=%3Cimg src=x onerror=window.hacked=4%3E");
  await page.waitForSelector("main [role=alert], main .verdict");
  check((await page.evaluate(() => window.hacked)) === undefined, "nor of an address");
  const stopped = await page.evaluate(() => {
    try {
      document.createElement("div").innerHTML = "<b>x</b>";
      return false;
    } catch {
      return true;
    }
  });
  check(stopped, "the browser itself forbids markup of text");
  faults.length = 0;
});

await test("the keyboard reaches everything, and is never trapped", async () => {
  await go("");
  await page.keyboard.press("Tab");
  check((await page.evaluate(() => document.activeElement.className)) === "skip", "the first stop skips the top");
  await page.keyboard.press("Enter");
  check((await page.evaluate(() => document.activeElement.id)) === "main", "to the content");
  await go("");
  for (let i = 0; i < 3; i += 1) await page.keyboard.press("Tab");
  check((await page.evaluate(() => document.activeElement.textContent)) === "Calls", "views are links");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  check(outline !== "none", "focus is seen", outline);
  await page.keyboard.press("Enter");
  await page.waitForSelector("main tbody tr");
  check((await page.evaluate(() => document.querySelector("nav [aria-current]").textContent)) === "Calls", "the view is marked");
  // Live updates leave the focus where it is.
  await page.locator("#follow").uncheck();
  await go("");
  const link = page.locator("#causes ~ * a, #latest ~ table a").first();
  await link.focus();
  const held = await page.evaluate(() => (window.held = document.activeElement).href);
  await until("three updates", async () => {
    await page.evaluate(() => {
      window.ticks ??= 0;
      window.watch ??= new MutationObserver(() => (window.ticks += 1)).observe(document.querySelector(".tiles"), { subtree: true, characterData: true, childList: true, attributes: true }) ?? true;
    });
    return (await page.evaluate(() => window.ticks)) > 3;
  });
  check((await page.evaluate(() => document.activeElement.tagName)) === "A", "updates leave the focus alone", held);
});

await test("draining asks first, and can be taken back", async () => {
  await go("#/system");
  await page.waitForSelector("text=Listeners");
  const drain = page.locator("button", { hasText: /^Drain$/ });
  await drain.focus();
  await page.keyboard.press("Enter");
  check(await page.locator("dialog").isVisible(), "a question");
  check(await page.evaluate(() => document.querySelector("dialog").contains(document.activeElement)), "with the focus in it");
  await page.screenshot({ path: `${OUT}/dialog-light.png` });
  await page.keyboard.press("Escape");
  check((await json(`${world.url}/api/v1/status`)).draining === false, "Escape does nothing");
  await until("the focus back", () => page.evaluate(() => document.activeElement.textContent === "Drain"));
  await page.keyboard.press("Enter");
  await page.locator("#ask-yes").click();
  await until("draining", async () => (await text("#state")).includes("Draining"));
  check((await json(`${world.url}/api/v1/status`)).draining === true, "it drains");
  await go("");
  await until("the verdict", async () => (await text(".verdict")).includes("Draining"));
  await page.screenshot({ path: `${OUT}/draining-light.png` });
  await go("#/system");
  await page.locator("button", { hasText: "End draining" }).click();
  await page.locator("#ask-yes").click();
  await until("ready again", async () => (await text("#state")).includes("Ready"));
  await until("it is on record", async () => (await text("main")).includes("POST /api/v1/undrain"));
  await page.locator("button", { hasText: "Reload" }).click();
  await page.locator("#ask-yes").click();
  await until("why not", async () => (await text("main")).includes("not started from a file"));
  faults.length = 0;
});

await test("the DNS cache is shown with ages, narrowed down and flushed", async () => {
  await go("#/dns");
  await page.waitForSelector("main tbody tr");
  check((await text("main tbody")).includes("_sip._udp.demo.example"), "its names");
  check(/\d s/.test(await text("main tbody td[data-label=Age]")), "their ages");
  await page.screenshot({ path: `${OUT}/dns-light.png`, fullPage: true });
  await page.fill("#filter", "_sip._udp.demo.example");
  await until("those that hold it", async () => {
    const rows = await page.locator("section[aria-labelledby=dns-head] tbody tr").allInnerTexts();
    return rows.length === 2 && rows.every((r) => r.includes("_sip._udp"));
  });
  await page.fill("#filter", "");
  await page.locator("button", { hasText: "Flush the whole cache" }).click();
  await page.locator("#ask-yes").click();
  await until("flushed", async () => (await text("main")).includes("has been flushed"));
});

await test("whatever ALTO tells is shown, known beforehand or not", async () => {
  const other = await context.newPage();
  await other.route("**/api/v1/alto", (route) => route.fulfill({
    json: {
      configured: true, age: 12.5, mode: "numerical", sources: ["192.0.2.1"], requests: { ok: 4, timeout: 1 },
      servers: [{
        directory: "https://alto.example/<b>", state: "fresh", in_use: true, service: "endpoint_cost", resource: "ecs", cost_type: "num-routing",
        vtag: { resource_id: "m", tag: "1" }, costs: 2, age: 12.5, fresh_for: 60, next_request: 50, last_error: { error: "no answer", ago: 90, at: 1796058249 }, failures: 0, notes: [],
      }],
      costs: [{ address: "192.0.2.7", cost: 3, age: 2, fresh: true }, { address: "192.0.2.8", cost: null, age: 3, fresh: false }],
    },
  }));
  await go("#/dns", other);
  await other.waitForSelector("#alto ~ dl");
  const told = await other.locator("section[aria-labelledby=alto]").innerText();
  check(["13 s", "numerical", "https://alto.example/<b>", "192.0.2.8", "no answer", "1 min 30 s"].every((t) => told.includes(t)), "its state", told);
  check((await other.locator("section[aria-labelledby=alto] b").count()) === 0, "as text");
  await other.screenshot({ path: `${OUT}/alto-light.png`, fullPage: true });
  const found = await axe(other);
  check(found.length === 0, "axe: ALTO", found.join(" "));
  await other.close();
});

await test("certificates show the days they have left", async () => {
  const other = await context.newPage();
  const now = Date.now() / 1000;
  const one = (file, days) => ({ file, peer: null, names: ["edge.example"], not_before: now - 86400 * 300, not_after: now + 86400 * days, days_left: days });
  await other.route("**/api/v1/certificates", (route) => route.fulfill({
    json: { certificates: [one("/etc/sbe/a.pem", 200), one("/etc/sbe/b.pem", 3), one("/etc/sbe/c.pem", -2)], warnings: ["/etc/sbe/c.pem: it has expired"] },
  }));
  await go("#/system", other);
  await other.waitForSelector("#certificates ~ table");
  const told = await other.locator("section[aria-labelledby=certificates]").innerText();
  check(["200 days", "3 days", "expired 2 days ago", "it has expired"].every((t) => told.includes(t)), "days", told);
  await other.close();
});

await test("where events do not come, the page asks now and then", async () => {
  const other = await context.newPage();
  await other.route("**/api/v1/events", (route) => route.abort());
  await go("", other);
  await until("figures", async () => /^\d/.test(await tile("Calls now", other)));
  const seen = new Set();
  await until("changes", async () => seen.add(await other.locator(".tiles").innerText()).size > 2);
  check((await text("#link", other)).includes("every few seconds"), "and says so");
  await other.close();
});

await test("without scripts there is a page too", async () => {
  const bare = await chrome.context({ javaScriptEnabled: false });
  const other = await bare.newPage();
  await other.goto(`${world.url}/`);
  // What a browser without scripts shows of the page; this one only refuses to run them.
  check((await other.content()).includes('href="/plain"'), "the page says where");
  await other.goto(`${world.url}/plain`);
  check((await other.locator("body").innerText()).includes("demo"), "with the peers");
  await bare.close();
});

const looks = [
  ["light", { width: 1280, height: 900 }], ["dark", { width: 1280, height: 900 }],
  ["light", { width: 360, height: 740 }], ["dark", { width: 360, height: 740 }],
];
for (const [colorScheme, viewport] of looks) {
  const phone = viewport.width < 500;
  await test(`${phone ? "phone" : "desktop"}, ${colorScheme}: no overflow, nothing that keeps anybody out`, async () => {
    const other = await chrome.context({ viewport, colorScheme, isMobile: phone, hasTouch: phone, deviceScaleFactor: phone ? 2 : 1 });
    const p = await other.newPage();
    const { calls } = await json(`${world.url}/api/v1/calls?outcome=failover&limit=1`);
    for (const view of [...VIEWS, `#/call/${encodeURIComponent(calls[0].call_id)}`]) {
      await go(view, p);
      await p.waitForSelector("main tbody tr, main .ladder li, main .empty");
      await p.waitForFunction(() => document.querySelectorAll("main section").length > 0 || document.querySelector("main tbody tr"));
      const wide = await p.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      check(wide[0] <= wide[1], `${view} fits ${viewport.width} px`, wide.join(" > "));
      const found = await axe(p);
      check(found.length === 0, `axe: ${view}`, found.join("\n    "));
      await p.screenshot({ path: `${OUT}/${name(view)}-${phone ? "phone-" : ""}${colorScheme}.png`, fullPage: true });
    }
    // For the documents: what is seen without scrolling.
    for (const [view, picture] of [["", "overview"], [`#/call/${encodeURIComponent(calls[0].call_id)}`, "call"]]) {
      await go(view, p);
      await p.waitForSelector("main .ladder li, main .tiles");
      await p.evaluate(() => document.fonts.ready);
      await p.screenshot({ path: `${OUT}/picture-${picture}-${phone ? "phone" : "desktop"}-${colorScheme}.png` });
    }
    await other.close();
  });
}

await test("when the node is gone, the page says that what it shows is old", async () => {
  await go("");
  await until("figures", async () => /^\d/.test(await tile("Calls now")));
  check(faults.length === 0, "no errors in the console until then", faults.join(" | "));
  world.stop();
  await until("the loss", async () => (await text("#link")).includes("no news for"));
  check((await text(".verdict")).includes("what is shown is old"), "in the verdict too", await text(".verdict"));
  await page.screenshot({ path: `${OUT}/lost-light.png` });
  faults.length = 0;
});

check(faults.length === 0, "no errors in the console", faults.join(" | "));
check(strangers.length === 0, "nothing asked of anybody else", strangers.join(" "));
await chrome.close();
world.stop();
process.exit(end());
