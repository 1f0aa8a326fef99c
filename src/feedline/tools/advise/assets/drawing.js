// One drawing layer: canvases that are sharp on any screen, and elements made of plain values.

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
}

// Returns the context of a canvas, in CSS pixels, cleared.
function paper(canvas) {
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  if (canvas.width !== Math.round(box.width * ratio) || canvas.height !== Math.round(box.height * ratio)) {
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return [pen, box.width, box.height];
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function table(head, rows) {
  const cells = (tag, values) => values.map((value) => {
    const isHead = tag === "th";
    const cell = element(tag, isHead ? { scope: "col" } : {});
    if (value instanceof Node) cell.className = "shown";
    cell.append(value);
    return cell;
  });
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...cells("th", head))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row))))));
}

function meter(share, shade = "accent") {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return element("span", { class: "meter", style: `width:${width.toFixed(2)}%;background:var(--${shade})` });
}

function ticks(from, to, most) {
  const raw = (to - from) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= raw);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

// Draws lines over time: each of `series` has a name, a colour, x and y.
function lines(canvas, series, format) {
  const [pen, width, height] = paper(canvas);
  const left = 62, bottom = height - 24, top = 20;
  const from = Math.min(...series.map(({ x }) => x[0])), to = Math.max(...series.map(({ x }) => x[x.length - 1]));
  const most = Math.max(1e-9, ...series.map(({ y }) => y.reduce((one, other) => Math.max(one, other), 0)));
  const across = (x) => left + (x - from) / (to - from || 1) * (width - left - 10);
  const up = (y) => bottom - y / most * (bottom - top);
  pen.strokeStyle = colour("line");
  pen.fillStyle = colour("faint");
  pen.textAlign = "right";
  for (const tick of ticks(0, most, 4)) {
    pen.beginPath(); pen.moveTo(left, up(tick)); pen.lineTo(width - 10, up(tick)); pen.stroke();
    pen.fillText(format(tick), left - 6, up(tick));
  }
  pen.textAlign = "center";
  for (const tick of ticks(from, to, Math.max(2, width / 140))) pen.fillText(seconds(tick), across(tick), height - 10);
  let beside = 10;
  pen.textAlign = "left";
  for (const { name, shade, x, y } of series) {
    pen.strokeStyle = pen.fillStyle = colour(shade);
    pen.lineWidth = 1.8;
    pen.beginPath();
    for (let place = 0; place < x.length; place += 1) pen.lineTo(across(x[place]), up(y[place]));
    pen.stroke();
    pen.fillText(name, beside, 8);
    beside += pen.measureText(name).width + 18;
  }
  pen.lineWidth = 1;
}
