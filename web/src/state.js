// What the page knows, and what can be done with conversations. Components watch `state` (the list, what is open, what
// the server says) or a node of a conversation.
import { askJson } from './api.js';
import * as db from './db.js';
import { changed } from './hub.js';
import { newConversation } from './tree.js';

export const state = {
  heads: [],
  open: newConversation(),
  facts: null, // of /props
  trouble: '', // why the server does not answer
  notice: '', // a sentence for the user
  said: '', // for screen readers
  needsKey: false,
  running: new Map(), // id of a node that is being written: AbortController
  read: new Map(), // and what /v1/requests says of its prompt
};

const kSettings = 'riptide-settings';

export function notify(sentence) {
  state.notice = sentence;
  changed(state);
}
export function say(words) {
  state.said = words;
  changed(state);
}

/// `notice` without a stop if the browser keeps nothing (private windows).
async function stored(what) {
  try {
    return await what();
  } catch (error) {
    notify(`This browser does not keep conversations: ${error.message}. Export what you want to keep.`);
    return undefined;
  }
}

export async function loadFacts() {
  try {
    state.facts = await askJson('props');
    state.trouble = '';
    state.needsKey = false;
  } catch (error) {
    state.trouble = error.message;
    state.needsKey ||= error.status === 401;
  }
  changed(state);
}

export async function loadHeads() {
  state.heads = (await stored(db.listHeads)) ?? state.heads;
  changed(state);
}

const lastSettings = () => JSON.parse(localStorage.getItem(kSettings) ?? '{}');

export function startConversation() {
  state.open = newConversation(lastSettings());
  changed(state);
}

/// One that is still being answered is in memory, and newer there.
const inMemory = new Map();
const deleted = new Set();

export async function openConversation(id) {
  const found = inMemory.get(id) ?? (await stored(() => db.readConversation(id)));
  if (found) state.open = found;
  else notify('This conversation is not there any more.');
  changed(state);
}

export async function forgetConversation(id) {
  for (const node of Object.keys(inMemory.get(id)?.nodes ?? {})) state.running.get(node)?.abort();
  inMemory.delete(id);
  deleted.add(id);
  await stored(() => db.removeConversation(id));
  if (state.open.id === id) startConversation();
  await loadHeads();
}

const waiting = new Map();

/// Stores the conversation soon, or now.
export function keep(conversation, now = false) {
  if (deleted.has(conversation.id)) return;
  conversation.updated = Date.now();
  inMemory.set(conversation.id, conversation);
  clearTimeout(waiting.get(conversation.id));
  const write = async () => {
    waiting.delete(conversation.id);
    const running = Object.keys(conversation.nodes).some((id) => state.running.has(id));
    if (deleted.has(conversation.id)) return;
    await stored(() => db.writeAll([conversation]));
    if (!running && conversation !== state.open) inMemory.delete(conversation.id);
    await loadHeads();
  };
  waiting.set(conversation.id, setTimeout(write, now ? 0 : 1000));
  changed(conversation);
}

/// What the next conversation begins with, too; its schema and tools are its own.
export function setSettings(conversation, settings) {
  conversation.settings = settings;
  const { schema, tools, ...rest } = settings;
  localStorage.setItem(kSettings, JSON.stringify(rest));
  if (Object.keys(conversation.nodes).length > 0) keep(conversation);
  changed(conversation);
  changed(state);
}
