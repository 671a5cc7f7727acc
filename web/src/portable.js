// Conversations as files: JSON that this page reads again, and Markdown for people.
import { readAll, writeAll } from './db.js';
import { newId, pathOf, userText } from './tree.js';

const kFormat = 'riptide-conversations';
const kVersion = 1;
export const kMostBytes = 64 << 20;

export function download(name, text, type) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export async function exportAll(open) {
  const all = (await readAll().catch(() => [])).filter((each) => each.id !== open.id);
  if (Object.keys(open.nodes).length) all.push(open);
  const text = JSON.stringify({ format: kFormat, version: kVersion, conversations: all }, null, 1);
  download(`riptide-${new Date().toISOString().slice(0, 10)}.json`, text, 'application/json');
}

const quoted = (text) => text.split('\n').map((line) => `> ${line}`.trimEnd()).join('\n');

function markdownOfNode(node) {
  if (node.role === 'user') return `## You\n\n${userText(node)}`;
  if (node.role === 'tool') return node.results.map((result) => `## Result of ${result.name}\n\n\`\`\`\n${result.text}\n\`\`\``).join('\n\n');
  const calls = (node.calls ?? []).map((call) => `Calls \`${call.name}\`:\n\n\`\`\`json\n${call.arguments}\n\`\`\``);
  return ['## Model', node.reasoning ? quoted(node.reasoning.trim()) : '', node.text.trim(), ...calls].filter(Boolean).join('\n\n');
}

export function markdownOf(conversation) {
  const system = conversation.settings.system?.trim();
  return [`# ${conversation.title}`, ...(system ? [`## System\n\n${system}`] : []), ...pathOf(conversation).map(markdownOfNode)].join('\n\n') + '\n';
}

export function exportMarkdown(conversation) {
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60).toLowerCase();
  download(`${name || 'conversation'}.md`, markdownOf(conversation), 'text/markdown');
}

const isText = (value) => typeof value === 'string';
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const areAll = (list, fields) => list === undefined || (Array.isArray(list) && list.every((each) => isObject(each) && fields.every((field) => isText(each[field]))));

/// What is wrong with a message; '' if nothing is.
function faultOfNode(node, id, nodes) {
  if (!isObject(node) || node.id !== id) return 'it is no object with its own id';
  if (!['user', 'assistant', 'tool'].includes(node.role)) return `its role is ${JSON.stringify(node.role)}, expected user, assistant or tool`;
  if (node.parent !== 'root' && !Object.hasOwn(nodes, node.parent)) return 'what it answers is not there';
  if (!isText(node.text) || !(node.reasoning === undefined || isText(node.reasoning))) return 'its text is no text';
  if (!areAll(node.files, ['name', 'text'])) return 'its files are damaged';
  if (!areAll(node.calls, ['id', 'name', 'arguments'])) return 'its calls are damaged';
  if (!areAll(node.results, ['id', 'name', 'text']) || (node.role === 'tool' && !node.results)) return 'its results are damaged';
  return '';
}

/// Whether each message leads to the root.
function areRooted(nodes) {
  const rooted = new Set(['root']);
  for (const id of Object.keys(nodes)) {
    const way = new Set();
    let at = id;
    for (; !rooted.has(at) && !way.has(at); at = nodes[at].parent) way.add(at);
    if (!rooted.has(at)) return false;
    for (const each of way) rooted.add(each);
  }
  return true;
}

function faultOf(conversation) {
  if (!isObject(conversation) || !isText(conversation.title) || !isObject(conversation.nodes)) return 'it has no title or no messages';
  if (!isObject(conversation.settings) || !isObject(conversation.chosen)) return 'its settings are missing';
  for (const text of ['system', 'schema', 'tools'])
    if (conversation.settings[text] !== undefined && !isText(conversation.settings[text])) return `its ${text} is no text`;
  const { mcp } = conversation.settings;
  if (mcp !== undefined && !(Array.isArray(mcp) && mcp.every(isText))) return 'its MCP servers are no list of names';
  for (const [id, node] of Object.entries(conversation.nodes)) {
    const fault = faultOfNode(node, id, conversation.nodes);
    if (fault) return `message ${id}: ${fault}`;
  }
  return areRooted(conversation.nodes) ? '' : 'messages answer each other in a circle';
}

/// The conversations of an export, each as a new one. Throws an Error that says in a sentence what is wrong.
export function parseExport(text, name) {
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is not JSON (${error.message}).`);
  }
  if (data?.format !== kFormat || !Array.isArray(data.conversations))
    throw new Error(`${name} is not an export of this page: expected "format": "${kFormat}" and a list of conversations.`);
  if (data.version !== kVersion) throw new Error(`${name} is an export of version ${JSON.stringify(data.version)}; this page reads version ${kVersion}.`);
  return data.conversations.map((conversation, i) => {
    const fault = faultOf(conversation);
    if (fault) throw new Error(`${name}: conversation ${i + 1} is damaged: ${fault}.`);
    const { title, settings, nodes, chosen } = conversation;
    const time = (value) => (Number.isFinite(value) ? value : Date.now());
    return { id: 'c' + newId(), title, at: time(conversation.at), updated: time(conversation.updated), settings, nodes, chosen };
  });
}

/// Adds what is in the file; nothing that is there is touched. Returns a sentence; throws an Error with one, and then
/// nothing has been added.
export async function importFile(file) {
  const size = `${(file.size / (1 << 20)).toFixed(0)} MB`;
  if (file.size > kMostBytes) throw new Error(`${file.name} has ${size}; files of up to ${kMostBytes >> 20} MB can be imported.`);
  const conversations = parseExport(await file.text(), file.name);
  await writeAll(conversations);
  return `${conversations.length} ${conversations.length === 1 ? 'conversation' : 'conversations'} imported from ${file.name}.`;
}
