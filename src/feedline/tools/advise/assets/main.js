// What the page shows, section by section.

function figures(data) {
  const { total } = data.stats, list = document.getElementById("figures");
  const shown = [
    ["samples/s", whole(total.samples_per_s)], ["training waited", percent(total.stall)],
    ["start-up", seconds((total.waits.start || 0) * 1e6)], ["batches", whole(total.batches)],
    ["workers", `${data.settings.workers} ${data.settings.engine}`], ["recorded", seconds(total.seconds * 1e6)],
  ];
  for (const [name, value] of shown) list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}

function compared({ compared: found }) {
  if (!found) return;
  document.getElementById("compared-section").hidden = false;
  document.getElementById("h-compared").textContent = found.title;
  document.getElementById("compared").append(table(found.heads, found.rows));
}

function advice(data) {
  if (!data.advice.length) return;
  document.getElementById("advice-section").hidden = false;
  document.getElementById("advice").append(...data.advice.map(({ text, code }) => element("li", {}, text, code ? element("pre", {}, code) : "")));
}

function waits(data) {
  const { total } = data.stats, most = Math.max(1e-12, ...Object.values(total.waits));
  const rows = Object.entries(total.waits).filter(([, spent]) => spent > 0).sort((one, other) => other[1] - one[1])
    .map(([cause, spent]) => [MEANING[cause] || cause, seconds(spent * 1e6), percent(spent / total.seconds), meter(spent / most, cause)]);
  const place = document.getElementById("waits");
  place.append(rows.length ? table(["cause", "time", "share of the run", ""], rows) : "Training never waited.");
}

function stages(data) {
  const entries = Object.entries(data.stats.total.stages).filter(([, spread]) => spread.count);
  const most = Math.max(1e-12, ...entries.map(([, spread]) => spread.p99));
  const rows = entries.map(([stage, spread]) => [stage, ...["p50", "p90", "p99", "mean"].map((name) => seconds(spread[name] * 1e6)),
    meter(spread.p50 / most, STAGES.includes(stage) ? stage : "accent")]);
  document.getElementById("stages").append(table(["stage of a batch", "p50", "p90", "p99", "mean", ""], rows));
}

function workers(data) {
  const rows = data.stats.total.worker_utilisation.map((share, worker) => [`worker ${worker}`, percent(share), meter(share)]);
  document.getElementById("workers").append(rows.length ? table(["worker", "busy", ""], rows) : "There were no workers.");
}

// Samples per second in up to a hundred parts of the run.
function rates(rows) {
  const begin = rows.asked[0], end = rows.got[rows.got.length - 1], parts = Math.min(100, Math.max(2, Math.floor(rows.got.length / 4)));
  const wide = (end - begin) / parts || 1, samples = new Float64Array(parts), waited = new Float64Array(parts);
  for (let place = 0; place < rows.got.length; place += 1) {
    const part = Math.min(parts - 1, Math.max(0, Math.floor((rows.got[place] - begin) / wide)));
    samples[part] += rows.samples[place];
    waited[part] += rows.got[place] - rows.asked[place];
  }
  const x = Array.from(samples, (_, part) => begin + (part + 0.5) * wide);
  return { x, rate: Array.from(samples, (count) => count / wide * 1e6) };
}

function details(data) {
  const place = document.getElementById("details");
  const add = (title, content) => place.append(element("details", {}, element("summary", {}, title), content));
  const pairs = (values) => table(["", ""], Object.entries(values).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]));
  if (data.slow_samples.length) {
    add("Slowest samples", table(["sample", "time", "worker"], data.slow_samples.map(([index, us, worker]) => [String(index), seconds(us), String(worker)])));
  }
  if (data.faults.length) add(`Faults (${data.faults.length})`, element("pre", {}, data.faults.map((fault) => JSON.stringify(fault)).join("\n")));
  if (data.log.length) add("Notes", element("pre", {}, data.log.join("\n")));
  if (data.log.length) place.lastChild.open = true;
  add("Settings", pairs(data.settings));
  add("Environment", pairs(data.environment));
}

// Shows predictions, computed before the page was written: one row per number of workers, one column per other change.
// A click on one compares it with the recorded run.
function predictions({ predicted }) {
  const { all, notes } = predicted, place = (id) => document.getElementById(id);
  place("simulated").append(notes.join(" "));
  if (!all) return;
  const counts = [...new Set(all.map(({ workers }) => workers))].sort((one, other) => one - other);
  const columns = [...new Set(all.filter(({ workers }) => workers).map(({ change }) => change))];
  const find = (workers, change) => all.find((one) => one.workers === workers && one.change === change);
  const button = (one) => {
    const shown = element("button", { type: "button" }, `${whole(one.samples_per_s)} (${percent(one.stall).replace(" ", "\u00a0")})`);
    shown.classList.toggle("best", one.is_best);
    shown.classList.toggle("recorded", one.is_recorded);
    shown.addEventListener("click", () => choose(one, shown));
    return shown;
  };
  const row = (workers) => [String(workers), ...columns.map((change) => {
    const one = find(workers, change);
    return one ? button(one) : "";
  })];
  place("grid").prepend(table(["workers", ...columns], counts.map(row)));
  place("grid").hidden = false;
  const choose = (one, shown) => {
    for (const other of document.querySelectorAll("#grid button")) other.setAttribute("aria-pressed", other === shown);
    place("chosen").textContent = `${one.is_best ? "Best: " : ""}${one.text}`;
  };
  document.querySelector("#grid .best").click();
}

function legend() {
  const names = ["compute", ...CAUSES];
  document.getElementById("legend").append(...names.map((name) =>
    element("li", {}, element("i", { style: `background:var(--${name})` }), MEANING[name])));
}

// Plots figures of the machine over time. Returns null if none of them was recorded.
function machine(system, id, named, format) {
  if (!system.at || system.at.length < 2) return null;
  const used = named.filter(([column]) => system[column] && system[column].some((value) => value > 0));
  if (!used.length) return null;
  const series = used.map(([column, name, shade]) => ({ name, shade, x: system.at, y: system[column] }));
  document.getElementById(`${id}-section`).hidden = false;
  return () => lines(document.getElementById(id), series, format);
}

function theme(draw) {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

async function main() {
  const data = await unpack(document.getElementById("recording").textContent);
  document.getElementById("verdict").textContent = data.verdict;
  document.getElementById("made").textContent = `feedline ${data.feedline}, recorded ${new Date(data.started * 1000).toLocaleString()}`;
  figures(data); compared(data); advice(data); waits(data); stages(data); workers(data); predictions(data); details(data); legend();
  const drawers = [];
  if (data.rows.got.length) {
    const timeline = new Timeline(document.getElementById("timeline"), data), { x, rate } = rates(data.rows);
    window.timeline = timeline;
    drawers.push(() => timeline.draw());
    drawers.push(() => lines(document.getElementById("rate"), [{ name: "samples/s", shade: "accent", x, y: rate }], whole));
    const zooms = { in: () => timeline.zoom(0.5), out: () => timeline.zoom(2), all: () => timeline.show(timeline.begin, timeline.end), stall: () => timeline.nextStall() };
    for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zooms[button.dataset.zoom]);
  }
  drawers.push(...[
    machine(data.system, "load", [["cpu", "processors", "accent"], ["gpu", "GPU", "device"]], (value) => percent(value / 1000)),
    machine(data.system, "memory", [["memory", "whole machine", "accent"], ["worker_memory", "workers", "collate"], ["gpu_memory", "GPU", "device"]], bytes),
  ].filter((drawer) => drawer));
  const draw = () => drawers.forEach((drawer) => drawer());
  draw();
  theme(draw);
  addEventListener("resize", draw);
  document.documentElement.dataset.ready = "yes";
}

main().catch((error) => {
  document.getElementById("verdict").textContent = `This page could not be shown: ${error.message}`;
  throw error;
});
