/** Requests to the server; an error has its sentence as the message. */

/** What went wrong, as a sentence for the user. */
export class Problem extends Error {}

const TRIES = 5; // of a request that a busy server refuses

let online = true;

// Tell the frame when the server stops or starts to answer.
function reached(now) {
  if (now === online) return;
  online = now;
  dispatchEvent(new Event(now ? "online-again" : "offline-now"));
}

async function sentence(answer) {
  try {
    return (await answer.json()).error ?? answer.statusText;
  } catch {
    return answer.statusText;
  }
}

async function ask(path, options = {}) {
  for (let tries = 0;; tries++) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      reached(false);
      const lost = new Problem("The server does not answer: is it still running?");
      lost.offline = true;
      throw lost;
    }
    reached(true);
    if (answer.ok) return answer;
    if (answer.status === 503 && tries < TRIES) {
      // the server is busy: wait twice as long each time
      await new Promise((go) => setTimeout(go, 300 * 2 ** tries));
      continue;
    }
    const problem = new Problem(await sentence(answer));
    problem.status = answer.status;
    throw problem;
  }
}

function query(given) {
  const kept = Object.entries(given).filter(([, value]) => value !== null && value !== undefined);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

function posted(body, signal) {
  const headers = { "content-type": "application/json" };
  return { method: "POST", body: JSON.stringify(body), signal, headers };
}

/** The JSON at an address. */
export async function get(path, given = {}, signal) {
  return (await ask(`/api/${path}${query(given)}`, { signal })).json();
}

/** The JSON that answers a JSON body. */
export async function post(path, body, signal) {
  return (await ask(`/api/${path}`, posted(body, signal))).json();
}

/** Send a file as it is. */
export async function upload(path, blob, signal) {
  const headers = { "content-type": blob.type };
  return (await ask(`/api/${path}`, { method: "POST", body: blob, signal, headers })).json();
}

/** An array of float32: { data, shape, most }. */
export async function floats(path, given = {}, signal) {
  const answer = await ask(`/api/${path}${query(given)}`, { signal });
  const data = new Float32Array(await answer.arrayBuffer());
  const most = answer.headers.get("x-most");
  return {
    data,
    shape: answer.headers.get("x-shape").split(",").map(Number),
    most: most === null ? null : Number(most),
  };
}

/** An image that the server sends, ready to be drawn. */
export async function picture(path, given = {}, signal) {
  const answer = await ask(`/api/${path}${query(given)}`, { signal });
  return createImageBitmap(await answer.blob());
}

/** The rows of an array { data, shape } of two dimensions, as views of its numbers. */
export const rowsOf = ({ data, shape: [n, m] }) =>
  Array.from({ length: n }, (_, i) => data.subarray(i * m, (i + 1) * m));

/** Yields the events of a stream of JSON lines as they arrive. */
export async function* lines(path, body, signal) {
  const options = body === null ? { signal } : posted(body, signal);
  const answer = await ask(`/api/${path}`, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((problem) => {
      if (problem.name === "AbortError") throw problem;
      reached(false);
      throw new Problem("The answer broke off: is the server still running?");
    });
    rest += value ?? "";
    const parts = rest.split("\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = JSON.parse(part);
      if (event.error) throw new Problem(event.error);
      signal?.throwIfAborted(); // what had already arrived is not for a later request to see
      yield event;
    }
    if (done) return;
  }
}

/** The lines of a stream about the heads of an inspection: "heads" (statistics) or "effects". */
export const perLayer = (what, look, group, signal) =>
  lines(`looks/${what}${query({ look, group })}`, null, signal);
