// The map: controllers, link domains and machines. One button is a machine, and its aria-label says everything.

import { element, owner, time } from "./lists.js";

// States of an IPU: letter, class and meaning.
export const STATES = [
  ["F", "free", "free"],
  ["A", "active", "active"],
  ["N", "creating", "being created"],
  ["R", "resetting", "being reset"],
  ["L", "releasing", "being released"],
  ["E", "failed", "failed, still held"],
  ["Q", "quarantined", "without a known owner"],
  ["X", "foreign", "used by another program"],
  ["C", "cordoned", "cordoned, not held"],
  ["U", "unhealthy", "unhealthy, not held"],
];
const LETTERS = Object.fromEntries(STATES.map(([letter, name]) => [name, letter]));
const MEANINGS = Object.fromEntries(STATES.map(([, name, meaning]) => [name, meaning]));
const SLICE_MILLIS = 25;

export function stateOf(run) {
  if (run.foreign) return "foreign";
  if (run.holder) return run.phase;
  if (run.unhealthy) return "unhealthy";
  return run.cordons?.length ? "cordoned" : "free";
}

function ipus(first, count) {
  return count === 1 ? `IPU ${first}` : `IPUs ${first} to ${first + count - 1}`;
}

function sentence(run, first, partitions) {
  const state = stateOf(run);
  const text = [`${ipus(first, run.ipus)}: `, run.holder ? `${state}, partition ${run.holder}` : MEANINGS[state]];
  if (run.holder && !run.foreign) text.push(` of ${owner(partitions.get(run.holder)?.owner)}`);
  if (run.foreign) text.push(" of another program");
  if (run.cordons?.length && state !== "cordoned") text.push(", cordoned");
  if (run.unhealthy && run.holder) text.push(", unhealthy");
  return text.join("");
}

function label(machine, partitions) {
  let first = 0;
  const runs = machine.runs.map((run) => {
    const text = sentence(run, first, partitions);
    first += run.ipus;
    return text;
  });
  return `${machine.name}. ${runs.join(". ")}`;
}

function cells(machine) {
  return machine.runs.flatMap((run) => {
    const state = stateOf(run);
    const kept = run.cordons?.length && run.holder ? " kept" : "";
    const letter = `${LETTERS[state] ?? "?"}${run.unhealthy && run.holder ? "!" : ""}`;
    return Array.from({ length: run.ipus }, () => {
      const cell = element("span", { class: `ipu ${state}${kept}`, "aria-hidden": "true" }, letter);
      if (run.holder) cell.dataset.holder = run.holder;
      return cell;
    });
  });
}

export class HardwareMap {
  #root;
  #domains = new Map();
  #controllers = new Map();
  #render = 0;
  #marked = new Set();
  #selected = null;

  constructor(root, onSelect) {
    this.#root = root;
    root.addEventListener("click", (event) => {
      const button = event.target.closest(".machine");
      if (!button) return;
      this.#selected = { controller: button.dataset.controller, machine: button.dataset.machine };
      for (const other of root.querySelectorAll(".machine[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", "true");
      onSelect();
    });
    root.addEventListener("keydown", (event) => {
      const button = event.target.closest(".machine");
      const all = button && [...button.parentElement.children];
      const at = all?.indexOf(button);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all?.length - 1 }[event.key];
      const next = to === undefined ? null : all?.[to];
      if (!next) return;
      event.preventDefault();
      button.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }

  // Draws the changed parts in short slices, so that the page never stalls.
  async draw(map, partitions) {
    const render = ++this.#render;
    let begun = performance.now();
    const seen = new Set();
    for (const [index, controller] of map.controllers.entries()) {
      const section = this.#controller(controller, index, partitions);
      for (const domain of controller.linkDomains) {
        const key = `${controller.name}\n${domain.cluster}\n${domain.number}`;
        seen.add(key);
        this.#domain(key, controller, domain, section, partitions);
        if (performance.now() - begun > SLICE_MILLIS) {
          await new Promise((done) => setTimeout(done));
          if (render !== this.#render) return;
          begun = performance.now();
        }
      }
    }
    for (const [key, drawn] of this.#domains) {
      if (!seen.has(key)) {
        drawn.box.remove();
        this.#domains.delete(key);
      }
    }
    for (const [name, section] of this.#controllers) {
      if (!map.controllers.some((controller) => controller.name === name)) {
        section.remove();
        this.#controllers.delete(name);
      }
    }
    this.#showMarks();
  }

  #controller(controller, index, partitions) {
    let section = this.#controllers.get(controller.name);
    if (!section) {
      section = element("section", { "aria-label": `Controller ${controller.name}` }, element("h3"), element("p", { class: "note" }));
      this.#controllers.set(controller.name, section);
    }
    if (this.#root.children[index] !== section) this.#root.insertBefore(section, this.#root.children[index] ?? null);
    const silent = controller.health === "silent";
    section.classList.toggle("lost", silent);
    section.querySelector("h3").textContent = `${controller.name} (${controller.health})`;
    const note = section.querySelector(".note");
    const notes = [];
    if (silent) notes.push("Silent since ", time(controller.silentSince), ". ", controller.linkDomains.length ? "The map shows its last answer to this page. " : "Its machines are not known. ");
    else if (!controller.linkDomains.length && controller.health !== "alias") notes.push("It does not report its hardware. ");
    const unplaced = controller.unplaced?.map((id) => `${id} of ${owner(partitions.get(id)?.owner)}`);
    if (unplaced?.length) notes.push(`The place of these partitions is not known: ${unplaced.join(", ")}.`);
    note.replaceChildren(...notes);
    note.classList.toggle("warn", silent);
    return section;
  }

  #domain(key, controller, domain, section, partitions) {
    const labels = domain.machines.map((machine) => label(machine, partitions));
    const text = labels.join("\n");
    let drawn = this.#domains.get(key);
    if (drawn?.text === text) return;
    if (!drawn) {
      const title = `Cluster ${domain.cluster}, link domain ${domain.number}`;
      const machines = element("div", { class: "machines", role: "group", "aria-label": title });
      const box = element("div", {}, element("h4", {}, title), machines);
      drawn = { box, machines, labels: [] };
      this.#domains.set(key, drawn);
      section.append(box);
    }
    const buttons = drawn.machines.children;
    domain.machines.forEach((machine, index) => {
      if (buttons[index] && drawn.labels[index] === labels[index]) return;
      let button = buttons[index];
      if (!button) {
        button = element("button", { type: "button", class: "machine", "aria-pressed": "false" });
        button.tabIndex = index === 0 ? 0 : -1;
        drawn.machines.append(button);
      }
      button.dataset.controller = controller.name;
      button.dataset.machine = machine.name;
      button.setAttribute("aria-label", labels[index]);
      button.title = labels[index];
      button.replaceChildren(element("span", { class: "name" }, machine.name), ...cells(machine));
    });
    while (buttons.length > domain.machines.length) drawn.machines.lastChild.remove();
    drawn.text = text;
    drawn.labels = labels;
  }

  // Marks the IPUs of these partitions; returns the number of marked IPUs.
  mark(ids) {
    this.#marked = new Set(ids);
    const marked = this.#showMarks();
    marked[0]?.scrollIntoView({ block: "center" });
    return marked.length;
  }

  #showMarks() {
    for (const cell of this.#root.querySelectorAll(".ipu.marked")) {
      if (!this.#marked.has(cell.dataset.holder)) cell.classList.remove("marked");
    }
    if (!this.#marked.size) return [];
    const marked = [...this.#root.querySelectorAll(".ipu[data-holder]")].filter((cell) => this.#marked.has(cell.dataset.holder));
    for (const cell of marked) cell.classList.add("marked");
    return marked;
  }

  // Selects the first machine of this name; returns whether there is one.
  select(name) {
    const button = [...this.#root.querySelectorAll(".machine")].find((one) => one.dataset.machine === name);
    if (!button) return false;
    button.scrollIntoView({ block: "center" });
    button.click();
    return true;
  }

  // Returns the selected machine as elements: its IPUs with holders, owners, times and cordons.
  detail(map, partitions, cordons) {
    const controller = map?.controllers.find((one) => one.name === this.#selected?.controller);
    const machines = controller?.linkDomains.flatMap((domain) => domain.machines) ?? [];
    const machine = machines.find((one) => one.name === this.#selected?.machine);
    if (!machine) return ["No machine is selected."];
    const list = element("ul");
    let first = 0;
    for (const run of machine.runs) {
      const item = element("li", {}, sentence(run, first, partitions));
      const partition = partitions.get(run.holder);
      if (partition?.heldSince) item.append(", held since ", time(partition.heldSince));
      if (partition?.account) item.append(`, account ${partition.account}`);
      for (const id of run.cordons ?? []) {
        const cordon = cordons.find((one) => one.id === id);
        item.append(element("br"), `Cordon ${id}`);
        if (cordon) item.append(` by ${cordon.owner} since `, time(cordon.since), `: ${cordon.reason}`);
      }
      list.append(item);
      first += run.ipus;
    }
    const silent = controller.silentSince ? [", silent since ", time(controller.silentSince)] : [];
    return [element("strong", {}, machine.name), ` of controller ${controller.name}`, ...silent, list];
  }
}
