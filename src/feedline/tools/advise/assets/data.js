// The recording that the page shows: packed by feedline.tools.advise, unpacked here.

const STAGES = ["fetch", "transform", "collate", "write"];
let CAUSES = [];
const MEANING = {
  compute: "training", start: "workers were starting", slot: "no memory was free: batches are held",
  queue: "no worker was free", order: "an earlier batch was missing", fetch: "samples were being fetched",
  transform: "samples were being transformed", collate: "the batch was being collated",
  write: "the batch was being written", transfer: "the batch was on its way", deliver: "the batch was being handed out",
  device: "the device was not done",
};

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = JSON.parse(await new Response(stream).text());
  CAUSES = data.causes;
  for (const columns of [data.rows, data.system]) {
    for (const [name, differences] of Object.entries(columns)) columns[name] = summed(differences);
  }
  return data;
}

// Columns are stored as differences from one row to the next, which are small.
function summed(differences) {
  const values = new Float64Array(differences.length);
  let value = 0;
  differences.forEach((difference, place) => { values[place] = value += difference; });
  return values;
}

// Times are microseconds since the recording began.
function seconds(us) {
  if (us < 1000) return `${us.toFixed(0)} µs`;
  if (us < 1e6) return `${(us / 1000).toPrecision(3)} ms`;
  return us < 1e8 ? `${(us / 1e6).toPrecision(3)} s` : `${(us / 1e6).toFixed(0)} s`;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${count.toPrecision(3)} ${units[unit]}`;
}

const whole = (count) => Math.round(count).toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)} %`;
