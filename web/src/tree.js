// A conversation: a tree of messages, of which one path is shown. Plain data, as it is stored and exported.
//
// conversation {id, title, at, updated, settings, nodes: {id: node}, chosen: {id of a node or 'root': id of its child}}
// node {id, parent, role, at, text}, and
//   user: files [{name, text}]
//   assistant: reasoning, thought (seconds), calls [{id, name, arguments; until they are sent: result, error}], stats, finish, error, form
//   tool: results [{id, name, text}]

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export const newConversation = (settings = {}) => {
  const now = Date.now();
  return { id: 'c' + newId(), title: '', at: now, updated: now, settings, nodes: {}, chosen: {} };
};

export const childrenOf = (conversation, parent) => Object.values(conversation.nodes).filter((node) => node.parent === parent);

/// The messages that are shown, first to last.
export function pathOf(conversation) {
  const children = new Map();
  for (const node of Object.values(conversation.nodes)) {
    if (!children.has(node.parent)) children.set(node.parent, []);
    children.get(node.parent).push(node);
  }
  const path = [];
  for (let at = 'root'; children.has(at); at = path.at(-1).id) {
    const here = children.get(at);
    path.push(here.find((node) => node.id === conversation.chosen[at]) ?? here.at(-1));
  }
  return path;
}

/// Adds a message and shows it.
export function addNode(conversation, parent, fields) {
  const node = { id: 'n' + newId(), parent, at: Date.now(), text: '', ...fields };
  conversation.nodes[node.id] = node;
  conversation.chosen[parent] = node.id;
  if (!conversation.title && node.role === 'user') conversation.title = titleOf(node);
  return node;
}

const titleOf = (node) => (node.text || node.files?.[0]?.name || '').trim().replace(/\s+/g, ' ').slice(0, 80);

/// A fence longer than any in the text.
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((ticks) => ticks.length));
  const fence = '`'.repeat(longest + 1);
  return `${fence}\n${text}${text.endsWith('\n') ? '' : '\n'}${fence}`;
}

export function userText(node) {
  const files = (node.files ?? []).map((file) => `File ${file.name}:\n${fenced(file.text)}`);
  return [...files, node.text].filter(Boolean).join('\n\n');
}

function messagesOfNode(node) {
  if (node.role === 'user') return [{ role: 'user', content: userText(node) }];
  if (node.role === 'tool') return node.results.map((result) => ({ role: 'tool', tool_call_id: result.id, content: result.text }));
  const message = { role: 'assistant', content: node.text };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls?.length)
    message.tool_calls = node.calls.map((call) => ({ id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments } }));
  return [message];
}

/// What the model is sent: all up to the node `last`.
export function messagesTo(conversation, last) {
  const path = [];
  for (let node = conversation.nodes[last]; node; node = conversation.nodes[node.parent]) path.unshift(node);
  const system = conversation.settings.system?.trim();
  return [...(system ? [{ role: 'system', content: system }] : []), ...path.flatMap(messagesOfNode)];
}
