// Runs of views: asked of the server, or taken from what the page holds; shown at the pace that the user likes.

const PACES = [0.25, 0.5, 1, Infinity];

// Calls `show` with each event of a run; resolves when it is over. `signal` ends it.
async function liveRun(view, values, token, signal, show) {
  const answer = await fetch("/runs", {
    method: "POST", signal, headers: { "content-type": "application/json", "x-feedline-token": token }, body: JSON.stringify({ view, values }),
  });
  if (!answer.ok) throw new Refused(await reason(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", last = ""; ;) {
    const { value, done } = await reader.read();
    if (done && last !== "done" && last !== "error") throw new Error("the server was stopped during the run");
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const event of parts.map((line) => JSON.parse(line))) { await show(event); last = event.kind; }
  }
}

class Refused extends Error {}

async function reason(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).error || text; } catch { return text; }
}

async function click(number, action, token) {
  const answer = await fetch(`/runs/${number}/clicks`, {
    method: "POST", headers: { "content-type": "application/json", "x-feedline-token": token }, body: JSON.stringify({ action }),
  });
  if (!answer.ok) throw new Refused(await reason(answer));
}

// What the exported page holds, which was packed by feedline.tools.advise.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text());
}

// The recorded run whose settings are nearest: the fewest that differ, then the smallest differences.
function nearest(runs, controls, values) {
  const apart = (run) => controls.reduce((sum, { name, kind, least, most }) => {
    if (run.values[name] === values[name]) return sum;
    return sum + (kind === "number" ? Math.abs(run.values[name] - values[name]) / (most - least || 1) + 0.01 : 2);
  }, 0);
  return runs.reduce((best, run) => (apart(run) < apart(best) ? run : best));
}

// Waits until an event is due. Those of a run that is watched come at the times that they tell.
class Pace {
  constructor(slider) { this.slider = slider; this.begin(); }

  begin() { this.last = 0; }

  async until(event, signal) {
    const at = event.at;
    if (!at) return;
    const speed = matchMedia("(prefers-reduced-motion: reduce)").matches ? Infinity : PACES[Number(this.slider.value)];
    const wait = Math.max(0, at - this.last) * 1000 / speed;
    this.last = at;
    if (wait > 1) await new Promise((resolve) => { const timer = setTimeout(resolve, wait); signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true }); });
  }
}
