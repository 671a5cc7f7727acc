// Small servers beside riptide's: MCP over streamable HTTP, and a proxy that shows a server below a sub-path.
import http from 'node:http';
import { ends } from './world.mjs';

async function listening(handler) {
  const server = http.createServer(handler);
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  ends.push(() => (server.closeAllConnections(), server.close()));
  return `http://127.0.0.1:${server.address().port}`;
}

const kTool = { name: 'add', description: 'Adds two numbers', inputSchema: { type: 'object', properties: { a: { type: 'integer' }, b: { type: 'integer' } }, required: ['a', 'b'] } };

/// An MCP server with one tool, with sessions, which answers calls with events. `seen` has what it was asked:
/// {method, session, calls}; `forget()` ends all sessions, `hang` lets calls wait for ever.
export async function mcpServer() {
  const seen = [];
  let sessions = new Set();
  const mcp = { seen, hang: false, forget: () => (sessions = new Set()) };
  mcp.url = await listening(async (request, reply) => {
    let text = '';
    for await (const piece of request) text += piece;
    const session = request.headers['mcp-session-id'];
    if (request.method === 'DELETE') {
      seen.push({ method: 'DELETE', session });
      return reply.writeHead(sessions.delete(session) ? 200 : 404).end();
    }
    const { id, method, params } = JSON.parse(text);
    seen.push({ method, session, params, headers: request.headers });
    const json = (result, headers = {}) => reply.writeHead(200, { 'Content-Type': 'application/json', ...headers }).end(JSON.stringify({ jsonrpc: '2.0', id, result }));
    if (method === 'initialize') {
      const fresh = `session-${seen.length}`;
      sessions.add(fresh);
      return json({ protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'adder', version: '1' } }, { 'Mcp-Session-Id': fresh });
    }
    if (!sessions.has(session)) return reply.writeHead(404).end('no such session');
    if (method.startsWith('notifications/')) return reply.writeHead(202).end();
    if (method === 'tools/list') return params.cursor ? json({ tools: [kTool] }) : json({ tools: [], nextCursor: 'more' });
    if (mcp.hang) return undefined;
    const { a, b } = params.arguments;
    reply.writeHead(200, { 'Content-Type': 'text/event-stream' });
    reply.write('event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n');
    const result = { content: [{ type: 'text', text: `sum ${a + b}` }, { type: 'image', mimeType: 'image/png', data: 'AAAA' }] };
    return reply.end(`event: message\r\ndata: ${JSON.stringify({ jsonrpc: '2.0', id, result })}\r\n\r\n`);
  });
  return mcp;
}

export const hangingServer = () => listening(() => {});
export const lockedServer = () => listening((_, reply) => reply.writeHead(401, { 'WWW-Authenticate': 'Bearer' }).end());

/// Shows `url` below /riptide/ of an address of its own, as proxies do. `outside`: what was asked elsewhere.
export async function subPath(url) {
  const outside = [];
  const at = await listening((request, reply) => {
    if (!request.url.startsWith('/riptide/')) return outside.push(request.url), reply.writeHead(404).end();
    const { hostname, port } = new URL(url);
    const ahead = http.request({ hostname, port, method: request.method, path: request.url.slice('/riptide'.length), headers: request.headers }, (answer) => {
      reply.writeHead(answer.statusCode, answer.headers);
      answer.pipe(reply);
    });
    ahead.on('error', () => reply.destroy());
    return request.pipe(ahead);
  });
  return { url: `${at}/riptide/`, outside };
}
