// The drawing layer: each kind of picture that a view may tell becomes SVG or plain elements. Colours are names of lab.css.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const shadeOf = (name) => `var(--${/^[a-z0-9-]+$/.test(name) ? name : "faint"})`;

function shaded(made, name, what = "background") {
  made.style[what] = shadeOf(name);
  return made;
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.01) return value.toExponential(0);
  return Math.abs(value) >= 10000 ? value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 })
    : String(Number(value.toPrecision(3)));
}

const time = (s) => (s >= 1 ? `${short(s)} s` : s >= 1e-3 ? `${short(s * 1e3)} ms` : `${short(s * 1e6)} µs`);

const MARKS = {
  cells({ rows, legend }) {
    const place = element("div", { class: "rows" });
    for (const [name, cells] of rows) {
      const boxes = cells.map(([text, shade]) => shaded(element("span", { class: "cell" }, text), shade, "borderColor"));
      place.append(element("span", { class: "faint" }, name), element("div", { class: "cells" }, ...boxes));
    }
    return element("div", {}, place, legendOf(legend));
  },

  bars({ bars }) {
    const most = Math.max(1e-12, ...bars.map(([, value]) => value)), place = element("div", { class: "bars" });
    for (const [name, value, text, shade] of bars) {
      const bar = shaded(element("i"), shade);
      bar.style.width = `${(value / most * 60).toFixed(2)}%`;
      place.append(element("span", {}, name), element("div", {}, bar, text));
    }
    return place;
  },

  lines({ across, up, series, doubling }, wide) {
    const tall = 250, left = 64, bottom = tall - 44, top = 12;
    const drawn = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img" });
    const xs = series.flatMap(({ x }) => x), ys = series.flatMap(({ y }) => y), scale = doubling ? Math.log2 : Number;
    const from = scale(Math.min(...xs)), to = scale(Math.max(...xs)), most = Math.max(1e-12, ...ys);
    const place = (x, y) => [left + (scale(x) - from) / (to - from || 1) * (wide - left - 20), bottom - y / most * (bottom - top)];
    for (const tick of axisTicks(0, most, 4, ys.every(Number.isInteger))) {
      const [, y] = place(xs[0], tick);
      drawn.append(svg("line", { class: "axis", x1: left, x2: wide - 20, y1: y, y2: y }),
        svg("text", { class: "faint", x: left - 6, y: y + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const at of to > from ? axisTicks(from, to, wide / 100, doubling || xs.every(Number.isInteger)) : [from]) {
      const tick = doubling ? 2 ** at : at;
      drawn.append(svg("text", { class: "faint", x: place(tick, 0)[0], y: bottom + 16, "text-anchor": "middle" }, short(tick)));
    }
    drawn.append(svg("text", { class: "faint", x: (left + wide) / 2, y: tall - 8, "text-anchor": "middle" }, across));
    series.forEach(({ x, y }, order) => {
      const points = x.map((value, at) => place(value, y[at]).map((one) => one.toFixed(1)).join(","));
      const line = svg("polyline", { class: "series", points: points.join(" "), fill: "none", "stroke-width": 2.2 });
      line.style.stroke = shadeOf(`class-${order % 8}`);
      drawn.append(line);
      for (const point of x.length < 40 ? points : []) {
        const [cx, cy] = point.split(","), dot = svg("circle", { cx, cy, r: 3.2 });
        dot.style.fill = shadeOf(`class-${order % 8}`);
        drawn.append(dot);
      }
    });
    return element("div", {}, drawn, legendOf([[up, null], ...series.map(({ name }, order) => [name, `class-${order % 8}`])]));
  },

  lanes({ lanes, spans, until }, wide) {
    const left = 96, tall = Math.max(10, Math.min(26, 420 / Math.max(1, lanes.length)));
    const height = lanes.length * tall + 26, drawn = svg("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img" });
    const across = (at) => left + at / (until || 1) * (wide - left - 8);
    for (const tick of ticks(0, until || 1, wide / 100)) {
      const anchor = across(tick) > wide - 30 ? "end" : "middle"; // the text of the last one stays inside
      drawn.append(svg("line", { class: "axis", x1: across(tick), x2: across(tick), y1: 0, y2: height - 22 }),
        svg("text", { class: "faint", x: across(tick), y: height - 6, "text-anchor": anchor }, tick ? time(tick) : "0"));
    }
    lanes.forEach((name, lane) => drawn.append(svg("text", { x: 0, y: (lane + 0.5) * tall + 4 }, name)));
    const shades = new Map();
    for (const [lane, from, to, shade, text] of spans) {
      const box = svg("rect", { class: "span", x: across(from), y: lane * tall + 2, width: Math.max(0.8, across(to) - across(from)), height: tall - 4, rx: 2 },
        svg("title", {}, `${text}, ${time(to - from)}`));
      box.style.fill = shadeOf(shade);
      shades.set(shade, true);
      drawn.append(box);
    }
    return element("div", {}, drawn, legendOf([...shades.keys()].map((shade) => [SHADES[shade] || shade, shade])));
  },

  table({ head, rows }) { return table(head, rows); },

  notes({ texts }) { return element("div", {}, ...texts.map((text) => element("p", { class: "note" }, text))); },

  // Stations go to the right in one row and to the left in the next, so that each one lies beside the one before it.
  path({ stations, reached }, wide) {
    const columns = wide >= 640 ? 4 : wide >= 420 ? 2 : 1;
    return element("ol", { class: "stations" }, ...stations.map(([name, text], place) => {
      const row = Math.floor(place / columns), across = place % columns, isBack = row % 2 === 1;
      const arrow = place + 1 === stations.length ? "" : across + 1 === columns ? "↓" : isBack ? "←" : "→";
      const station = element("li", { class: place === reached ? "here" : place < reached ? "passed" : "ahead", ...(place === reached ? { "aria-current": "step" } : {}) },
        element("b", {}, name), element("p", {}, place <= reached ? text : ""), ...(arrow ? [element("span", { class: "arrow", "data-to": arrow, "aria-hidden": "true" }, arrow)] : []));
      station.style.gridArea = `${row + 1} / ${isBack ? columns - across : across + 1}`;
      return station;
    }));
  },
};

// Ticks of an axis; with `isWhole` at whole numbers only: there are no half workers.
function axisTicks(from, to, most, isWhole) { return ticks(from, to, isWhole ? Math.min(most, to - from) : most); }

// What shades mean where they are spans of time.
const SHADES = {
  compute: "training step", fetch: "fetching samples", transform: "transforming samples", collate: "collating the batch",
  write: "writing the batch", order: "waiting for a batch", slot: "memory in use", deliver: "delivering the batch",
  start: "starting", transfer: "copying the batch", device: "copying to the device", queue: "waiting", bad: "lost", good: "recovered",
};

function legendOf(entries) {
  return element("ul", { class: "legend" }, ...entries.filter(([name]) => name).map(([name, shade]) =>
    element("li", {}, ...(shade ? [shaded(element("i"), shade)] : []), name)));
}

// Draws a picture into its place; one of the same name takes the place of the former.
function draw(place, event) {
  const made = MARKS[event.kind](event, Math.max(280, place.clientWidth)), old = place.querySelector(`[data-picture="${CSS.escape(event.name)}"]`);
  const framed = element("figure", { "data-picture": event.name, "data-kind": event.kind }, element("figcaption", {}, event.title), made);
  for (const drawn of framed.querySelectorAll("svg")) drawn.setAttribute("aria-label", event.title);
  framed.drawn = event;
  if (old) old.replaceWith(framed); else place.append(framed);
  return framed;
}

// Pictures are as wide as their place, so that their letters stay as large as others.
function redraw(place) { for (const framed of [...place.children]) draw(place, framed.drawn).className = framed.className; }
