// What the tests of the page share: servers, a browser, and a count of checks.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import axe from 'axe-core';
import { chromium } from 'playwright-core';

export const work = fs.mkdtempSync(path.join(os.tmpdir(), 'riptide-page-'));
export const ends = [() => fs.rmSync(work, { recursive: true, force: true })];
/// How long anything may take that a test waits for, in ms: the machine may have other work.
const kPatience = 60_000;
let checks = 0;
const failures = [];

/// Runs one test; a failure is told, and the next one runs.
export async function test(name, body) {
  const began = Date.now();
  try {
    await body();
    console.log(`ok      ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures.push(name);
    console.log(`FAILED  ${name}: ${error.message.split('\n').slice(0, 12).join('\n        ')}`);
  }
  ++checks;
}

export async function close() {
  for (const end of ends.reverse()) await end();
  console.log(`${checks} tests of the page, ${failures.length} failed`);
  process.exit(failures.length ? 1 : 0);
}

function start(program, args, ready) {
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  ends.push(() => child.kill('SIGTERM'));
  let said = '';
  return new Promise((done, failed) => {
    const hear = (bytes) => {
      said += bytes;
      const found = ready.exec(said);
      if (found) done(`http://127.0.0.1:${found[1]}/`);
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.on('exit', (code) => failed(new Error(`${program} ended with ${code}: ${said.slice(-800)}`)));
  });
}

/// `riptide serve` with the demo model; its URL.
export const demoServer = (riptide, ...more) =>
  start(riptide, ['serve', '--port', '0', '--ctx', '4096', '--device', 'cpu', '--threads', '2', ...more], /^ready.*http:\/\/127\.0\.0\.1:(\d+)\/v1/m);

/// A server whose model recites `script`; its URL.
export async function scriptServer(program, model, script, ...more) {
  const file = path.join(work, `script-${more.length}-${script.length}.json`);
  fs.writeFileSync(file, JSON.stringify(script));
  const url = await start(program, [model, file, '--port', '0', ...more], /^port (\d+)/m);
  while (!(await fetch(`${url}health`)).ok) await new Promise((done) => setTimeout(done, 50));
  return url;
}

export const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
ends.push(() => browser.close());

/// A tab with storage of its own. What it must not do (mistakes, forbidden loads, requests to others) fails at `leave`.
export async function visit(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 860 }, colorScheme: 'light', ...options });
  const page = await context.newPage();
  const faults = [], { origin } = new URL(url);
  page.on('pageerror', (error) => faults.push(`mistake: ${error.stack}`));
  page.on('console', (message) => {
    if (/Content Security Policy|Refused to/.test(message.text())) faults.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(`${origin}/`) && !/^(data|blob):/.test(request.url())) faults.push(`asks ${request.url()}`);
  });
  page.setDefaultTimeout(kPatience);
  await page.goto(url);
  page.leave = async () => {
    await context.close();
    assert.deepEqual(faults, []);
  };
  return page;
}

export const composer = (page) => page.getByLabel('Message', { exact: true });

/// Sends a message and waits until the answer is complete.
export async function say(page, text) {
  await composer(page).fill(text);
  await composer(page).press('Enter');
  await idle(page);
}

/// Tries `check` again until it throws no more, and returns what it returns: a page draws in its own time.
export async function soon(check) {
  for (const end = Date.now() + kPatience; ; await new Promise((done) => setTimeout(done, 30))) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
  }
}
export const reads = (locator, words) => soon(async () => assert.match(await locator.innerText(), words));
export const counts = (locator, most) => soon(async () => assert.equal(await locator.count(), most));
export const shows = (locator, visible = true) => soon(async () => assert.equal(await locator.isVisible(), visible));
/// Waits until the keyboard's focus is there.
export const focused = (locator) => soon(async () => assert.ok(await locator.evaluate((element) => element === document.activeElement), 'it has no focus'));

/// Waits until `what`, called in the page, is true. Playwright's own way is forbidden by the page's policy: it evaluates text.
export const until = (page, what, given) => soon(async () => assert.ok(await page.evaluate(what, given), `not so: ${what}`));
export const idle = (page) => until(page, () => document.querySelector('.assistant .actions') && document.querySelector('.composer .row button:last-child').textContent === 'Send');

/// Fills fields of the settings: {label: value}.
export async function settings(page, values) {
  await page.getByRole('button', { name: 'Settings' }).click();
  for (const [label, value] of Object.entries(values)) {
    const field = page.getByLabel(label, { exact: true });
    if ((await field.evaluate((element) => element.tagName)) === 'SELECT') await field.selectOption(value);
    else await field.fill(value);
  }
  await page.getByRole('button', { name: 'Done' }).click();
}

/// axe-core finds nothing serious.
export async function accessible(page, where) {
  await page.evaluate(axe.source);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  const serious = found.violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(serious.map(({ id, nodes }) => `${where}: ${id}: ${nodes.map((node) => node.target).join(' ')}`), []);
  assert.ok(found.passes === undefined || found.passes.length > 0, 'axe looked at nothing');
}

/// Nothing is wider than the window.
export async function fits(page, where) {
  const [wide, most] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= most, `${where}: ${wide} pixels wide in a window of ${most}`);
}
