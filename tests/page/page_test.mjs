// The page of riptide serve in a browser: chat, branches, tools, forms, files, live view, keyboard, phone, colours.
// usage: page_test.mjs RIPTIDE SCRIPT_SERVER MODEL [--shots FOLDER]; see run.sh
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { testMcp } from './mcp_test.mjs';
import { accessible, close, composer, counts, demoServer, fits, focused, idle, reads, say, scriptServer, settings, shows, soon, test, until, visit, work } from './world.mjs';

const [riptide, scripted, model, , shots] = process.argv.slice(2);
const shoot = async (page, name) => shots && (await page.screenshot({ path: path.join(shots, `${name}.png`) }));

const kTools = JSON.stringify([{ name: 'get_weather', description: 'The weather in a city', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }]);
const kMarkdown = `A sieve keeps a list of what is still **possible** and crosses out the multiples:

\`\`\`python
def primes(limit):
    """All primes below limit."""
    is_prime = [True] * limit
    for n in range(2, int(limit ** 0.5) + 1):
        if is_prime[n]:
            is_prime[n * n::n] = [False] * len(is_prime[n * n::n])
    return [n for n in range(2, limit) if is_prime[n]]
\`\`\`

| limit | primes | seconds |
|:------|-------:|--------:|
| 1,000 | 168 | 0.0001 |
| 1,000,000 | 78,498 | 0.06 |

1. The outer loop ends at the square root.
2. Slices do the crossing out in *one* step.`;
const kHostile = `<img src=x onerror=alert(1)> ![tracker](https://evil.example/x.png) <https://evil.example/auto> https://evil.example/bare [a link](https://example.org/) [bad](javascript:alert(1))`;
const script = [
  { has: ['<tool_response>'], reasoning: 'The tool has answered.', answer: 'It is 21 degrees and sunny in Paris.' },
  { has: ['weather'], reasoning: 'I need the tool for that.', answer: 'I ask.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>' },
  { has: ['primes'], reasoning: 'The sieve of Eratosthenes is short and fast enough. I should say what it costs.', answer: kMarkdown },
  { has: ['hostile'], reasoning: '', answer: kHostile },
  { has: ['Count'], reasoning: '', answer: 'Numbers: ', numbers: 4000 },
  { has: ['second try'], reasoning: '', answer: 'Another answer.' },
  { has: ['notes.txt'], reasoning: '', answer: 'The file says kettle.' },
  { reasoning: '', answer: 'Hello.' },
];
const quick = await scriptServer(scripted, model, script);
const slow = await scriptServer(scripted, model, script, '--step-us', '20000');
const demo = await demoServer(riptide);
const locked = await demoServer(riptide, '--api-key', 'sesame');
const article = (page, at) => page.locator('article').nth(at);

await test('a chat with thinking, Markdown and what it cost', async () => {
  const page = await visit(quick);
  await settings(page, { Thinking: 'on' });
  await say(page, 'Write a function for primes.');
  const answer = article(page, 1);
  await reads(answer.locator('summary'), /^Thought for [\d.]+ s · \d+ tokens$/);
  await shows(answer.locator('.thinking .markdown'), false);
  await answer.locator('summary').click();
  await reads(answer.locator('.thinking .markdown'), /sieve of Eratosthenes/);
  await answer.locator('summary').click();
  await soon(async () => assert.ok((await answer.locator('.code .hljs-keyword').count()) > 3));
  await counts(answer.locator('table td.right'), 4);
  await reads(answer.locator('.stats'), /^first token [\d.]+ s · [\d,.]+ tok\/s · \d+ tokens · 0 of \d+ prompt tokens from the cache/);
  await reads(page.getByRole('status'), /^The answer is complete\.$/);
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await answer.locator('.code button').click();
  await soon(async () => assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^def primes\(limit\):/));
  await accessible(page, 'chat');
  await shoot(page, 'chat');
  await page.reload();
  await page.getByRole('button', { name: /^Write a function for primes/ }).click();
  await reads(article(page, 1).locator('.stats'), /tok\/s/);
  await say(page, 'Hi');
  await reads(article(page, 3).locator('.stats'), / [1-9]\d* of \d+ prompt tokens from the cache/);
  await page.leave();
});

await test('hostile Markdown is nothing but text, and one link', async () => {
  const page = await visit(quick);
  await say(page, 'Be hostile.');
  await reads(article(page, 1).locator('.markdown'), /^<img src=x onerror=alert\(1\)> \[image: tracker\]/);
  await counts(page.locator('.markdown img, .markdown script'), 0);
  assert.deepEqual(await page.locator('.markdown a').evaluateAll((links) => links.map((link) => [link.href, link.rel])), [['https://example.org/', 'noopener noreferrer nofollow']]);
  await page.leave();
});

await test('a round trip through a tool', async () => {
  const page = await visit(quick);
  await settings(page, { Tools: kTools, Thinking: 'on' });
  await say(page, 'What is the weather?');
  const card = page.getByLabel('Call of get_weather');
  await reads(card, /"city": "Paris"/);
  await reads(page.getByRole('status'), /calls get_weather/);
  await soon(async () => assert.equal(await page.getByRole('button', { name: 'Send', exact: true }).isEnabled(), false));
  await card.getByLabel('Result').fill('{"temperature": 21, "sky": "clear"}');
  await accessible(page, 'tool call');
  await page.getByRole('button', { name: 'Send result' }).click();
  await page.getByText('It is 21 degrees and sunny in Paris.').waitFor();
  await idle(page);
  await shoot(page, 'tools');
  await article(page, 2).getByRole('button', { name: 'Edit' }).click();
  await page.getByLabel('Edit the message').fill('rain');
  await page.getByLabel('Edit the message').press('Enter');
  await page.getByText('2/2').waitFor();
  await reads(article(page, 2), /rain/);
  await page.leave();
});

await test('edit, retry and branches', async () => {
  const page = await visit(quick);
  await say(page, 'Hi');
  await article(page, 0).getByRole('button', { name: 'Edit' }).click();
  await page.getByLabel('Edit the message').fill('second try');
  await page.getByLabel('Edit the message').press('Enter');
  await page.getByText('Another answer.').waitFor();
  await idle(page);
  await article(page, 0).getByRole('button', { name: 'Previous version' }).click();
  await page.getByText('Hello.').waitFor();
  await counts(page.getByText('Another answer.'), 0);
  await article(page, 1).getByRole('button', { name: 'Retry' }).click();
  await article(page, 1).getByText('2/2').waitFor();
  await idle(page);
  await page.reload();
  await page.locator('.sidebar .title').first().click();
  await article(page, 1).getByText('2/2').waitFor();
  await page.leave();
});

await test('stop, and go on', async () => {
  const page = await visit(slow);
  await composer(page).fill('Count');
  await composer(page).press('Enter');
  await page.getByText('Numbers: 0 1 2').waitFor();
  await page.getByRole('button', { name: 'Stop' }).click();
  await idle(page);
  const before = await article(page, 1).locator('.markdown').innerText();
  assert.ok(before.length < 2000);
  await reads(article(page, 1).locator('.stats'), /stopped/);
  await until(page, async () => (await (await fetch('v1/requests')).json()).data.length === 0);
  await article(page, 1).getByRole('button', { name: 'Continue' }).click();
  await until(page, (length) => document.querySelector('.assistant .markdown').innerText.length > length, before.length);
  assert.ok((await article(page, 1).locator('.markdown').innerText()).startsWith(before));
  await composer(page).press('Escape');
  await idle(page);
  await page.leave();
});

/// The median time of a frame while thousands of tokens stream, in ms.
async function medianFrame() {
  const page = await visit(quick);
  await page.evaluate(() => {
    window.frames_seen = [];
    const look = (now) => (window.frames_seen.push(now), requestAnimationFrame(look));
    requestAnimationFrame(look);
  });
  await composer(page).fill('Count');
  const began = Date.now();
  await composer(page).press('Enter');
  await until(page, () => / 3999/.test(document.querySelector('.assistant .markdown')?.textContent ?? ''));
  const seconds = (Date.now() - began) / 1000;
  await idle(page);
  const frames = await page.evaluate(() => window.frames_seen);
  const gaps = frames.slice(1).map((time, i) => time - frames[i]).sort((a, b) => a - b);
  const stats = article(page, 1).locator('.stats');
  await reads(stats, /tok\/s/);
  const [speed] = (await stats.innerText()).match(/[\d,.]+ tok\/s/);
  console.log(`        ${speed}, shown after ${seconds.toFixed(1)} s; frames: median ${gaps[gaps.length >> 1].toFixed(0)} ms, longest ${gaps.at(-1).toFixed(0)} ms`);
  await page.leave();
  return gaps[gaps.length >> 1];
}

await test('a thousand tokens a second are smooth', async () => {
  let best = Infinity; // of three: the machine may have other work
  for (let i = 0; i < 3 && best >= 50; ++i) best = Math.min(best, await medianFrame());
  assert.ok(best < 50, `the median frame took ${best} ms`);
});

await test('an answer with a schema is a table', async () => {
  const page = await visit(demo);
  await settings(page, { 'JSON Schema of the answer': '{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "ok": {"type": "boolean"}}, "required": ["city", "ok"], "additionalProperties": false}', Temperature: '0' });
  await say(page, 'Name a city.');
  const table = page.getByLabel('Answer as a table');
  await reads(table, /^city\s+(Paris|Rome)\s+ok\s+(true|false)$/);
  await page.getByRole('button', { name: 'JSON', exact: true }).click();
  await reads(page.getByLabel('JSON', { exact: true }), /^\{\s+"city"/);
  await settings(page, { 'JSON Schema of the answer': '{"type": ' });
  await say(page, 'Another.');
  await reads(page.getByRole('alert'), /^The schema \(in the settings\) is not JSON/);
  await page.leave();
});

await test('files and long pastes go along as text', async () => {
  const page = await visit(quick);
  const file = (name, buffer) => ({ name, mimeType: 'text/plain', buffer: Buffer.from(buffer) });
  await page.getByLabel('Files to attach').setInputFiles([file('notes.txt', 'kettle\n'), file('picture.png', [0x89, 0x50, 0xff, 0])]);
  await reads(page.getByRole('alert'), /picture\.png is no text/);
  await composer(page).evaluate((area) => {
    const data = new DataTransfer();
    data.setData('text/plain', 'tea '.repeat(2000));
    area.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await soon(async () => assert.deepEqual(await page.getByLabel('Attached').locator('li > span').allInnerTexts(), ['notes.txt 7 B', 'pasted-2.txt 7.81 KiB']));
  await page.getByRole('button', { name: 'Remove pasted-2.txt' }).click();
  await say(page, 'What does it say?');
  await page.getByText('The file says kettle.').waitFor();
  await page.leave();
});

await test('export, import, and files that are none', async () => {
  const page = await visit(quick);
  await say(page, 'Hi');
  await page.locator('.sidebar .title').waitFor();
  const saved = async (button) => {
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: button }).click()]);
    const file = path.join(work, download.suggestedFilename());
    await download.saveAs(file);
    return file;
  };
  const file = await saved('Export all');
  const data = JSON.parse(fs.readFileSync(file, 'utf8'));
  assert.equal(data.conversations.length, 1);
  assert.match(fs.readFileSync(await saved('Export as Markdown'), 'utf8'), /^# Hi\n\n## You\n\nHi\n\n## Model\n\nHello\.\n$/);
  const large = path.join(work, 'large.json');
  fs.writeFileSync(large, Buffer.alloc(100 << 20, 0x20));
  const damaged = structuredClone(data);
  Object.values(damaged.conversations[0].nodes)[0].parent = 'nowhere';
  const write = (name, value) => (fs.writeFileSync(path.join(work, name), typeof value === 'string' ? value : JSON.stringify(value)), path.join(work, name));
  const bad = [
    [write('broken.json', '{"format": '), /^broken\.json is not JSON .*\. Nothing has been changed\./],
    [write('other.json', { messages: [] }), /^other\.json is not an export of this page/],
    [write('later.json', { ...data, version: 2 }), /^later\.json is an export of version 2; this page reads version 1\./],
    [write('damaged.json', damaged), /^damaged\.json: conversation 1 is damaged: message n\w+: what it answers is not there\./],
    [large, /^large\.json has 100 MB; files of up to 64 MB can be imported\./],
  ];
  for (const [name, words] of bad) {
    await page.getByLabel('File to import').setInputFiles(name);
    await until(page, (start) => document.querySelector('.notice')?.innerText.startsWith(start), path.basename(name));
    await reads(page.getByRole('alert'), words);
    await counts(page.locator('.sidebar .title'), 1);
  }
  await page.getByLabel('File to import').setInputFiles(file);
  await page.getByText('1 conversation imported').waitFor();
  await counts(page.locator('.sidebar .title'), 2);
  await page.locator('.sidebar li:not(.current) .title').click();
  await reads(article(page, 1).locator('.markdown'), /^Hello\.$/);
  await page.leave();
});

await test('what the server does, live, and an end to it', async () => {
  const page = await visit(slow + '#live');
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'Count' }], stream: true });
  const stream = await fetch(`${slow}v1/chat/completions`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
  await page.getByRole('cell', { name: 'answering' }).waitFor();
  await until(page, () => [...document.querySelectorAll('.tiles dd')].some((each) => /^[1-9][\d.]* ?tok\/s/.test(each.innerText)));
  await reads(page.locator('.tiles'), /Running\s+1\s*of 8/);
  await soon(async () => assert.ok(await page.locator('.chart canvas').evaluate((canvas) => canvas.width > 100)));
  await page.waitForTimeout(shots ? 25_000 : 0);
  await accessible(page, 'live');
  await shoot(page, 'live');
  await page.getByRole('button', { name: /^Cancel chatcmpl-/ }).click();
  await page.getByText('Nobody asks.').waitFor();
  assert.match(await stream.text(), /cancelled/);
  await page.getByRole('link', { name: 'Connect' }).click();
  await reads(page.getByLabel('curl'), new RegExp(`curl ${slow}v1/chat/completions`));
  await reads(page.getByLabel('Coding agents'), /riptide launch claude --host 127\.0\.0\.1 --port \d+/);
  await accessible(page, 'connect');
  await page.leave();
});

await test('a key is asked for, and stays in the tab', async () => {
  const page = await visit(locked);
  const field = page.getByLabel('This server wants an API key');
  await field.fill('wrong');
  await field.press('Enter');
  await page.getByText('The key is not valid').waitFor();
  await page.getByLabel('The key is not valid. API key').fill('sesame');
  await page.getByRole('button', { name: 'Use' }).click();
  await page.getByRole('heading', { name: 'laguna-demo' }).waitFor();
  await say(page, 'What is 12 plus 30?');
  await reads(article(page, 1), /42/);
  assert.deepEqual(await page.evaluate(() => [sessionStorage.getItem('riptide-key'), JSON.stringify(localStorage).includes('sesame'), document.cookie]), ['sesame', false, '']);
  await page.leave();
});

await test('by keyboard alone', async () => {
  const page = await visit(quick);
  await focused(composer(page));
  await page.keyboard.type('Hi');
  await page.keyboard.press('Enter');
  await idle(page);
  const onEdit = () => page.evaluate(() => document.activeElement.matches('[data-edit]'));
  for (let i = 0; i < 40 && !(await onEdit()); ++i) await page.keyboard.press('Shift+Tab');
  assert.ok(await onEdit(), 'Edit can be reached');
  await page.keyboard.press('Enter');
  await focused(page.getByLabel('Edit the message'));
  await page.keyboard.type(' second try');
  await page.keyboard.press('Enter');
  await page.getByText('Another answer.').waitFor();
  await idle(page);
  await page.locator('h1, body').first().evaluate(() => document.activeElement.blur());
  await page.keyboard.press('/');
  await focused(composer(page));
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await shows(page.locator('dialog[open]'));
  await accessible(page, 'settings');
  await page.keyboard.press('Escape');
  await counts(page.locator('dialog'), 0);
  await page.leave();
});

await test('on a phone, in the dark', async () => {
  const page = await visit(quick, { viewport: { width: 390, height: 780 }, colorScheme: 'dark', hasTouch: true, isMobile: true });
  await say(page, 'Write a function for primes.');
  const back = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const coloured = (rgb) => soon(async () => assert.equal(await back(), rgb));
  await coloured('rgb(22, 24, 26)');
  await fits(page, 'chat');
  await accessible(page, 'dark phone');
  await shoot(page, 'phone');
  await page.getByRole('button', { name: 'Conversations' }).click();
  await shows(page.locator('.sidebar'));
  await page.getByRole('button', { name: 'New conversation' }).click();
  await shows(page.locator('.sidebar'), false);
  for (const view of ['Live', 'Connect', 'Chat']) {
    await page.getByRole('link', { name: view }).click();
    await fits(page, view);
  }
  await page.getByLabel('Colours').selectOption('light');
  await coloured('rgb(253, 253, 252)');
  await page.reload();
  await coloured('rgb(253, 253, 252)');
  await page.leave();
});

await testMcp(scripted, model, shoot);
await close();
