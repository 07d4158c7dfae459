// Requests to the server; an error has its sentence as the message.

export class Problem extends Error {}

async function sentence(answer) {
  try { return (await answer.json()).error ?? answer.statusText; } catch { return answer.statusText; }
}

async function ask(path, options = {}) {
  for (let tries = 0; ; tries++) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new Problem("The server does not answer: is it still running?");
    }
    if (answer.ok) return answer;
    if (answer.status === 503 && tries < 5) {
      await new Promise((go) => setTimeout(go, 300 * 2 ** tries));
      continue;
    }
    const problem = new Problem(await sentence(answer));
    problem.status = answer.status;
    throw problem;
  }
}

const query = (given) => {
  const kept = Object.entries(given).filter(([, value]) => value !== null && value !== undefined);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
};

export async function get(path, given = {}, signal) {
  return (await ask(`/api/${path}${query(given)}`, { signal })).json();
}

export async function post(path, body, signal) {
  return (await ask(`/api/${path}`, { method: "POST", body: JSON.stringify(body), signal, headers: { "content-type": "application/json" } })).json();
}

// Yields the events of a stream of JSON lines as they arrive.
export async function* lines(path, body, signal) {
  const options = body === null ? { signal } : { method: "POST", body: JSON.stringify(body), signal, headers: { "content-type": "application/json" } };
  const answer = await ask(`/api/${path}`, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((problem) => { throw problem.name === "AbortError" ? problem : new Problem("The answer broke off: is the server still running?"); });
    rest += value ?? "";
    const parts = rest.split("\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = JSON.parse(part);
      if (event.error) throw new Problem(event.error);
      yield event;
    }
    if (done) return;
  }
}

export const heads = (look, group, signal) => lines(`looks/heads${query({ look, group })}`, null, signal);
