// The page: which view is shown, with which values; one run at a time.

const pageData = JSON.parse(document.getElementById("page-data").textContent);
const at = (id) => document.getElementById(id);

class Lab {
  constructor() {
    this.pace = new Pace(at("pace"));
    this.view = null;
    this.running = null;
    at("views").append(...pageData.views.map(({ name, title }) => {
      const button = element("button", { type: "button", "data-view": name }, title);
      button.addEventListener("click", () => { history.pushState(null, "", `#${name}`); this.open(pageData.views.find((view) => view.name === name), {}); at("view").focus({ preventScroll: true }); });
      return button;
    }));
    at("again").addEventListener("click", () => this.run());
    at("copy").addEventListener("click", () => this.copy());
    at("controls").addEventListener("submit", (event) => event.preventDefault());
    document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); at("view").focus(); }); // what follows # is a view
    const settings = at("settings"), narrow = matchMedia("(max-width: 820px)");
    settings.open = !narrow.matches;
    narrow.addEventListener("change", () => { settings.open = !narrow.matches; });
    addEventListener("resize", () => { clearTimeout(this.resized); this.resized = setTimeout(() => { redraw(at("pictures")); this.showEntry(); }, 100); });
    addEventListener("hashchange", () => this.open(...fromAddress(pageData.views)));
    this.open(...fromAddress(pageData.views));
    document.documentElement.dataset.ready = "yes";
  }

  open(view, values) {
    this.view = view;
    for (const button of document.querySelectorAll("[data-view]")) {
      if (button.dataset.view === view.name) button.setAttribute("aria-current", "page"); else button.removeAttribute("aria-current");
    }
    this.showEntry();
    at("title").textContent = view.title;
    at("notice").textContent = view.notice;
    at("more").replaceChildren(...view.more.split("\n\n").map((text) => element("p", {}, text)));
    document.title = `${view.title} · feedline lab`;
    this.values = form(at("controls"), view.controls, values, (changed) => this.changed(changed));
    for (const name of ["actions", "pictures", "code"]) at(name).replaceChildren();
    toAddress(view, this.values);
    this.run();
  }

  // Where the navigation is too narrow for all entries, it scrolls to the one that is shown.
  showEntry() {
    const entry = document.querySelector("[aria-current=page]"), entries = at("views");
    entries.scrollLeft = entry.offsetLeft - (entries.clientWidth - entry.offsetWidth) / 2;
  }

  changed(values) {
    this.values = values;
    toAddress(this.view, values);
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.run(), 250);
  }

  async run() {
    clearTimeout(this.soon);
    this.running?.abort();
    const running = this.running = new AbortController(), { signal } = running;
    this.pace.begin();
    at("figures").replaceChildren();
    at("said").textContent = "";
    this.trouble("");
    for (const button of at("actions").children) { button.disabled = true; button.classList.add("stale"); }
    for (const framed of at("pictures").children) framed.classList.add("stale");
    at("pace-label").hidden = true;
    this.state("running", "Starting the run.");
    const show = async (event) => {
      if (event.at) at("pace-label").hidden = false;
      await this.pace.until(event, signal);
      if (!signal.aborted) this.show(event);
    };
    try {
      if (pageData.recorded) await this.replay(show); else await liveRun(this.view.name, this.values, pageData.token, signal, show);
    } catch (error) {
      if (signal.aborted) return;
      this.stop(error instanceof Refused ? error.message
        : "The lab's server does not answer. Start it again with `feedline lab`, and open the address that it prints.");
      return;
    }
    if (signal.aborted) return;
    if (at("view").dataset.state === "running") this.state("done");
    this.over();
  }

  // What a former run has drawn or offered, and this one has not, is not true any more.
  over() {
    for (const button of at("actions").children) button.disabled = true;
    for (const old of document.querySelectorAll("#pictures .stale, #actions .stale")) old.remove();
  }

  stop(text, traceback) {
    this.state("stopped");
    this.trouble(text);
    if (traceback) at("trouble").append(element("pre", {}, traceback));
    this.over();
  }

  async replay(show) {
    const run = nearest(pageData.recorded.runs[this.view.name], this.view.controls, this.values);
    const differs = this.view.controls.filter(({ name }) => run.values[name] !== this.values[name]);
    at("origin").hidden = false;
    at("origin").textContent = `${pageData.recorded.origin}${differs.length ? ` The nearest recorded settings are shown: ${differs.map(({ name, label }) => `${label} ${run.values[name]}`).join(", ")}.` : ""}`;
    for (const event of run.events) await show(event);
  }

  show(event) {
    if (event.kind === "run") this.number = event.number;
    else if (event.kind === "code") at("code").textContent = event.text;
    else if (event.kind === "doing") this.doing(event.text, event.seconds);
    else if (event.kind === "buttons") this.buttons(event.actions);
    else if (event.kind === "figures") {
      at("figures").replaceChildren(...Object.entries(event.values).map(([name, value]) =>
        element("div", {}, element("dt", {}, name), element("dd", { "data-figure": name }, typeof value === "number" ? short(value) : value))));
    } else if (event.kind === "say") at("said").textContent = event.text;
    else if (event.kind === "error") this.stop(event.text, event.more);
    else if (event.kind !== "done") draw(at("pictures"), event);
  }

  buttons(actions) {
    at("actions").replaceChildren(...Object.entries(actions).map(([name, text]) => {
      const button = element("button", { type: "button", "data-action": name }, text);
      button.addEventListener("click", () => click(this.number, name, pageData.token).catch((error) => this.trouble(error.message)));
      return button;
    }));
  }

  state(state, text = state) { at("view").dataset.state = state; this.doing(text); at("progress").hidden = state !== "running"; }

  // What a run does now; the bar moves for as long as that takes, if it is known, and hides while the run waits for a click.
  doing(text, seconds) {
    clearInterval(this.moves);
    at("state").textContent = seconds ? `${text} About ${short(seconds)} s.` : text;
    const bar = at("progress"), began = performance.now();
    bar.hidden = !text;
    bar.removeAttribute("value");
    if (!seconds) return;
    const move = () => { bar.value = Math.min(1, (performance.now() - began) / 1000 / seconds); };
    move();
    this.moves = setInterval(move, 200);
  }

  trouble(text) { at("trouble").hidden = !text; at("trouble").textContent = text; }

  async copy() {
    try { await navigator.clipboard.writeText(at("code").textContent); at("copy").textContent = "Copied"; } catch {
      getSelection().selectAllChildren(at("code"));
      at("copy").textContent = "Selected: press Ctrl-C to copy";
    }
    setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
  }
}

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = dark.matches ? "dark" : "light";
dark.addEventListener("change", () => { root.dataset.theme = dark.matches ? "dark" : "light"; });
at("theme").addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; });
if (pageData.recorded) unpacked(pageData.recorded).then((recorded) => { pageData.recorded = recorded; window.lab = new Lab(); });
else window.lab = new Lab();
