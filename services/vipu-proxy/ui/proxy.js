// Requests to the proxy: documents with their ETags, and the event stream. The page is at `ui/` of the API, behind any prefix.

const base = new URL("../", document.baseURI);
// The proxy sends a comment every 15 seconds on an idle stream.
const SILENCE_MILLIS = 45_000;
const known = new Map();
let token = "";

export class NeedsToken extends Error {}

export function setToken(text) {
  token = text;
  known.clear();
}

async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  if (token) headers.set("authorization", `Bearer ${token}`);
  const response = await fetch(new URL(path, base), { cache: "no-store", ...options, headers });
  if (response.ok || response.status === 304) return response;
  const problem = await response.json().catch(() => ({}));
  const text = problem.detail ?? `the proxy answered with status ${response.status}`;
  if (response.status === 401) throw new NeedsToken(text);
  throw new Error(problem.fix ? `${text}; ${problem.fix}` : text);
}

// Returns a document, the same object if it has not changed.
export async function read(path) {
  const last = known.get(path);
  const response = await send(path, last?.tag ? { headers: { "if-none-match": last.tag } } : {});
  if (response.status === 304) return last.document;
  const document = await response.json();
  known.set(path, { tag: response.headers.get("etag"), document });
  return document;
}

export async function plan(sizes, ifTheseEnded) {
  const body = JSON.stringify({ sizes, ifTheseEnded });
  const response = await send("v1/plan", { method: "POST", headers: { "content-type": "application/json" }, body });
  return (await response.json()).planned;
}

// Calls `onEvent(kind, data)` for each event until the stream breaks. The last id resumes the stream.
let lastId = "";
let heard = Date.now();
export async function follow(onOpen, onEvent) {
  const abort = new AbortController();
  const headers = { accept: "text/event-stream" };
  if (lastId) headers["last-event-id"] = lastId;
  const response = await send("v1/events", { headers, signal: abort.signal });
  heard = Date.now();
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const silence = setTimeout(() => abort.abort(), SILENCE_MILLIS);
    const { value, done } = await reader.read().finally(() => clearTimeout(silence));
    heard = Date.now();
    if (done) throw new Error("the event stream has ended");
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      let kind = "", id = "", data = "";
      for (const line of event.split("\n")) {
        if (line.startsWith("event:")) kind = line.slice(6).trim();
        else if (line.startsWith("id:")) id = line.slice(3).trim();
        else if (line.startsWith("data:")) data += line.slice(5);
      }
      if (kind) onEvent(kind, JSON.parse(data));
      if (id) lastId = id;
    }
  }
}

// Returns the time of the last answer, or of the start of the page.
export function lastHeard() {
  return heard;
}

// Starts the next stream with a snapshot.
export function forget() {
  lastId = "";
}
