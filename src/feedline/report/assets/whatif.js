// The recorded times of batches, gone through again with other settings: workers take tasks as they come free, no more
// than `prefetch` for each are under way or waiting to be taken, and the training loop takes batches in order, or as
// they come. The same model as `feedline what-if` has for a plain run; faults and memory are left out.

function replay(durations, bodies, { workers, prefetch, inOrder, stage, body }) {
  const count = durations.length, done = new Float64Array(count), free = new Float64Array(Math.max(1, workers));
  let now = 0, waited = 0;
  if (!workers) {
    for (let place = 0; place < count; place += 1) { waited += durations[place] * stage; now += durations[place] * stage + bodies[place] * body; }
    return { total: now, waited };
  }
  const window = Math.max(1, workers * prefetch), taken = new Float64Array(count), ready = [];
  let given = 0;
  const give = (time) => {
    let first = 0;
    for (let worker = 1; worker < workers; worker += 1) if (free[worker] < free[first]) first = worker;
    done[given] = free[first] = Math.max(free[first], time) + durations[given] * stage;
    given += 1;
  };
  while (given < Math.min(window, count)) give(0);
  for (let place = 0; place < count; place += 1) {
    let next = place;
    if (!inOrder) {
      next = -1;
      for (let other = 0; other < given; other += 1) if (!taken[other] && (next < 0 || done[other] < done[next])) next = other;
    }
    const wait = Math.max(0, done[next] - now);
    waited += wait;
    now += wait;
    taken[next] = 1;
    if (given < count) give(now);
    now += bodies[place] * body;
  }
  return { total: now, waited };
}

class WhatIf {
  constructor(form, data) {
    this.data = data;
    const { rows, settings } = data, count = Math.min(rows.got.length, 4000), start = rows.got.length > 40 ? 10 : 0;
    this.samples = 0;
    this.durations = [];
    this.bodies = [];
    for (let place = start; place < start + count && place < rows.got.length; place += 1) {
      this.durations.push(Math.max(0, rows.finished[place] - rows.began[place]));
      const next = place + 1 < rows.got.length ? rows.asked[place + 1] - rows.got[place] : 0;
      this.bodies.push(Math.max(0, next));
      this.samples += rows.samples[place];
    }
    this.form = form;
    const workers = settings.workers || 0;
    this.controls = {
      workers: this.slider("Workers", 0, Math.max(16, 2 * workers), workers, 1, (value) => value),
      prefetch: this.slider("Prefetch per worker", 1, 16, settings.prefetch || 2, 1, (value) => value),
      stage: this.slider("Time to make a batch", 0.1, 2, 1, 0.05, (value) => `${value}x`),
      body: this.slider("Time of a training step", 0.1, 2, 1, 0.05, (value) => `${value}x`),
    };
    this.order = element("input", { type: "checkbox", id: "in-order" });
    this.order.checked = settings.in_order !== false;
    this.order.addEventListener("input", () => this.answer());
    form.append(element("label", { for: "in-order" }, this.order, " in order"));
    form.addEventListener("submit", (event) => event.preventDefault());
    this.answer();
  }

  slider(name, least, most, value, step, shown) {
    const id = `w-${name.toLowerCase().replaceAll(" ", "-")}`;
    const input = element("input", { type: "range", min: least, max: most, step, value, id });
    const output = element("output", { for: id }, shown(value));
    input.addEventListener("input", () => { output.textContent = shown(Number(input.value)); this.answer(); });
    this.form.append(element("label", { for: id }, `${name}: `, output, input));
    return input;
  }

  answer() {
    const value = (name) => Number(this.controls[name].value);
    const { total, waited } = replay(this.durations, this.bodies, {
      workers: value("workers"), prefetch: value("prefetch"), inOrder: this.order.checked, stage: value("stage"), body: value("body"),
    });
    const rate = total ? this.samples / total * 1e6 : 0;
    document.getElementById("predicted").textContent =
      `${whole(rate)} samples/s, training would wait ${percent(total ? waited / total : 0)} of the time.`;
  }
}
