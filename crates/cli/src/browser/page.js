// Lays out what the server says. It decides nothing: each word, each reason and each text of a bound
// comes from the server, as on the screen of `bimetal status --watch`. Texts are only ever inserted
// as texts, never as markup.
"use strict";

const ASK_MS = 2000;
const SAMPLE_MS = 10000;
const PATIENCE_MS = 8000;
const EVENTS_SHOWN = 20;
const SVG = "http://www.w3.org/2000/svg";
const COLUMNS = [
  ["name", "Name"], ["role", "Role"], ["state", "State"], ["what", "What it is"],
  ["writes", "writes/s"], ["write_median", "write median"], ["write_p99", "write 99 %"],
  ["write_max", "write longest"], ["reads", "reads/s"], ["read_p99", "read 99 %"], ["lag", "lag"],
];
const NUMBERS = 4;

const byId = (id) => document.getElementById(id);
const state = {
  run: null, seen: null, goneSince: null, page: null, events: [], allEvents: false,
  history: null, sampledAt: 0, isAsking: false, said: null,
};

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Sets a text only if it differs, so that a screen reader says only what is new.
function say(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

// Replaces the content of a place if what it is made from has changed, and keeps the focus.
const made = new Map();
function renew(where, from, make) {
  const key = JSON.stringify(from);
  if (made.get(where.id) === key) return;
  made.set(where.id, key);
  const held = where.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  where.replaceChildren(...make());
  if (held) {
    const again = [...where.querySelectorAll("[data-key]")].find((e) => e.dataset.key === held);
    if (again) again.focus({ preventScroll: true });
  }
}

function time(unix_s) {
  const at = new Date(unix_s * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1000 && at < 4) { bytes /= 1024; at += 1; }
  return `${bytes < 10 && at > 0 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

function latency(us) {
  if (us < 1000) return `${Math.round(us)} us`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(2) * 1} ms`;
  return `${(us / 1e6).toPrecision(2) * 1} s`;
}

function rate(per_s) {
  return `${per_s < 10 ? per_s * 1 : Math.round(per_s).toLocaleString("en")}/s`;
}

function wanted() {
  const hash = location.hash;
  return hash.startsWith("#volume=") ? decodeURIComponent(hash.slice(8)) : null;
}

async function ask(path, parameters) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), PATIENCE_MS);
  try {
    const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`,
      { signal: stop.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

async function round() {
  if (state.isAsking || document.hidden) return;
  state.isAsking = true;
  try {
    const volume = wanted();
    const page = await ask("status.json", volume === null ? {} : { volume });
    if (page.run !== state.run) {
      Object.assign(state, { run: page.run, events: [], history: null, sampledAt: 0 });
    }
    state.page = page;
    const last = state.events.length ? state.events[state.events.length - 1].number : 0;
    const events = await ask("events.json", { after: last });
    if (events.run === state.run) {
      state.events = state.events.concat(events.events).slice(-200);
    }
    await sample(page.volume ? page.volume.name : "");
    state.seen = Date.now();
    state.goneSince = null;
  } catch (error) {
    if (state.goneSince === null) state.goneSince = Date.now();
  } finally {
    state.isAsking = false;
  }
  show();
}

// Asks for the samples that are not known yet, and adds them to those that are.
async function sample(volume) {
  const known = state.history;
  const isOther = !known || known.volume !== volume;
  if (!isOther && Date.now() - state.sampledAt < SAMPLE_MS) return;
  const after = isOther ? 0 : known.number;
  let newer = await ask("history.json", { volume, after });
  if (newer.run !== state.run) return;
  const names = (history) => Object.keys(history.devices).join("\n");
  if (!isOther && newer.unix_s.length > 0) {
    if (names(newer) !== names(known)) {
      newer = await ask("history.json", { volume, after: 0 });
    } else {
      const join = (a, b) => a.concat(b).slice(-360);
      for (const key of ["unix_s", "words", "tones", "exposed_bytes"]) newer[key] = join(known[key], newer[key]);
      for (const [name, columns] of Object.entries(newer.devices)) {
        for (const key of Object.keys(columns)) {
          columns[key] = join(known.devices[name][key], columns[key]);
        }
      }
    }
  } else if (!isOther) {
    newer = known;
  }
  state.history = newer;
  state.sampledAt = Date.now();
}

function show() {
  const isGone = state.goneSince !== null;
  document.body.classList.toggle("stale", isGone && state.page !== null);
  showGone(isGone);
  const page = state.page;
  if (!page) {
    document.title = isGone ? "no answer - bimetal" : "bimetal";
    if (isGone) say(byId("word"), "no answer");
    return;
  }
  const volume = page.volume;
  const worst = volume ? volume.findings[0] : null;
  const word = isGone ? "no answer" : worst ? worst.word : "no such volume";
  const of = volume ? volume.name : wanted();
  document.title = `${word} - ${of} - bimetal`;
  say(byId("about"), `${page.file}, version ${page.version}, pid ${page.pid}, up ${page.uptime}` +
    (page.stopping ? ", stopping" : ""));
  const verdict = byId("health").firstElementChild;
  verdict.className = `verdict ${isGone ? "bad" : worst ? worst.tone : "bad"}`;
  say(byId("word"), word);
  say(byId("reason"), isGone ? "The server has ended, or does not answer. What follows is what it "
    + "said last." : worst ? `${of}: ${worst.reason}` : `there is no volume ${of}`);
  // A reason has times in it, which change each second. It is read out with a new word only.
  if (state.said !== `${word} ${of}`) {
    state.said = `${word} ${of}`;
    say(byId("said"), isGone ? "no answer from the server"
      : worst ? `${of} is ${word}: ${worst.reason}` : `there is no volume ${of}`);
  }
  const also = volume && !isGone ? volume.findings.slice(1) : [];
  renew(byId("also"), also, () => also.map((found) => element("li", {},
    element("strong", { class: `tone-${found.tone}` }, found.word), ` ${found.reason}`)));
  showVolumes(page, of);
  if (volume) {
    showBounds(volume.bounds, volume.operation);
    showStack(volume.rows);
    showCommands(volume.commands);
  }
  showEvents();
  showHistory(volume);
}

function showGone(isGone) {
  if (!isGone) { say(byId("gone"), ""); return; }
  const since = state.seen === null ? state.goneSince : state.seen;
  const words = state.seen === null ? "The server does not answer." :
    `No answer from the server since ${time(since / 1000)}.`;
  say(byId("gone"), `${words} This page goes on asking.`);
}

function showVolumes(page, current) {
  byId("volumes").hidden = page.volumes.length < 2;
  const from = [page.volumes, current];
  renew(byId("volume-list"), from, () => page.volumes.map((volume) => element("li", {},
    element("a", {
      href: `#volume=${encodeURIComponent(volume.name)}`, "data-key": volume.name,
      "aria-current": volume.name === current ? "true" : null,
    }, element("b", {}, volume.name), " ",
    element("span", { class: `tone-${volume.tone}` }, volume.word), `: ${volume.reason}`))));
}

function bar(share, label) {
  const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
  const svg = drawn("svg", { class: "bar", viewBox: "0 0 100 9", preserveAspectRatio: "none",
    role: "img", "aria-label": `${label}: ${percent} %` });
  svg.append(drawn("rect", { class: "frame", x: 0, y: 0, width: 100, height: 9 }),
    drawn("rect", { class: percent >= 90 ? "fill full" : "fill", x: 0, y: 0, width: percent,
      height: 9 }));
  return svg;
}

function showBounds(bounds, operation) {
  const all = operation === null ? bounds : bounds.concat([{
    name: "last command", share: null,
    text: `${operation.description}: ${operation.state}`
      + (operation.note || operation.reason ? `: ${operation.note || operation.reason}` : ""),
  }]);
  byId("bounds-section").hidden = all.length === 0;
  renew(byId("bounds"), all, () => all.map((bound) => {
    const name = bound.name === "on one side" ? "on one side only (exposure)" : bound.name;
    const isBar = bound.share !== null && !bound.name.startsWith("last");
    return element("div", {}, element("dt", {}, name),
      element("dd", {}, isBar ? bar(bound.share, `${name}, ${bound.text}`) : ""),
      element("dd", {}, bound.text));
  }));
}

function showStack(rows) {
  renew(byId("stack-head"), COLUMNS.length, () => COLUMNS.map(([, title], at) => element("th",
    { role: "columnheader", scope: "col", class: at >= NUMBERS ? "number" : null }, title)));
  renew(byId("stack-rows"), rows, () => rows.map((row) => {
    const cells = COLUMNS.map(([key, title], at) => {
      if (key === "name") {
        const depth = Math.min(row.depth, 4);
        return element("th", { role: "rowheader", scope: "row",
          class: depth > 0 ? `depth-${depth}` : null },
        row.depth > 0 ? element("span", { class: "branch", "aria-hidden": "true" }, "\u2514 ") : null,
        row.name);
      }
      const isState = key === "state";
      return element("td", { role: "cell", "data-label": at >= NUMBERS ? title : null,
        class: at >= NUMBERS ? "number" : isState ? `tone-${row.tone}` : null }, row[key]);
    });
    const inset = row.depth > 0 ? `depth-${Math.min(row.depth, 4)}-row` : null;
    return element("tr", { role: "row", class: inset }, ...cells);
  }));
}

function showEvents() {
  const shown = state.events.slice().reverse();
  const few = state.allEvents ? shown : shown.slice(0, EVENTS_SHOWN);
  byId("events").hidden = shown.length === 0;
  byId("no-events").hidden = shown.length > 0 || state.seen === null;
  byId("more-events").hidden = shown.length <= EVENTS_SHOWN || state.allEvents;
  renew(byId("event-rows"), few, () => few.map((event) => element("tr", { role: "row" },
    element("td", { role: "cell" },
      element("time", { datetime: new Date(event.unix_s * 1000).toISOString() },
        time(event.unix_s))),
    element("td", { role: "cell" },
      event.side ? `${event.volume}, side ${event.side}` : event.volume),
    element("td", { role: "cell" }, event.message))));
}

function showCommands(groups) {
  const isShort = groups.length <= 6;
  renew(byId("commands"), groups, () => {
    const open = new Map([...document.querySelectorAll("#commands details")]
      .map((details) => [details.dataset.title, details.open]));
    return groups.map((group) => {
      const isSide = group.title.startsWith("Side ");
      const isOpen = open.has(group.title) ? open.get(group.title) : isShort || !isSide;
      return element("details", { "data-title": group.title, open: isOpen ? "" : null },
        element("summary", { "data-key": `group ${group.title}` }, group.title),
        element("ul", {}, ...group.commands.map(command)));
    });
  });
}

function command(of) {
  const code = element("code", {}, of.command);
  const button = element("button", { type: "button", "data-key": of.command,
    "aria-label": `Copy: ${of.does}: ${of.command}` }, "Copy");
  button.addEventListener("click", () => copy(of.command, code));
  return element("li", {}, element("p", {}, of.does), code, button,
    of.note ? element("p", { class: "hint" }, of.note) : null);
}

async function copy(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    say(byId("copied"), `Copied: ${text}`);
  } catch (error) {
    getSelection().selectAllChildren(code);
    say(byId("copied"), `Selected, to be copied with the keyboard: ${text}`);
  }
}

// A plot of values over the last hour. Its words say the same, for those who do not see it.
function plot(title, values, { show: words, top, limit, isLog }) {
  const known = values.filter((value) => value !== null);
  const most = known.reduce((a, b) => Math.max(a, b), 0);
  const last = values.length ? values[values.length - 1] : null;
  const summary = known.length === 0 ? "nothing known yet" :
    `now ${last === null ? "unknown" : words(last)}, at most ${words(most)} in the last hour`
    + (limit ? `, bound ${words(limit)}` : "");
  const [width, height] = [360, 90];
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none",
    role: "img", "aria-label": `${title}: ${summary}` });
  const scaleTop = Math.max(top || 0, most, limit || 0) || 1;
  const low = 100;
  const y = (value) => {
    const share = isLog ? Math.log(Math.max(value, low) / low) / Math.log(Math.max(scaleTop, 2 * low) / low)
      : value / scaleTop;
    return height - 3 - share * (height - 8);
  };
  svg.append(drawn("line", { class: "axis", x1: 0, y1: height - 1, x2: width, y2: height - 1 }));
  if (limit) {
    svg.append(drawn("line", { class: "limit", x1: 0, y1: y(limit), x2: width, y2: y(limit) }));
  }
  let path = "";
  let isDown = false;
  values.forEach((value, at) => {
    if (value === null) { isDown = false; return; }
    const x = width - (values.length - 1 - at);
    path += isDown ? `L${x} ${y(value).toFixed(1)}` : `M${x - 1} ${y(value).toFixed(1)}L${x} ${y(value).toFixed(1)}`;
    isDown = true;
  });
  svg.append(drawn("path", { class: "curve", d: path || "M0 0" }));
  return element("figure", {}, element("figcaption", {}, title), svg, element("p", {}, summary));
}

// The words of the last hour as a band. Each word is also in the text below it.
function band(words, tones) {
  const width = 360;
  const counts = new Map();
  words.forEach((word) => counts.set(word, (counts.get(word) || 0) + 1));
  const shares = [...counts].map(([word, count]) => `${word} ${duration(count * SAMPLE_MS)}`);
  const summary = shares.join(", ") || "nothing known yet";
  const svg = drawn("svg", { viewBox: `0 0 ${width} 90`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Health in the last hour: ${summary}` });
  const height = { good: 30, warn: 55, bad: 85 };
  tones.forEach((tone, at) => svg.append(drawn("rect", { class: `state-${tone}`,
    x: width - (tones.length - at), y: 90 - height[tone], width: 1.05, height: height[tone] })));
  return element("figure", {}, element("figcaption", {}, "Health"), svg, element("p", {}, summary));
}

function showHistory(volume) {
  const history = state.history;
  if (!history || !volume) return;
  const from = [history.run, history.volume, history.number, volume.exposed_bytes_max];
  renew(byId("plots"), from, () => {
    const plots = [band(history.words, history.tones)];
    const groups = [element("div", { class: "plots" })];
    const isMirror = volume.rows.some((row) => row.role.startsWith("side of"));
    if (isMirror) {
      plots.push(plot("On one side only (exposure)", history.exposed_bytes,
        { show: size, limit: volume.exposed_bytes_max }));
    }
    const names = volume.rows.filter((row) => row.kind === "device" && history.devices[row.name])
      .map((row) => row.name);
    const all = (key) => names.flatMap((name) => history.devices[name][key]);
    const top = (key) => all(key).reduce((a, b) => Math.max(a, b || 0), 0);
    const [writes, reads, late] = ["writes_per_s", "reads_per_s", "longest_us"].map(top);
    for (const name of names) {
      const of = history.devices[name];
      groups.push(element("div", { class: "plots" },
        plot(`${name}: longest request`, of.longest_us, { show: latency, top: late, isLog: true }),
        plot(`${name}: writes`, of.writes_per_s, { show: rate, top: writes }),
        plot(`${name}: reads`, of.reads_per_s, { show: rate, top: reads })));
    }
    groups[0].append(...plots);
    return groups;
  });
}

byId("more-events").addEventListener("click", () => {
  state.allEvents = true;
  show();
});
addEventListener("hashchange", () => {
  if (location.hash === "" || location.hash.startsWith("#volume=")) {
    made.delete("commands");
    round();
  }
});
document.addEventListener("visibilitychange", round);
setInterval(round, ASK_MS);
round();
