// Queue, controllers, cordons and quotas as tables. All text of users and programs becomes text nodes.

// Rows that a person may read; the rest is counted.
const MAX_ROWS = 200;

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function time(millis) {
  if (millis === undefined || millis === null) return element("span", {}, "unknown");
  const at = new Date(millis);
  const text = at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
  return element("time", { datetime: at.toISOString() }, text);
}

export function owner(document) {
  return document ? `${document.kind} ${document.namespace}/${document.name}` : "an unknown owner";
}

function table(root, caption, headings, rows, none) {
  if (!rows.length) {
    root.replaceChildren(element("p", { class: "soft" }, none));
    return;
  }
  const head = element("tr", {}, ...headings.map((text) => element("th", { scope: "col" }, text)));
  const body = rows.slice(0, MAX_ROWS).map((cells) => element("tr", {}, ...cells.map((cell, column) => {
    const made = element("td", { "data-heading": headings[column], ...(typeof cell === "string" && cell.length > 40 ? { class: "wide" } : {}) });
    made.append(...[cell].flat());
    return made;
  })));
  const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  const region = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": `Table of ${caption}` }, made);
  const more = rows.length > MAX_ROWS ? [element("p", { class: "soft" }, `${rows.length - MAX_ROWS} more rows are not shown.`)] : [];
  // An unchanged table stays: nothing moves under a pointer, a screen reader or the focus.
  if (root.firstElementChild?.isEqualNode(region) && root.children.length === 1 + more.length) return;
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  root.replaceChildren(region, ...more);
  if (focused) [...root.querySelectorAll("button")].find((button) => button.dataset.focus === focused)?.focus();
}

function button(text, focus, onClick) {
  const made = element("button", { type: "button" }, text);
  made.dataset.focus = focus;
  made.addEventListener("click", onClick);
  return made;
}

// Returns buttons that mark the blockers on the map.
export function blockers(list, row, mark) {
  const one = (blocker) => button(`${blocker.id}${blocker.owner ? `, ${owner(blocker.owner)}` : ""}`, `${row} ${blocker.id}`, () => mark([blocker.id]));
  const all = list.length > 1 ? [button("Show all", `${row} all`, () => mark(list.map((blocker) => blocker.id)))] : [];
  return [...list.slice(0, MAX_ROWS).flatMap((blocker) => [one(blocker), " "]), ...all];
}

export function showQueue(root, waiting, mark) {
  const rows = waiting.map((request) => [
    String(request.waiting?.position ?? ""),
    `${request.id} of ${owner(request.owner)}`,
    String(request.size),
    element("span", { class: "wide" }, element("strong", {}, request.reason?.code ?? ""), ` ${request.reason?.message ?? ""}`),
    request.waiting?.blockers.length ? blockers(request.waiting.blockers, request.id, mark) : "see the reason",
    request.waiting?.earliestFit ? time(request.waiting.earliestFit) : "unknown",
  ]);
  table(root, "queued requests", ["Position", "Request", "IPUs", "Reason", "Waits for the end of", "Expected start"], rows, "No request waits.");
}

export function showControllers(root, map) {
  const rows = map.controllers.map((one) => [
    one.name,
    one.health,
    one.silentSince ? time(one.silentSince) : "",
    one.version ?? "",
    one.error ?? "",
  ]);
  table(root, "controllers", ["Controller", "State", "Silent since", "Version", "Error"], rows, "The proxy has no controllers.");
}

export function showCordons(root, cordons) {
  const rows = cordons.map((one) => [
    one.id,
    [one.controller, one.machine, one.ipu].filter((part) => part !== null && part !== undefined).join("/"),
    one.owner,
    time(one.since),
    one.reason,
  ]);
  table(root, "cordons", ["Cordon", "Hardware", "Owner", "Since", "Reason"], rows, "No hardware is cordoned.");
}

export function showQuotas(root, quotas) {
  const limit = (used, most) => (most === undefined ? `${used}, unlimited` : `${used} of ${most}`);
  const rows = quotas.map((one) => [
    one.namespace === undefined ? `account ${one.account}` : `namespace ${one.namespace}`,
    limit(one.ipus, one.maxIpus),
    limit(one.partitions, one.maxPartitions),
  ]);
  table(root, "quotas", ["Subject", "IPUs", "Partitions"], rows, "No quotas are set.");
}

export function showPlan(root, planned, ended, mark) {
  const lines = planned.map((one, index) => {
    if (one.fits) {
      const domains = Map.groupBy ? Map.groupBy(one.ipus ?? [], (place) => place.linkDomain) : new Map();
      const places = [...domains].map(([domain, all]) => `link domain ${domain}, IPUs ${all[0].ipu} to ${all.at(-1).ipu}`);
      return element("p", {}, `${one.size} IPUs fit at ${one.controller}${places.length ? `: ${places.join("; ")}` : ""}.`);
    }
    const reasons = one.reasons.map((reason) => `${reason.controller}: ${reason.message}`).join("; ");
    const line = element("p", {}, `${one.size} IPUs do not fit. ${reasons}. `);
    if (one.blockers?.length) line.append(`They would fit if all of these ended${ended.length ? ", too" : ""}: `, ...blockers(one.blockers.map((id) => ({ id })), `plan ${index}`, mark));
    return line;
  });
  root.replaceChildren(...lines);
}
