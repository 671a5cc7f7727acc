// Tools of MCP servers in the page, and the page below a sub-path.
import assert from 'node:assert/strict';
import { hangingServer, lockedServer, mcpServer, subPath } from './mcp.mjs';
import { accessible, composer, focused, idle, reads, say, scriptServer, soon, test, until, visit } from './world.mjs';

const kScript = [
  { has: ['<tool_response>'], reasoning: '', answer: 'The tool has answered.' },
  { has: ['Add 12'], reasoning: '', answer: '<tool_call>adder__add\n<arg_key>a</arg_key>\n<arg_value>12</arg_value>\n<arg_key>b</arg_key>\n<arg_value>30</arg_value>\n</tool_call>' },
  { reasoning: '', answer: 'Hello.' },
];

async function choose(page, names) {
  await page.getByRole('button', { name: 'Settings' }).click();
  for (const name of names) await page.getByLabel(name, { exact: true }).check();
}
const done = (page) => page.getByRole('button', { name: 'Done' }).click();
const ask = async (page, text) => (await composer(page).fill(text), composer(page).press('Enter'));

/// Whether the browser's store has these words. Runs in the page.
const stored = (words) =>
  new Promise((done) => {
    indexedDB.open('riptide').onsuccess = ({ target: { result: db } }) => {
      db.transaction('bodies').objectStore('bodies').getAll().onsuccess = ({ target }) => (db.close(), done(JSON.stringify(target.result).includes(words)));
    };
  });

export async function testMcp(scripted, model, shoot) {
  const adder = await mcpServer();
  const named = Object.entries({ adder: adder.url, hangs: await hangingServer(), locked: await lockedServer() });
  const url = await scriptServer(scripted, model, kScript, ...named.flatMap(([name, at]) => ['--mcp', `${name}=${at}/mcp`]));
  const calls = () => adder.seen.filter(({ method }) => method === 'tools/call');

  await test('a tool of an MCP server, confirmed by keyboard, then always', async () => {
    const page = await visit(url);
    await choose(page, ['adder']);
    await page.getByText('Tools: add').waitFor();
    await accessible(page, 'MCP in the settings');
    await done(page);
    await ask(page, 'Add 12 and 30.');
    const card = page.getByLabel('Call of adder__add');
    const run = card.getByRole('button', { name: 'Run on adder' });
    await run.waitFor();
    await idle(page);
    await reads(card.getByLabel('Arguments'), /"a": 12,\s+"b": 30/);
    assert.equal(calls().length, 0, 'nothing is called before it is confirmed');
    await accessible(page, 'MCP call');
    await shoot(page, 'mcp');
    for (let i = 0; i < 40 && !(await run.evaluate((button) => button === document.activeElement)); ++i) await page.keyboard.press('Shift+Tab');
    await focused(run);
    await page.keyboard.press('Tab');
    await page.keyboard.press('Space');
    await soon(async () => assert.ok(await card.getByLabel('Always allow this tool').isChecked()));
    await page.keyboard.press('Shift+Tab');
    await page.keyboard.press('Enter');
    await page.getByText('The tool has answered.').waitFor();
    await idle(page);
    const result = page.getByLabel('Result of adder__add').getByLabel('Result', { exact: true });
    await reads(result, /^sum 42\n\[image\/png: only text can be read\]$/);
    assert.equal(calls()[0].headers['mcp-protocol-version'], '2025-06-18');
    adder.forget(); // the page begins another session
    await page.getByRole('button', { name: 'New conversation' }).click();
    await ask(page, 'Add 12 and 30.');
    await until(page, () => document.querySelectorAll('.tool .card').length === 1 && document.querySelectorAll('.assistant .actions').length === 2);
    await idle(page);
    assert.equal(new Set(calls().map(({ session }) => session)).size, 2);
    await page.getByRole('button', { name: 'Settings' }).click();
    await page.getByRole('button', { name: 'Ask again' }).click();
    await done(page);
    const before = calls().length;
    await page.getByRole('button', { name: 'New conversation' }).click();
    await ask(page, 'Add 12 and 30.');
    await run.last().waitFor();
    assert.equal(calls().length, before);
    await page.goto('about:blank');
    await soon(async () => assert.ok(adder.seen.some(({ method }) => method === 'DELETE'), 'the session ends with the tab'));
    await page.leave();
  });

  await test('an MCP call that hangs can be stopped, and a result be written', async () => {
    const page = await visit(url);
    await choose(page, ['adder']);
    await done(page);
    await ask(page, 'Add 12 and 30.');
    const card = page.getByLabel('Call of adder__add');
    adder.hang = true;
    await card.getByRole('button', { name: 'Run on adder' }).click();
    await card.getByText('Waits for adder').waitFor();
    await page.getByRole('button', { name: 'Stop' }).click();
    adder.hang = false;
    await reads(card.getByRole('alert'), /^The call was stopped\. Run it again, or write the result yourself\./);
    await card.getByLabel('Result').fill('42, by hand');
    await until(page, stored, '42, by hand');
    await page.reload();
    await page.locator('.sidebar .title').first().click();
    await soon(async () => assert.equal(await card.getByLabel('Result').inputValue(), '42, by hand'));
    await page.getByRole('button', { name: 'Send result' }).click();
    await page.getByText('The tool has answered.').waitFor();
    await reads(page.getByLabel('Result of adder__add'), /42, by hand/);
    await page.leave();
  });

  await test('MCP servers that hang or want a login are a sentence', async () => {
    const page = await visit(url);
    await choose(page, ['locked']);
    await page.getByText("the MCP server 'locked' wants a login (status 401), which riptide cannot give").waitFor();
    await done(page);
    await say(page, 'Hi');
    await reads(page.locator('.message .error'), /^the MCP server 'locked' wants a login/);
    await choose(page, ['hangs']);
    await page.getByLabel('locked', { exact: true }).uncheck();
    await page.getByText('Asking for its tools').waitFor();
    await done(page);
    await ask(page, 'Hi again');
    await page.getByRole('button', { name: 'Stop' }).click();
    await idle(page);
    await page.getByRole('button', { name: 'Settings' }).click();
    await page.getByLabel('hangs', { exact: true }).uncheck();
    await done(page);
    await say(page, 'Hi once more');
    await page.getByText('Hello.').waitFor();
    await page.leave();
  });

  await test('below a sub-path of a proxy', async () => {
    const proxy = await subPath(url);
    const page = await visit(proxy.url);
    await page.getByRole('heading', { name: 'script' }).waitFor();
    await choose(page, ['adder']);
    await page.getByText('Tools: add').waitFor();
    await done(page);
    await say(page, 'Hi');
    await page.getByText('Hello.').waitFor();
    await page.getByRole('link', { name: 'Live' }).click();
    await page.getByText('Nobody asks.').waitFor();
    await page.getByRole('link', { name: 'Connect' }).click();
    await soon(async () => assert.ok((await page.getByLabel('curl').innerText()).includes(`curl ${proxy.url}v1/chat/completions`)));
    await page.leave();
    assert.deepEqual(proxy.outside, []);
  });
}
