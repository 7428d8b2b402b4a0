// The page: follows the events of the proxy, and reads again what has changed.

import * as proxy from "./proxy.js";
import { HardwareMap, STATES, stateOf } from "./map.js";
import { element, owner, showControllers, showCordons, showPlan, showQueue, showQuotas, time } from "./lists.js";

const RETRY_MILLIS = 1_000;
// Pause between two updates: changes of a busy system are drawn together.
const UPDATE_MILLIS = 200;
const PATHS = { queue: "v1/waiting", cordons: "v1/cordons", controllers: "v1/map" };

const at = (id) => document.getElementById(id);
const partitions = new Map();
const documents = { queue: { waiting: [] }, cordons: { cordons: [] }, controllers: null };
const stale = new Set();
let isUpdating = false;
let isOpen = false;

const map = new HardwareMap(at("map"), showDetail);

for (const [letter, name, meaning] of STATES) {
  at("legend").append(element("li", {}, element("span", { class: `ipu ${name}` }, letter), ` ${meaning}`));
}
at("legend").append(element("li", {}, element("span", { class: "ipu active kept" }, "A"), " underlined: held and cordoned"));
at("legend").append(element("li", {}, element("span", { class: "ipu active" }, "A!"), " exclamation mark: held and unhealthy"));

function showDetail() {
  at("detail").replaceChildren(...map.detail(documents.controllers, partitions, documents.cordons.cordons));
}

function mark(ids) {
  const count = map.mark(ids);
  const text = count ? `${count} IPUs of ${ids.join(", ")} are marked.` : `The place of ${ids.join(", ")} is not known.`;
  at("marks").textContent = ids.length ? text : "";
}

// Returns the partitions of this id or job, or its queued requests.
function resolve(name, isQueued = false) {
  const isJob = (one) => one && [one.name, `${one.namespace}/${one.name}`, owner(one)].includes(name);
  const all = [...partitions.values()].filter((one) => (one.state === "waiting") === isQueued);
  const named = all.filter((one) => one.id === name);
  return (named.length ? named : all.filter((one) => isJob(one.owner))).map((one) => one.id);
}

function summarize() {
  const counts = new Map();
  const all = documents.controllers?.controllers ?? [];
  for (const controller of all) {
    for (const domain of controller.linkDomains) {
      for (const machine of domain.machines) {
        for (const run of machine.runs) counts.set(stateOf(run), (counts.get(stateOf(run)) ?? 0) + run.ipus);
      }
    }
  }
  const total = [...counts.values()].reduce((sum, one) => sum + one, 0);
  const parts = STATES.flatMap(([, name]) => (counts.has(name) ? [`${counts.get(name)} ${name}`] : []));
  const silent = all.filter((one) => one.health === "silent");
  const unknown = silent.filter((one) => !one.linkDomains.length).length;
  if (silent.length) parts.push(`${silent.length} silent ${silent.length === 1 ? "controller" : "controllers"}`);
  const counted = unknown ? `, without those of ${unknown} of them` : "";
  at("summary").textContent = `${total} IPUs: ${parts.join(", ")}${counted}. ${documents.queue.waiting.length} queued.`;
}

// Keeps the last known machines of controllers that are silent now.
function keepSilent(before, now) {
  for (const one of now?.controllers ?? []) {
    if (one.health !== "silent" || one.linkDomains.length) continue;
    one.linkDomains = before?.controllers.find((other) => other.name === one.name)?.linkDomains ?? [];
    if (one.linkDomains.length) one.unplaced = [];
  }
}

// Reads and draws what is stale, until nothing is.
async function update() {
  if (isUpdating) return;
  isUpdating = true;
  let names = [];
  try {
    while (stale.size) {
      names = [...stale];
      stale.clear();
      const read = async (name) => (documents[name] = await proxy.read(PATHS[name]));
      const before = documents.controllers;
      await Promise.all(names.filter((name) => PATHS[name]).map(read));
      keepSilent(before, documents.controllers);
      if (names.includes("queue")) showQueue(at("queue"), documents.queue.waiting, mark);
      if (names.includes("cordons")) showCordons(at("cordons"), documents.cordons.cordons);
      if (names.includes("controllers")) {
        showControllers(at("controllers"), documents.controllers);
        showQuotas(at("quotas"), documents.controllers.quotas);
      }
      if (documents.controllers && (names.includes("controllers") || names.includes("partitions"))) {
        await map.draw(documents.controllers, partitions);
      }
      summarize();
      showDetail();
      if (isOpen) setLive();
      await new Promise((done) => setTimeout(done, UPDATE_MILLIS));
    }
  } catch (error) {
    fail(error);
    for (const name of names) stale.add(name);
    if (isOpen) setTimeout(update, RETRY_MILLIS);
  } finally {
    isUpdating = false;
  }
}

function setStale(name) {
  stale.add(name);
  update();
}

function onEvent(kind, data) {
  if (kind === "snapshot") {
    partitions.clear();
    for (const one of data.partitions) partitions.set(one.id, one);
    setStale("partitions");
  } else if (kind === "change") {
    const before = partitions.get(data.id);
    if (data.partition) partitions.set(data.id, data.partition);
    else partitions.delete(data.id);
    // Other fields than the owner are in the detail only.
    if (JSON.stringify(before?.owner) !== JSON.stringify(data.partition?.owner)) setStale("partitions");
  } else if (PATHS[kind]) {
    setStale(kind);
  }
}

let oldSince = null;
function setLive() {
  oldSince = null;
  document.body.classList.remove("old");
  at("connection").textContent = "Live.";
}

function fail(error) {
  oldSince ??= proxy.lastHeard();
  document.body.classList.add("old");
  const text = error instanceof TypeError || error.name === "AbortError" ? "the proxy does not answer" : error.message;
  at("connection").replaceChildren("Old since ", time(oldSince), `: ${text}. Trying again.`);
}

async function run() {
  for (;;) {
    try {
      await proxy.follow(() => {
        isOpen = true;
        for (const name of Object.keys(PATHS)) setStale(name);
      }, onEvent);
    } catch (error) {
      isOpen = false;
      fail(error);
      if (error instanceof proxy.NeedsToken) {
        at("connection").textContent = "A token is needed.";
        await askToken(error.message);
        continue;
      }
    }
    await new Promise((done) => setTimeout(done, RETRY_MILLIS));
  }
}

function askToken(reason) {
  const form = at("token-form");
  form.hidden = false;
  at("token-note").append(element("span", { class: "warn" }, ` ${reason}`));
  at("token").focus();
  return new Promise((done) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      proxy.setToken(at("token").value.trim());
      proxy.forget();
      at("token").value = "";
      at("token-note").querySelectorAll(".warn").forEach((one) => one.remove());
      form.hidden = true;
      done();
    };
  });
}

at("find").addEventListener("change", () => {
  const text = at("find").value.trim();
  const ids = text ? resolve(text) : [];
  const isMachine = text && map.select(text);
  mark(ids);
  if (!text || isMachine || ids.length) return;
  at("marks").textContent = resolve(text, true).length ? `${text} is queued.` : `There is no machine, partition or job ${text}.`;
});
at("unmark").addEventListener("click", () => mark([]));

at("plan-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const words = (id) => at(id).value.split(",").map((word) => word.trim()).filter(Boolean);
  try {
    const sizes = words("sizes").map(Number);
    if (sizes.some((size) => !Number.isInteger(size))) throw new Error(`IPUs = ${at("sizes").value}: use numbers, such as 16`);
    const ended = words("ended").map((name) => {
      const ids = resolve(name);
      if (!ids.length) throw new Error(`There is no partition or job ${name}`);
      return ids;
    });
    showPlan(at("plan"), await proxy.plan(sizes, ended.flat()), ended, mark);
  } catch (error) {
    at("plan").replaceChildren(element("p", { class: "warn" }, `${error.message}.`));
  }
});

run();
