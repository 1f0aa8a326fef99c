// The recorded times of batches, gone through again with other settings. In order, batch i is made by worker i mod n,
// else by whoever is free first. No more than `prefetch` for each worker are under way or waiting to be taken; only while
// a batch is late, idle workers begin more. Workers that compute share the cores. `feedline what-if` has the loader itself
// do this, and is what this is tested against; here faults and memory are left out.

// Returns how long the batches took, how long training waited for them, and how many samples they had; without those of
// the first window, which find all workers idle.
function replay({ durations, bodies, samples, own, contention }, { workers, prefetch, inOrder, stage, body }) {
  const count = durations.length, window = Math.max(1, workers * prefetch), warm = Math.min(window, count >> 1);
  let now = 0, waited = 0, given = 0, time = 0, delivered = 0, start = { now: 0, waited: 0, delivered: 0 };
  const result = () => ({ total: now - start.now, waited: waited - start.waited, samples: delivered - start.delivered });
  if (!workers) {
    for (let place = 0; place < count; place += 1) {
      const wait = durations[place] * stage + own.alone;
      waited += wait;
      now += wait + bodies[place] * body;
      delivered += samples[place];
    }
    return result();
  }
  const began = new Float64Array(count).fill(Infinity), done = new Float64Array(count).fill(Infinity);
  const taken = new Uint8Array(count), grace = 2 * stage * Float64Array.from(durations).sort()[count >> 1] + 5000;
  const queues = Array.from({ length: workers }, () => []), ends = new Float64Array(workers).fill(Infinity);
  const isIdle = (worker) => !queues[worker].length;
  const begin = (worker, at) => {
    const atWork = queues.reduce((sum, queue) => sum + (queue.length > 0), 0);
    began[queues[worker][0]] = at;
    ends[worker] = at + durations[queues[worker][0]] * stage * contention(atWork);
  };
  const first = () => ends.indexOf(ends.reduce((one, other) => Math.min(one, other), Infinity));
  const finish = () => { // whoever is done next goes on with what is waiting
    const worker = first();
    time = ends[worker];
    done[queues[worker].shift()] = time;
    ends[worker] = Infinity;
    if (!isIdle(worker)) begin(worker, time);
  };
  const give = (worker, at) => {
    queues[worker].push(given);
    if (queues[worker].length === 1) begin(worker, at);
    given += 1;
  };
  const shortest = () => queues.reduce((best, queue, worker) => (queue.length < queues[best].length ? worker : best), 0);
  const fill = (most, at) => { while (given < Math.min(most, count)) give(inOrder ? given % workers : shortest(), at); };
  fill(window, 0);
  for (let place = 0; place < count; place += 1) {
    if (place === warm) start = { now, waited, delivered };
    while (ends[first()] <= now) finish();
    let next = place;
    if (inOrder) {
      while (done[next] === Infinity) {
        const late = Math.max(now, time, began[next] + grace), idle = queues.findIndex((queue) => !queue.length);
        if (idle >= 0 && late < ends[first()] && given < Math.min(count, place + 16 * window)) give(idle, late);
        else finish();
      }
    } else {
      const soonest = () => {
        next = -1;
        for (let other = 0; other < given; other += 1) if (!taken[other] && (next < 0 || done[other] < done[next])) next = other;
        return done[next];
      };
      while (soonest() === Infinity) finish();
    }
    const wait = done[next] > now ? done[next] - now + own.late : own.ready;
    waited += wait;
    now += wait;
    taken[next] = 1;
    delivered += samples[next];
    while (ends[first()] <= now) finish();
    fill(place + 1 + window, now);
    now += bodies[place] * body;
  }
  return result();
}

// How many workers were at a batch when each was begun, with its own.
function atWork(rows) {
  const began = Float64Array.from(rows.began).sort(), finished = Float64Array.from(rows.finished).sort();
  const until = (moments, at) => { // how many are not later
    let low = 0, high = moments.length;
    while (low < high) { const middle = (low + high) >> 1; if (moments[middle] <= at) low = middle + 1; else high = middle; }
    return low;
  };
  return rows.began.map((at) => Math.max(1, until(began, at) - until(finished, at)));
}

// What next() takes besides waiting for workers, on average: for batches that were waited for, for others, and without
// workers.
function ownTimes(rows, workers, handover) {
  const sums = { late: [0, 0], ready: [0, 0], came: [0, 0] };
  const add = (name, value) => { sums[name][0] += Math.max(0, value); sums[name][1] += 1; };
  for (let place = 0; place < rows.got.length; place += 1) {
    const got = rows.got[place], asked = rows.asked[place], finished = rows.finished[place];
    if (rows.worker[place] < 0) add("ready", got - asked - finished + rows.began[place]);
    else if (finished > asked) { add("late", got - finished); add("came", got - rows.came[place]); } else add("ready", got - asked);
  }
  const mean = (...names) => { const name = names.find((one) => sums[one][1]); return name ? sums[name][0] / sums[name][1] : 0; };
  const sent = workers ? 0 : handover; // the default of `feedline what-if` where no measurement exists
  return { late: mean("late", "ready") + sent, ready: mean("ready", "came") + sent, alone: workers ? 0 : mean("ready") };
}

// How many batches belong to the start: until all workers have answered, and a window was used up.
function startOf(rows, settings) {
  const seen = new Set(), window = (settings.workers || 0) * (settings.prefetch || 2);
  let answered = 0;
  rows.worker.forEach((worker, place) => { if (!seen.has(worker)) { seen.add(worker); answered = place + 1; } });
  return rows.got.length > 40 ? Math.max(answered, Math.min(window, rows.got.length >> 2)) : 0;
}

class WhatIf {
  constructor(form, data) {
    this.data = data;
    const { rows, settings } = data, count = Math.min(rows.got.length, 4000), start = startOf(rows, settings);
    this.samples = [];
    this.durations = [];
    this.bodies = [];
    this.own = ownTimes(rows, settings.workers || 0, data.handover_us);
    const cores = settings.cores && Math.max(1, Math.floor(settings.cores / (settings.local_ranks || 1))), busy = atWork(rows);
    this.contention = (workers) => (cores ? Math.max(1, workers * Number(this.controls.computing.value) / cores) : 1);
    this.busy = [];
    for (let place = start; place < start + count && place < rows.got.length; place += 1) {
      this.durations.push(Math.max(0, rows.finished[place] - rows.began[place]));
      this.busy.push(settings.workers ? busy[place] : 0);
      const next = place + 1 < rows.got.length ? rows.asked[place + 1] - rows.got[place] : 0;
      this.bodies.push(Math.max(0, next));
      this.samples.push(rows.samples[place]);
    }
    this.form = form;
    const workers = settings.workers || 0;
    this.controls = {
      workers: this.slider("Workers", 0, Math.max(16, 2 * workers), workers, 1, (value) => value),
      prefetch: this.slider("Prefetch per worker", 1, 16, settings.prefetch || 2, 1, (value) => value),
      stage: this.slider("Time to make a batch", 0.1, 2, 1, 0.05, (value) => `${value}x`),
      body: this.slider("Time of a training step", 0.1, 2, 1, 0.05, (value) => `${value}x`),
      computing: this.slider("Workers compute", 0, 1, typeof data.computing === "number" ? data.computing : 1, 0.01, (value) => percent(value)),
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
    const durations = this.durations.map((spent, place) => spent / this.contention(this.busy[place])); // with a core each
    const { total, waited, samples } = replay({ ...this, durations }, {
      workers: value("workers"), prefetch: value("prefetch"), inOrder: this.order.checked, stage: value("stage"), body: value("body"),
    });
    const rate = total ? samples / total * 1e6 : 0;
    document.getElementById("predicted").textContent =
      `${whole(rate)} samples/s, training would wait ${percent(total ? waited / total : 0)} of the time.`;
  }
}
