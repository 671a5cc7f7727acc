// The server: where it is, with which key it is asked, and what went wrong in words.

/// The folder of this page, so that it also works below a sub-path.
export const root = location.origin + location.pathname.replace(/\/*$/, '/');

const kKey = 'riptide-key';
const refusals = new Set();

export const key = () => sessionStorage.getItem(kKey) ?? '';
export function setKey(text) {
  if (text) sessionStorage.setItem(kKey, text);
  else sessionStorage.removeItem(kKey);
}
/// `heard` is called when the server wants a key, or another one.
export function onKeyRefused(heard) {
  refusals.add(heard);
  return () => refusals.delete(heard);
}

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function reasonOf(reply) {
  const text = await reply.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 300) || `status ${reply.status}`;
  }
}

/// The reply to a request; throws Refused with the server's own words.
export async function ask(path, { method = 'GET', body, signal, headers: more, keepalive } = {}) {
  const headers = { ...more };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let reply;
  try {
    reply = await fetch(root + path, { method, headers, signal, keepalive, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused('The server cannot be reached. Does riptide serve still run?', 0);
  }
  if (reply.ok) return reply;
  if (reply.status === 401) for (const heard of refusals) heard();
  throw new Refused(await reasonOf(reply), reply.status);
}

export const askJson = async (path, options) => (await ask(path, options)).json();

/// The JSON of each `data:` line of a stream. Throws Refused if the stream ends without [DONE], or holds an error.
export async function* eventsOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused('The answer broke off: the connection ended.', 0);
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      if (event === 'data: [DONE]') return;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new Refused(data.error.message, 0);
      yield data;
    }
  }
}
