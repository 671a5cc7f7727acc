// Asks the model for an answer and puts what comes into a node, as it comes.
import { ask, askJson, eventsOf } from './api.js';
import { changed } from './hub.js';
import { callTool, isAllowed, mcpOf, mcpTools } from './mcp.js';
import { keep, say, state } from './state.js';
import { addNode, messagesTo } from './tree.js';

const kNumbers = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed', 'thinking_budget'];

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} (in the settings) is not JSON: ${error.message}`);
  }
}

/// Tools as they are sent: bare functions are taken, too.
export function toolsOf(text) {
  const tools = parsed(text, 'The list of tools');
  if (!Array.isArray(tools)) throw new Error('The list of tools (in the settings) is not a JSON array.');
  return tools.map((tool) => (tool.name && !tool.type ? { type: 'function', function: tool } : tool));
}

/// MCP servers of a conversation that this server knows.
const mcpNames = (settings) => (settings.mcp ?? []).filter((name) => state.facts?.mcp_servers?.includes(name));

async function bodyFor(conversation, parent, signal) {
  const { settings } = conversation;
  const body = {
    messages: messagesTo(conversation, parent),
    stream: true,
    stream_options: { include_usage: true },
    prompt_cache_key: conversation.id,
  };
  if (state.facts) body.model = state.facts.model;
  for (const name of kNumbers) if (Number.isFinite(settings[name])) body[name] = settings[name];
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  if (settings.schema?.trim()) body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: parsed(settings.schema, 'The schema') } };
  const own = settings.tools?.trim() ? toolsOf(settings.tools) : [];
  const tools = [...own, ...(await mcpTools(mcpNames(settings), signal))];
  if (tools.length) body.tools = tools;
  if (state.facts?.compression) body.compress = { ...(settings.compress ? { mode: settings.compress } : {}), show: true };
  return body;
}

function takeCalls(node, deltas) {
  node.calls ??= [];
  for (const { index, id, function: called } of deltas) {
    const call = (node.calls[index] ??= { id, name: called?.name ?? '', arguments: '' });
    call.arguments += called?.arguments ?? '';
  }
}

/// Puts events into a node, and measures.
class Taker {
  constructor(node) {
    this.node = node;
    this.began = performance.now();
    this.thinking = 0;
  }
  take(event) {
    const { node } = this;
    const choice = event.choices[0];
    if (event.usage) node.stats = { ...node.stats, usage: event.usage, timings: event.timings };
    if (choice?.finish_reason) node.finish = choice.finish_reason;
    const delta = choice?.delta ?? {};
    if (!delta.content && !delta.reasoning_content && !delta.tool_calls) return;
    node.stats.first ??= (performance.now() - this.began) / 1000;
    if (delta.reasoning_content) {
      this.thinking ||= performance.now();
      node.reasoning = (node.reasoning ?? '') + delta.reasoning_content;
      node.thought = (performance.now() - this.thinking) / 1000;
    }
    if (delta.content) node.text += delta.content;
    if (delta.tool_calls) takeCalls(node, delta.tool_calls);
  }
}

function outcome(node) {
  if (node.error) return `The answer failed: ${node.error}`;
  if (node.finish === 'stopped') return 'The answer was stopped.';
  if (node.calls?.length) return `The model calls ${node.calls.map((call) => call.name).join(', ')}.`;
  return 'The answer is complete.';
}

/// Says how far the prompt has been read, once a second until the first token. Returns what ends it.
function watchPrompt(conversation, node) {
  const look = async () => {
    try {
      const mine = (await askJson('v1/requests')).data.find((request) => request.session === conversation.id);
      if (timer && mine?.prompt_tokens) state.read.set(node.id, mine);
      changed(node);
    } catch {
      // What is wrong shows in the answer itself.
    }
  };
  let timer = setInterval(() => (node.stats?.first === undefined ? look() : end()), 1000);
  const end = () => {
    clearInterval(timer);
    timer = 0;
    state.read.delete(node.id);
  };
  return end;
}

async function run(conversation, node, makeBody) {
  const stop = new AbortController();
  state.running.set(node.id, stop);
  node.stats = {};
  delete node.error;
  delete node.finish;
  keep(conversation);
  changed(state);
  say('The model is answering.');
  const endWatch = watchPrompt(conversation, node);
  try {
    const reply = await ask('v1/chat/completions', { method: 'POST', body: await makeBody(stop.signal), signal: stop.signal });
    const taker = new Taker(node);
    let kept = performance.now();
    for await (const event of eventsOf(reply)) {
      taker.take(event);
      changed(node);
      if (performance.now() - kept < 2000) continue;
      kept = performance.now();
      keep(conversation);
    }
  } catch (error) {
    if (stop.signal.aborted) node.finish = 'stopped';
    else node.error = error.message;
  }
  endWatch();
  state.running.delete(node.id);
  changed(node);
  changed(state);
  keep(conversation, true);
  say(outcome(node));
}

/// A new answer below `parent`, beside those that are there.
export function answer(conversation, parent) {
  const node = addNode(conversation, parent, { role: 'assistant' });
  if (conversation.settings.schema?.trim()) node.form = true;
  return run(conversation, node, (signal) => bodyFor(conversation, parent, signal)).then(() => callAllowed(conversation, node));
}

/// The answer goes on where it ended. Not where it has a form, or calls.
export const goOn = (conversation, node) => run(conversation, node, async (signal) => ({ ...(await bodyFor(conversation, node.id, signal)), continue_final_message: true }));

export const stopAnswer = (node) => state.running.get(node.id)?.abort();

export function askUser(conversation, parent, text, files) {
  const node = addNode(conversation, parent, { role: 'user', text, ...(files?.length ? { files } : {}) });
  return answer(conversation, node.id);
}

export function sendResults(conversation, parent, results) {
  const node = addNode(conversation, parent, { role: 'tool', results });
  return answer(conversation, node.id);
}

/// Sends the results of a node's calls.
export function sendCalls(conversation, node) {
  const results = node.calls.map(({ id, name, result }) => ({ id, name, text: result ?? '' }));
  for (const call of node.calls) delete call.result;
  return sendResults(conversation, node.id, results);
}

/// Asks MCP servers for the results of these calls of a node; what fails has a sentence in its `error`. When all calls of
/// the node have a result they are sent.
export async function runCalls(conversation, node, calls) {
  if (state.running.has(node.id) || calls.length === 0) return;
  const stop = new AbortController();
  state.running.set(node.id, stop);
  changed(node);
  changed(state);
  for (const call of calls) {
    delete call.error;
    try {
      call.result = await callTool(mcpOf(conversation, call.name), call.arguments, stop.signal);
    } catch (error) {
      call.error = stop.signal.aborted ? 'The call was stopped.' : error.message;
      say(`The call of ${call.name} failed: ${call.error}`);
    }
  }
  state.running.delete(node.id);
  keep(conversation, true);
  changed(node);
  changed(state);
  if (node.calls.every((call) => call.result !== undefined)) await sendCalls(conversation, node);
}

/// Those that the user has allowed for good, of an answer that has just come.
function callAllowed(conversation, node) {
  if (node.error || node.finish === 'stopped') return undefined;
  return runCalls(conversation, node, (node.calls ?? []).filter((call) => isAllowed(call.name) && mcpOf(conversation, call.name)));
}
