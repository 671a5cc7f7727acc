// Tools of MCP servers (Model Context Protocol, streamable HTTP), which the server names and reaches for us.
import { ask, Refused } from './api.js';
import { changed } from './hub.js';
import { state } from './state.js';

const kVersions = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];
const kMostPages = 50;
const kAllowed = 'riptide-mcp-allowed';

/// By name: a promise of {session, version, tools}, of one that has been connected or is just being.
const sessions = new Map();
let lastId = 0;

/// The messages of a reply: JSON, or the data of events.
function messagesOf(text, type) {
  if (!text) return [];
  if (!type.startsWith('text/event-stream')) return [JSON.parse(text)].flat();
  const events = text.split(/\r?\n\r?\n/).map((event) => event.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => line.slice(5)).join('\n'));
  return events.filter((data) => data.trim()).flatMap((data) => JSON.parse(data));
}

/// The result of a method; nothing of a notification. Throws a Refused with a sentence.
async function send(name, session, method, params, signal) {
  const headers = { Accept: 'application/json, text/event-stream' };
  if (session.id) headers['Mcp-Session-Id'] = session.id;
  if (session.version) headers['MCP-Protocol-Version'] = session.version;
  const id = method.startsWith('notifications/') ? undefined : ++lastId;
  const reply = await ask(`v1/mcp/${name}`, { method: 'POST', body: { jsonrpc: '2.0', id, method, params }, headers, signal });
  session.id ||= reply.headers.get('Mcp-Session-Id');
  const text = await reply.text();
  if (id === undefined) return undefined;
  let answer;
  try {
    answer = messagesOf(text, reply.headers.get('Content-Type') ?? '').find((message) => message?.id === id && !message.method);
  } catch (error) {
    throw new Refused(`The MCP server '${name}' sends what is not JSON: ${error.message}`, 0);
  }
  if (answer?.error) throw new Refused(`The MCP server '${name}' refuses ${method}: ${answer.error.message}`, 0);
  if (!answer?.result) throw new Refused(`The MCP server '${name}' does not answer ${method}.`, 0);
  return answer.result;
}

async function open(name) {
  const session = { tools: [] };
  const hello = await send(name, session, 'initialize', { protocolVersion: kVersions[0], capabilities: {}, clientInfo: { name: 'riptide', version: '1' } });
  if (!kVersions.includes(hello.protocolVersion))
    throw new Refused(`The MCP server '${name}' speaks version ${JSON.stringify(hello.protocolVersion)} of the protocol, expected one of ${kVersions.join(', ')}.`, 0);
  session.version = hello.protocolVersion;
  await send(name, session, 'notifications/initialized');
  let cursor;
  for (let page = 0; page === 0 || (cursor && page < kMostPages); ++page) {
    const list = await send(name, session, 'tools/list', cursor ? { cursor } : {});
    if (!Array.isArray(list.tools)) throw new Refused(`The MCP server '${name}' sends no list of tools.`, 0);
    session.tools.push(...list.tools);
    cursor = list.nextCursor;
  }
  return session;
}

/// Connects, if that is still to be done. One that failed is tried again the next time.
export function connect(name) {
  if (!sessions.has(name)) {
    const session = open(name);
    sessions.set(name, session);
    session.catch(() => sessions.delete(name));
  }
  return sessions.get(name);
}

/// Says farewell to all servers: the tab is closed.
export function leave() {
  for (const [name, session] of sessions)
    session.then(({ id, version }) => id && ask(`v1/mcp/${name}`, { method: 'DELETE', headers: { 'Mcp-Session-Id': id, 'MCP-Protocol-Version': version }, keepalive: true })).catch(() => {});
}

/// As the model is offered them: NAME__TOOL. Stops waiting when `signal` says so.
export async function mcpTools(names, signal) {
  const stopped = new Promise((_, failed) => signal.addEventListener('abort', () => failed(signal.reason)));
  const lists = await Promise.race([stopped, Promise.all(names.map(async (name) => (await connect(name)).tools.map((tool) => [name, tool])))]);
  return lists.flat().map(([name, tool]) => ({
    type: 'function',
    function: { name: `${name}__${tool.name}`, description: tool.description ?? '', parameters: tool.inputSchema ?? { type: 'object' } },
  }));
}

/// Where a call goes: {server, tool}; nothing if to no MCP server of this conversation.
export function mcpOf(conversation, called) {
  const at = called.indexOf('__');
  const server = called.slice(0, at);
  return at > 0 && conversation.settings.mcp?.includes(server) && state.facts?.mcp_servers?.includes(server) ? { server, tool: called.slice(at + 2) } : undefined;
}

function textOf(part) {
  if (part.type === 'text') return part.text;
  if (part.type === 'resource' && part.resource?.text !== undefined) return part.resource.text;
  return `[${part.mimeType ?? part.type}${part.uri ? ` at ${part.uri}` : ''}: only text can be read]`;
}

/// What the tool returns, as text; also if it says that it has failed. Throws a Refused with a sentence.
export async function callTool({ server, tool }, args, signal) {
  let parsed;
  try {
    parsed = JSON.parse(args || '{}');
  } catch (error) {
    throw new Refused(`The arguments are not JSON: ${error.message}`, 0);
  }
  const once = async () => send(server, await connect(server), 'tools/call', { name: tool, arguments: parsed }, signal);
  let result;
  try {
    result = await once();
  } catch (error) {
    if (error.status !== 404) throw error;
    sessions.delete(server); // it has forgotten the session
    result = await once();
  }
  const content = Array.isArray(result.content) ? result.content.map(textOf).join('\n') : '';
  const text = content || (result.structuredContent ? JSON.stringify(result.structuredContent) : '');
  return result.isError ? `Error: ${text}` : text;
}

/// Tools that may be called without asking: in this browser, not in a conversation, which may come from somebody else.
const allowed = new Set(JSON.parse(localStorage.getItem(kAllowed) ?? '[]'));
export const isAllowed = (called) => allowed.has(called);
export const allowedOf = (server) => [...allowed].filter((called) => called.startsWith(`${server}__`));
export function allow(called, yes) {
  if (yes) allowed.add(called);
  else allowed.delete(called);
  localStorage.setItem(kAllowed, JSON.stringify([...allowed]));
  changed(state);
}
