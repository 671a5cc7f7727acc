// K/V events as a program hears them whose sockets and decoder are others than ours: every hash a whole 64-bit integer, and
// the blocks of a prompt those of the ids that the server reads; a replay tells the same, up to its marker.
// usage: node kv_events.mjs http://127.0.0.1:PORT EVENTS REPLAY, the addresses of --kv-events and --kv-events-replay
import assert from 'node:assert/strict';
import { decode } from '@msgpack/msgpack';
import { Dealer, Subscriber } from 'zeromq';

const [base, events, replay] = process.argv.slice(2);
const end = 0xffffffffffffffffn;

class Index {
  blocks = new Map(); // hash: the tokens up to its end
  next = 0n;

  take(topic, sequence, payload) {
    assert.match(topic.toString(), /^kv@[^@]+@[^@]+$/);
    assert.equal(sequence.readBigUInt64BE(), this.next++);
    const [time, list, rank, ...rest] = decode(payload, { useBigInt64: true });
    assert.ok(Math.abs(time - Date.now() / 1000) < 60 && rank === 0 && rest.length === 0);
    for (const [tag, ...fields] of list) this[tag](...fields);
  }

  AllBlocksCleared() {
    this.blocks.clear();
  }

  BlockStored(hashes, parent, tokens, size, lora, medium) {
    assert.ok(hashes.every((hash) => typeof hash === 'bigint') && tokens.length === size * hashes.length);
    assert.ok(medium === 'GPU' && lora === null && (parent === null || this.blocks.has(parent)));
    let path = parent === null ? [] : this.blocks.get(parent);
    hashes.forEach((hash, i) => this.blocks.set(hash, (path = [...path, ...tokens.slice(i * size, (i + 1) * size)])));
  }

  BlockRemoved(hashes) {
    for (const hash of hashes) assert.ok(this.blocks.delete(hash));
  }

  longest(ids) {
    const held = [...this.blocks.values()].filter((path) => path.every((id, i) => ids[i] === id));
    return Math.max(0, ...held.map((path) => path.length));
  }
}

async function ask(path, body) {
  const reply = await fetch(base + path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  assert.equal(reply.status, 200);
  return reply.json();
}

const heard = new Index();
const socket = new Subscriber({ receiveTimeout: 30_000 });
socket.connect(events);
socket.subscribe('kv@');
await new Promise((done) => setTimeout(done, 500)); // until it is known there

const asker = new Dealer({ receiveTimeout: 30_000 });
asker.connect(replay);
async function replayed() {
  const index = new Index(), from = Buffer.alloc(8);
  await asker.send(['', from]);
  for await (const [, topic, sequence, payload] of asker) {
    if (sequence.readBigUInt64BE() === end) break;
    index.take(topic, sequence, payload);
  }
  return index;
}

heard.next = (await replayed()).next; // of what was said before it listened
const prompt = 'one two three four five six seven eight nine ten '.repeat(30);
const [{ token_ids: ids }] = await ask('/v1/completions/render', { prompt });
await ask('/v1/completions', { prompt, max_tokens: 4, temperature: 0, ignore_eos: true });
while (heard.longest(ids) + 64 <= ids.length) heard.take(...(await socket.receive()));
const again = await replayed();
assert.deepEqual(again.blocks, heard.blocks);
assert.equal(again.next, heard.next);
console.log(`K/V events in JavaScript: ${heard.blocks.size} blocks of ${ids.length} tokens, heard and replayed`);
socket.close();
asker.close();
