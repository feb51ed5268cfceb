// Server-sent events over fetch, which can send a key in a header, as EventSource cannot.

const SILENT = 15_000;                          // milliseconds without a byte after which a stream counts as dead
const WAITS = [1000, 2000, 4000];               // before each attempt to connect again, the last one for ever

// Yields {name, data} of a response, data as text. Comments are skipped.
export async function* events(response, alive = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", part; !(part = await reader.read()).done;) {
    alive();
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = {name: "", data: ""};
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) yield event;
    }
  }
}

// What a response that is no success says.
export async function refusal(response) {
  const value = await response.json().catch(() => null);
  return value?.error?.message ?? `the server answered ${response.status}`;
}

// Reads `path` for ever. handlers: one per event's name, and lost(reason), locked(), which resolves when a key is
// there. headers: gives those to send.
export async function follow(path, headers, handlers) {
  for (let failures = 0; ; failures++) {
    const stop = new AbortController();
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENT);
    };
    try {
      alive();
      const response = await fetch(path, {headers: headers(), signal: stop.signal, cache: "no-store"});
      if (response.status === 401) {
        clearTimeout(timer);
        await handlers.locked();
        failures = -1;
        continue;
      }
      if (!response.ok) throw new Error(await refusal(response));
      for await (const {name, data} of events(response, alive)) {
        handlers[name]?.(JSON.parse(data));
        failures = -1;
      }
      handlers.lost("");
    } catch (error) {
      handlers.lost(stop.signal.aborted ? "nothing came for a while" : error.message);
    }
    clearTimeout(timer);
    await new Promise(done => setTimeout(done, WAITS[Math.min(failures, WAITS.length - 1)]));
  }
}
