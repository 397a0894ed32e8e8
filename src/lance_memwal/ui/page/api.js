// Asking the server. The token came in the fragment of the link: it is kept for this tab, and sent in a header.

const KEPT = "memwal-token";
const CLIENT = crypto.getRandomValues(new Uint32Array(2)).join("-");

/** Take the token out of the address, so that it is not copied along with it. */
export function takeToken() {
  const match = /^#token=([0-9a-zA-Z_-]+)$/.exec(location.hash);
  if (!match) return;
  sessionStorage.setItem(KEPT, match[1]);
  history.replaceState(null, "", `${location.pathname}#/overview`);
}

/** What the server said instead of an answer. */
export class Trouble extends Error {
  constructor(kind, text, status) {
    super(text);
    this.kind = kind;
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { "X-Memwal-Token": sessionStorage.getItem(KEPT) ?? "", "X-Memwal-Client": CLIENT, ...options.headers };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("NotReached", "the server does not answer: is memwal ui still running?", 0);
  }
  const body = await answer.json();
  if (!answer.ok) throw new Trouble(body.error?.kind ?? "Unexpected", body.error?.text ?? answer.statusText, answer.status);
  return body;
}

/** GET `path` with these parameters; those without a value are left out. */
export function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return request(query ? `${path}?${query}` : path);
}

/** Ask a query; `signal` cancels it. */
export function ask(question, signal) {
  return request("/api/query", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal });
}
