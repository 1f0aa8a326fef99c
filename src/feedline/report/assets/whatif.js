// The recorded times of batches, gone through again with other settings. In order, batch i is made by worker i mod n,
// else by whoever is free first. No more than `prefetch` for each worker are under way or waiting to be taken; only while
// a batch is late, idle workers begin more. `feedline what-if` has the loader itself do this, and knows of cores as well;
// here faults, memory and cores are left out.

function replay({ durations, bodies, own }, { workers, prefetch, inOrder, stage, body }) {
  const count = durations.length, done = new Float64Array(count), free = new Float64Array(Math.max(1, workers));
  let now = 0, waited = 0;
  if (!workers) {
    for (let place = 0; place < count; place += 1) {
      const wait = durations[place] * stage + own.alone;
      waited += wait;
      now += wait + bodies[place] * body;
    }
    return { total: now, waited };
  }
  const window = Math.max(1, workers * prefetch), taken = new Float64Array(count);
  const grace = 2 * stage * Float64Array.from(durations).sort()[count >> 1] + 5000;
  let given = 0;
  const idlest = () => {
    let first = 0;
    for (let worker = 1; worker < workers; worker += 1) if (free[worker] < free[first]) first = worker;
    return first;
  };
  const give = (time) => {
    const worker = inOrder ? given % workers : idlest();
    done[given] = free[worker] = Math.max(free[worker], time) + durations[given] * stage;
    given += 1;
  };
  while (given < Math.min(window, count)) give(0);
  for (let place = 0; place < count; place += 1) {
    let next = place;
    if (!inOrder) {
      next = -1;
      for (let other = 0; other < given; other += 1) if (!taken[other] && (next < 0 || done[other] < done[next])) next = other;
    }
    let late = Math.max(now, done[next] - durations[next] * stage + grace);
    while (inOrder && given < Math.min(count, place + 16 * window)) {
      late = Math.max(late, free[idlest()]);
      if (late >= done[next]) break;
      give(late);
    }
    const wait = done[next] > now ? done[next] - now + own.late : own.ready;
    waited += wait;
    now += wait;
    taken[next] = 1;
    while (given < Math.min(count, place + 1 + window)) give(now);
    now += bodies[place] * body;
  }
  return { total: now, waited };
}

// What next() takes besides waiting for workers, on average: for batches that were waited for, for others, and without
// workers.
function ownTimes(rows, workers) {
  const sums = { late: [0, 0], ready: [0, 0], came: [0, 0] };
  const add = (name, value) => { sums[name][0] += Math.max(0, value); sums[name][1] += 1; };
  for (let place = 0; place < rows.got.length; place += 1) {
    const got = rows.got[place], asked = rows.asked[place], finished = rows.finished[place];
    if (rows.worker[place] < 0) add("ready", got - asked - finished + rows.began[place]);
    else if (finished > asked) { add("late", got - finished); add("came", got - rows.came[place]); } else add("ready", got - asked);
  }
  const mean = (...names) => { const name = names.find((one) => sums[one][1]); return name ? sums[name][0] / sums[name][1] : 0; };
  const sent = workers ? 0 : 100; // as `feedline what-if` guesses, where nobody has measured it
  return { late: mean("late", "ready") + sent, ready: mean("ready", "came") + sent, alone: workers ? 0 : mean("ready") };
}

class WhatIf {
  constructor(form, data) {
    this.data = data;
    const { rows, settings } = data, count = Math.min(rows.got.length, 4000), start = rows.got.length > 40 ? 10 : 0;
    this.samples = 0;
    this.durations = [];
    this.bodies = [];
    this.own = ownTimes(rows, settings.workers || 0);
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
    const { total, waited } = replay(this, {
      workers: value("workers"), prefetch: value("prefetch"), inOrder: this.order.checked, stage: value("stage"), body: value("body"),
    });
    const rate = total ? this.samples / total * 1e6 : 0;
    document.getElementById("predicted").textContent =
      `${whole(rate)} samples/s, training would wait ${percent(total ? waited / total : 0)} of the time.`;
  }
}
