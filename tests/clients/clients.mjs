// Each client asks for tea, runs the tool that the model calls, and gives the result back. Checked: the call and its
// arguments, an answer in the second turn, and that the second turn finds the first in the cache, by the client's own
// figures. usage: node clients.mjs http://127.0.0.1:PORT http://127.0.0.1:PORT, the second of an embedding model
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { Ollama } from 'ollama';
import OpenAI from 'openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const base = process.argv[2];
const question = 'Please brew tea: kind darjeeling, cups 3.';
const wanted = { kind: 'darjeeling', cups: 3 };
const description = 'Brews tea.';
const parameters = {
  type: 'object',
  properties: { kind: { type: 'string', description: 'the kind of tea' }, cups: { type: 'integer', description: 'how many cups' } },
  required: ['kind', 'cups'],
};
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: 'none', maxRetries: 0 });

/// Of the prompt of turn 2, what turn 1 had computed must come from the cache, but for a token or two at its end.
function cached(from, before, what) {
  assert.ok(from >= 0.99 * before - 2, `${what}: ${from} tokens from the cache, of ${before} that turn 1 had`);
}

const tests = {
  async 'openai chat'() {
    const tools = [{ type: 'function', function: { name: 'brew_tea', description, parameters } }];
    const messages = [{ role: 'user', content: question }];
    const first = await openai.chat.completions.create({ model: 'x', messages, tools, temperature: 0 });
    const call = first.choices[0].message.tool_calls[0];
    assert.equal(first.choices[0].finish_reason, 'tool_calls');
    assert.deepEqual(JSON.parse(call.function.arguments), wanted);
    messages.push(first.choices[0].message, { role: 'tool', tool_call_id: call.id, content: 'ready' });
    const second = await openai.chat.completions.create({ model: 'x', messages, tools, temperature: 0 });
    assert.equal(second.choices[0].message.role, 'assistant');
    cached(second.usage.prompt_tokens_details.cached_tokens, first.usage.total_tokens, 'chat');
  },

  async 'openai chat stream helper'() {
    const tools = [{ type: 'function', function: { name: 'brew_tea', description, parameters } }];
    const stream = openai.chat.completions.stream({
      model: 'x', messages: [{ role: 'user', content: question }], tools, temperature: 0, stream_options: { include_usage: true },
    });
    const done = await stream.finalChatCompletion();
    assert.deepEqual(JSON.parse(done.choices[0].message.tool_calls[0].function.arguments), wanted);
    assert.ok(done.usage.prompt_tokens > 0);
  },

  async 'openai responses'() {
    const tools = [{ type: 'function', name: 'brew_tea', description, parameters, strict: false }, { type: 'web_search' }];
    const input = [{ role: 'user', content: question }];
    const first = await openai.responses.create({ model: 'x', input, tools, temperature: 0 });
    const call = first.output.find((item) => item.type === 'function_call');
    assert.deepEqual(JSON.parse(call.arguments), wanted);
    const result = { type: 'function_call_output', call_id: call.call_id, output: 'ready' };
    const second = await openai.responses.create({ model: 'x', input: [...input, ...first.output, result], tools, temperature: 0 });
    assert.equal(second.status, 'completed');
    cached(second.usage.input_tokens_details.cached_tokens, first.usage.total_tokens, 'responses');
    const chained = await openai.responses.create({ model: 'x', input: [result], previous_response_id: first.id, tools, temperature: 0 });
    assert.equal(chained.output_text, second.output_text);
  },

  async 'openai responses stream helper, with reasoning'() {
    const stream = openai.responses.stream({
      model: 'x', input: 'What is 12 plus 30?', temperature: 0, reasoning: { effort: 'high', summary: 'auto' },
    });
    let thought = '', text = '';
    stream.on('response.reasoning_text.delta', (event) => (thought += event.delta));
    stream.on('response.output_text.delta', (event) => (text += event.delta));
    const done = await stream.finalResponse();
    assert.equal(done.output_text, text);
    assert.ok(text.includes('42') && thought.length > 0, `${thought} / ${text}`);
    assert.ok(done.usage.output_tokens_details.reasoning_tokens > 0);
  },

  async 'anthropic messages'() {
    const client = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0 });
    const tools = [{ name: 'brew_tea', description, input_schema: parameters }];
    const messages = [{ role: 'user', content: question }];
    const ask = { model: 'x', max_tokens: 200, temperature: 0, tools };
    const first = await client.messages.stream({ ...ask, messages }).finalMessage();
    const call = first.content.find((block) => block.type === 'tool_use');
    assert.equal(first.stop_reason, 'tool_use');
    assert.deepEqual(call.input, wanted);
    messages.push({ role: 'assistant', content: first.content });
    messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'ready' }] });
    const second = await client.messages.create({ ...ask, messages });
    assert.equal(second.type, 'message');
    const before = first.usage.input_tokens + first.usage.cache_read_input_tokens + first.usage.output_tokens;
    cached(second.usage.cache_read_input_tokens, before, 'messages');
    const counted = await client.messages.countTokens({ model: 'x', messages, tools });
    assert.equal(counted.input_tokens, second.usage.input_tokens + second.usage.cache_read_input_tokens);
  },
};

const ollama = new Ollama({ host: base });
const greedy = { temperature: 0, num_predict: 200 };
tests['ollama chat, whole and in a stream'] = async () => {
  const tools = [{ type: 'function', function: { name: 'brew_tea', description, parameters } }];
  const messages = [{ role: 'user', content: question }];
  const first = await ollama.chat({ model: 'x', messages, tools, options: greedy });
  assert.deepEqual(first.message.tool_calls.map((call) => call.function), [{ name: 'brew_tea', arguments: wanted }]);
  messages.push(first.message, { role: 'tool', tool_name: 'brew_tea', content: 'ready' });
  const second = await ollama.chat({ model: 'x', messages, tools, options: greedy });
  assert.equal(second.done_reason, 'stop');
  assert.ok(second.prompt_eval_count > first.prompt_eval_count + first.eval_count && second.total_duration > 0);
  let text = '', last;
  for await (const part of await ollama.chat({ model: 'x', messages, tools, options: greedy, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, second.message.content);
  assert.equal(last.eval_count, second.eval_count);
};
tests['ollama think, format, generate'] = async () => {
  const asked = { model: 'x', messages: [{ role: 'user', content: 'What is 12 plus 30?' }], options: greedy };
  const thought = await ollama.chat({ ...asked, think: true });
  assert.ok(thought.message.thinking.length > 0 && thought.message.content.includes('42'), JSON.stringify(thought));
  const format = { type: 'object', properties: { sum: { type: 'integer' } }, required: ['sum'], additionalProperties: false };
  const formed = JSON.parse((await ollama.chat({ ...asked, format, think: false })).message.content);
  assert.ok(Number.isInteger(formed.sum));
  const generated = await ollama.generate({ model: 'x', prompt: 'What is 12 plus 30?', think: true, options: greedy });
  assert.equal(generated.response, thought.message.content);
  assert.equal((await ollama.generate({ model: 'x', prompt: '' })).done_reason, 'load');
};
tests['ollama list, show, ps, version, refusals'] = async () => {
  const [listed] = (await ollama.list()).models;
  const shown = await ollama.show({ model: listed.name });
  assert.ok(shown.capabilities.includes('tools'));
  assert.equal((await ollama.ps()).models[0].context_length, shown.model_info[`${listed.details.family}.context_length`]);
  assert.match((await ollama.version()).version, /^\d+\.\d+/);
  await assert.rejects(ollama.embed({ model: 'x', input: 'a' }), /no embeddings/);
  await assert.rejects(ollama.pull({ model: 'x' }), /riptide pull/);
  await assert.rejects(ollama.delete({ model: 'x' }), /riptide rm/);
  await assert.rejects(ollama.chat({ model: 'x', messages: [{ role: 'user', content: 'a', images: ['aGk='] }] }), /text only/);
};

// Another server, whose model embeds (its weights were drawn).
const vectors = process.argv[3];
const length = (vector) => Math.hypot(...vector);
tests['embeddings: openai'] = async () => {
  const client = new OpenAI({ baseURL: `${vectors}/v1`, apiKey: 'none', maxRetries: 0 });
  const asked = { model: 'x', input: ['a text', 'another'] };
  const coded = await client.embeddings.create(asked);  // the client asks for base64 by itself, and reads it
  const plain = await client.embeddings.create({ ...asked, encoding_format: 'float' });
  assert.deepEqual([...coded.data[1].embedding], plain.data[1].embedding.map(Math.fround));
  assert.ok(coded.data.length === 2 && Math.abs(length(coded.data[0].embedding) - 1) < 1e-5 && coded.usage.prompt_tokens > 2);
  assert.equal((await client.embeddings.create({ ...asked, dimensions: 16 })).data[0].embedding.length, 16);
  await assert.rejects(client.embeddings.create({ ...asked, dimensions: 1000 }), /dimensions/);
};
tests['embeddings: ollama'] = async () => {
  const client = new Ollama({ host: vectors });
  const both = await client.embed({ model: 'x', input: ['a text', 'another'] });
  assert.ok(both.embeddings.length === 2 && both.prompt_eval_count > 2);
  assert.deepEqual((await client.embeddings({ model: 'x', prompt: 'another' })).embedding, both.embeddings[1]);
  assert.deepEqual((await client.show({ model: 'x' })).capabilities, ['embedding']);
};

/// The whole loop by the AI SDK itself.
async function loop(model) {
  const seen = [];
  const tools = {
    brew_tea: tool({
      description,
      inputSchema: z.object({ kind: z.string().describe('the kind of tea'), cups: z.number().int().describe('how many cups') }),
      execute: async (input) => { seen.push(input); return 'ready'; },
    }),
  };
  const options = { model, tools, prompt: question, temperature: 0, maxOutputTokens: 200, maxRetries: 0, stopWhen: stepCountIs(2) };
  const whole = await generateText(options);
  assert.deepEqual(seen, [wanted]);
  assert.equal(whole.steps.length, 2);
  const streamed = streamText(options);
  let text = '';
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, whole.steps.map((step) => step.text).join(''));
  assert.equal(seen.length, 2);
  const usage = (await streamed.steps)[1].usage;
  assert.ok((usage.inputTokenDetails?.cacheReadTokens ?? usage.cachedInputTokens ?? 0) > 0, JSON.stringify(usage));
}
tests['AI SDK, openai-compatible'] = () =>
  loop(createOpenAICompatible({ name: 'riptide', baseURL: `${base}/v1`, includeUsage: true })('x'));
tests['AI SDK, openai (responses)'] = () => loop(createOpenAI({ baseURL: `${base}/v1`, apiKey: 'none' })('x'));
tests['AI SDK, anthropic'] = () => loop(createAnthropic({ baseURL: `${base}/v1`, apiKey: 'none' })('x'));

let failed = 0;
for (const [name, run] of Object.entries(tests)) {
  try {
    await run();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}: ${error.stack}`);
  }
}
console.log(`${Object.keys(tests).length} clients, ${failed} failed`);
process.exit(failed ? 1 : 0);
