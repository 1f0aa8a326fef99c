// The timeline: the training loop, batches that were ready, slots, the device and the workers, with stalls coloured by
// their cause.

class Timeline {
  constructor(canvas, data) {
    this.canvas = canvas;
    this.rows = data.rows;
    this.count = data.rows.got.length;
    this.workers = [...new Set(data.rows.worker)].filter((worker) => worker >= 0).sort((one, other) => one - other);
    this.hasDevice = data.rows.device.some((length) => length > 0);
    this.slots = this.workers.length ? slotsInUse(data.rows) : null;
    this.begin = Math.min(data.rows.asked[0], data.rows.began[0]);
    this.end = data.rows.got[this.count - 1];
    this.byWorker = new Map(this.workers.map((worker) => [worker, []]));
    for (let place = 0; place < this.count; place += 1) this.byWorker.get(this.rows.worker[place])?.push(place);
    for (const places of this.byWorker.values()) places.sort((one, other) => this.rows.began[one] - this.rows.began[other]);
    this.from = this.begin;
    this.to = Math.max(this.end, this.begin + 1);
    const waits = Array.from(data.rows.got, (got, place) => got - data.rows.asked[place]).sort((one, other) => one - other);
    this.long = Math.max(100, waits[Math.floor(waits.length * 0.98)]);
    canvas.style.height = `${this.lanes * Math.max(8, Math.min(30, 480 / this.lanes)) + 26}px`;
    this.listen();
  }

  get upper() { return ["training", "ready", ...(this.slots ? ["slots"] : []), ...(this.hasDevice ? ["device"] : [])]; }

  get lanes() { return this.upper.length + this.workers.length; }

  laneHeight(height) { return Math.max(5, Math.min(30, (height - 26) / this.lanes)); }

  draw() {
    const [pen, width, height] = paper(this.canvas);
    const left = this.left = width < 520 ? 54 : 84, tall = this.laneHeight(height);
    const scale = (width - left) / (this.to - this.from);
    this.across = (time) => left + (time - this.from) * scale;
    pen.save();
    pen.beginPath(); pen.rect(left, 0, width - left, height); pen.clip();
    const { upper } = this, draws = { training: "drawLoop", ready: "drawReady", slots: "drawSlots", device: "drawDevice" };
    upper.forEach((name, lane) => this[draws[name]](pen, lane * tall, tall, width));
    this.workers.forEach((worker, lane) =>
      this.drawWorker(pen, this.byWorker.get(worker), (lane + upper.length) * tall, tall));
    this.drawAxis(pen, width, height);
    pen.restore();
    pen.fillStyle = colour("faint");
    pen.textAlign = "left";
    const names = [...upper, ...this.workers.map((worker) => `worker ${worker}`)];
    const every = Math.ceil(14 / tall);
    names.forEach((name, lane) => {
      if (lane < upper.length || (lane - upper.length) % every === 0) pen.fillText(width < 520 ? name.replace("worker ", "w ") : name, 2, (lane + 0.5) * tall);
    });
    document.getElementById("span").textContent = `${seconds(this.from - this.begin)} to ${seconds(this.to - this.begin)}`;
  }

  // The first row whose value is not below `time`, in a column that rises.
  firstFrom(column, time, count = this.count) {
    let low = 0, high = count;
    while (low < high) { const middle = (low + high) >> 1; if (column[middle] < time) low = middle + 1; else high = middle; }
    return low;
  }

  drawLoop(pen, top, tall, width) {
    const { asked, got } = this.rows;
    let place = Math.max(0, this.firstFrom(got, this.from));
    let before = place ? got[place - 1] : this.begin;
    const used = new Float64Array(Math.ceil(width) + 2);
    for (; place < this.count && before < this.to; place += 1) {
      this.box(pen, before, asked[place], top, tall, "compute");
      const stall = got[place] - asked[place];
      if (stall > 0) this.stall(pen, place, top, tall, used);
      before = got[place];
    }
  }

  // Several stalls may fall on one pixel; the longest of them is shown.
  stall(pen, place, top, tall, used) {
    const { asked, got, cause } = this.rows;
    const from = this.across(asked[place]), wide = this.across(got[place]) - from;
    if (wide < 1) {
      const pixel = Math.max(0, Math.floor(from));
      if (used[pixel] > wide) return;
      used[pixel] = wide;
      if (wide < 0.05) return;
    }
    pen.fillStyle = colour(CAUSES[cause[place]] || "fetch");
    pen.fillRect(from, top + 1, Math.max(wide, 0.6), tall - 2);
  }

  drawReady(pen, top, tall, width) {
    const { asked, behind } = this.rows;
    this.area(pen, asked, behind, this.firstFrom(asked, this.from) - 1, top, tall, width);
  }

  // Slots that are in use, and in another colour tasks that had to wait for one.
  drawSlots(pen, top, tall, width) {
    const { at, count } = this.slots, { given, held } = this.rows;
    this.area(pen, at, count, this.firstFrom(at, this.from, at.length) - 1, top, tall, width);
    for (let place = 0, last = -1; place < this.count; place += 1) {
      if (!held[place] || given[place] < this.from || given[place] > this.to) continue;
      const x = this.across(given[place]);
      if (x - last < 1) continue;
      pen.fillStyle = colour("slot");
      pen.fillRect(x, top + 1, 1.5, tall - 2);
      last = x;
    }
  }

  drawDevice(pen, top, tall) {
    const { came, device } = this.rows;
    for (let place = 0; place < this.count; place += 1) {
      if (device[place] > 0) this.box(pen, came[place], came[place] + device[place], top, tall, "device");
    }
  }

  // A number over time, as steps, filled.
  area(pen, at, values, first, top, tall, width) {
    const most = values.reduce((one, other) => Math.max(one, other), 1), up = (value) => top + tall - 2 - value / most * (tall - 4);
    let place = Math.max(0, first), y = up(0), last = -1;
    pen.fillStyle = colour("accent");
    pen.beginPath();
    pen.moveTo(this.across(this.from), y);
    for (; place < at.length && at[place] < this.to; place += 1) {
      const x = this.across(at[place]);
      if (x - last < 0.5) continue;
      pen.lineTo(x, y);
      y = up(values[place]);
      pen.lineTo(x, y);
      last = x;
    }
    pen.lineTo(width, y);
    pen.lineTo(width, up(0));
    pen.globalAlpha = 0.35; pen.fill(); pen.globalAlpha = 1;
  }

  drawWorker(pen, places, top, tall) {
    const { began, finished } = this.rows;
    let last = -1;
    for (const place of places) {
      if (finished[place] < this.from) continue;
      if (began[place] > this.to) break;
      const from = this.across(began[place]), to = this.across(finished[place]);
      if (to - from < 1.5) {
        if (from - last < 0.7) continue;
        last = from;
        pen.fillStyle = colour("fetch");
        pen.fillRect(from, top + 1, Math.max(0.8, to - from), tall - 2);
        continue;
      }
      let at = began[place];
      for (const stage of STAGES) {
        const length = stage === "fetch" ? this.rows.fetch[place] - this.rows.transform[place] : this.rows[stage][place];
        if (length > 0) this.box(pen, at, at + length, top, tall, stage);
        at += Math.max(0, length);
      }
    }
  }

  box(pen, from, to, top, tall, shade) {
    if (to < this.from || from > this.to) return;
    const x = this.across(from);
    pen.fillStyle = colour(shade);
    pen.fillRect(x, top + 1, Math.max(0.5, this.across(to) - x - (this.across(to) - x > 4 ? 0.7 : 0)), tall - 2);
  }

  drawAxis(pen, width, height) {
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("faint");
    for (const tick of ticks(this.from - this.begin, this.to - this.begin, Math.max(2, width / 130))) {
      const x = this.across(tick + this.begin);
      pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height - 20); pen.stroke();
      pen.textAlign = x < this.left + 24 ? "left" : x > width - 30 ? "right" : "center";
      pen.fillText(seconds(tick), x, height - 9);
    }
  }

  show(from, to) {
    const least = 20, all = this.end - this.begin;
    const wide = Math.min(Math.max(to - from, least), Math.max(all, least));
    this.from = Math.min(Math.max(from, this.begin), this.begin + Math.max(all, least) - wide);
    this.to = this.from + wide;
    this.draw();
  }

  zoom(factor, at = (this.from + this.to) / 2) { this.show(at - (at - this.from) * factor, at + (this.to - at) * factor); }

  move(share) { const by = (this.to - this.from) * share; this.show(this.from + by, this.to + by); }

  // Show the next of the longest stalls; after the last one, start again with the first.
  nextStall() {
    const { asked, got } = this.rows, isAll = this.to - this.from >= this.end - this.begin;
    const after = isAll ? this.begin - 1 : (this.from + this.to) / 2 + 1;
    for (let turn = 0; turn < 2; turn += 1) {
      for (let place = 0; place < this.count; place += 1) {
        if (got[place] - asked[place] < this.long || (!turn && (asked[place] + got[place]) / 2 <= after)) continue;
        const wide = Math.max((got[place] - asked[place]) * 6, 2000);
        const center = (asked[place] + got[place]) / 2;
        this.show(center - wide / 2, center + wide / 2);
        return this.tell(place);
      }
    }
    document.getElementById("under").textContent = "Training hardly waited.";
  }

  tell(place) {
    const rows = this.rows, wait = rows.got[place] - rows.asked[place];
    const who = rows.worker[place] < 0 ? "the training loop itself" : `worker ${rows.worker[place]}`;
    const parts = STAGES.filter((stage) => rows[stage][place] > 0).map((stage) => `${stage} ${seconds(rows[stage][place])}`);
    document.getElementById("under").textContent = `Batch ${rows.ordinal[place]} of epoch ${rows.epoch[place]}, made by ${who}`
      + ` (${parts.join(", ") || "not timed"}). Training waited ${seconds(wait)}`
      + (wait > 20 ? `, mostly because ${MEANING[CAUSES[rows.cause[place]]]}.` : ".");
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    return [this.from + (x - this.left) / (box.width - this.left) * (this.to - this.from), Math.floor(y / this.laneHeight(box.height))];
  }

  listen() {
    const { canvas } = this;
    let dragged = null;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / 600);
      else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(event)[0]);
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { dragged = event.clientX; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged !== null) {
        this.move((dragged - event.clientX) / canvas.getBoundingClientRect().width);
        dragged = event.clientX;
        return;
      }
      const [time, lane] = this.at(event), rows = this.rows;
      const worker = lane - this.upper.length;
      if (worker < 0) this.tell(Math.min(this.count - 1, this.firstFrom(rows.got, time)));
      else {
        const found = (this.byWorker.get(this.workers[worker]) || []).find((place) => rows.began[place] <= time && time <= rows.finished[place]);
        if (found !== undefined) this.tell(found);
      }
    });
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1.7), ArrowLeft: () => this.move(-0.2),
        ArrowRight: () => this.move(0.2), "0": () => this.show(this.begin, this.end), n: () => this.nextStall() }[event.key];
      if (act) { act(); event.preventDefault(); }
    });
  }
}

// How many slots are in use over time: each from when its task was given to when the batch was delivered.
function slotsInUse({ given, got }) {
  const changes = [...Array.from(given, (time) => [time, 1]), ...Array.from(got, (time) => [time, -1])];
  changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let used = 0;
  return { at: changes.map(([time]) => time), count: changes.map(([, by]) => (used += by)) };
}
