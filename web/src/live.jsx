// What the server does now: /metrics and /v1/requests, once a second.
import { useEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { ask, askJson } from './api.js';
import { bytes, count, percent, plural, rate, seconds } from './format.js';
import { notify } from './state.js';

const kPoints = 120;

/// {"name": value, 'name{label="x"}': value} of Prometheus' text format.
export function parseMetrics(text) {
  const out = {};
  for (const line of text.split('\n')) {
    const at = line.lastIndexOf(' ');
    if (at > 0 && !line.startsWith('#')) out[line.slice(0, at).replace(/^riptide_/, '')] = Number(line.slice(at + 1));
  }
  return out;
}

/// What changed a second between two readings.
function speed(now, before, name) {
  return Math.max(0, ((now.values[name] ?? 0) - (before.values[name] ?? 0)) / ((now.at - before.at) / 1000));
}

function Chart({ points }) {
  const element = useRef(null), plot = useRef(null);
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const probe = (name) => {
        element.current.style.color = `var(${name})`;
        const value = getComputedStyle(element.current).color;
        element.current.style.color = '';
        return value;
      };
      const axis = { stroke: probe('--muted'), grid: { stroke: probe('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui' };
      const width = element.current.clientWidth;
      plot.current = new uPlot(
        {
          width, height: 200, cursor: { show: false }, legend: { show: false },
          scales: { x: { time: false, range: [-kPoints, 0] }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
          axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? 'now' : `${tick} s`)) }, { ...axis, size: 56, values: (_, ticks) => ticks.map(rate) }],
          series: [{}, { stroke: probe('--accent'), width: 2, points: { show: false } }, { stroke: probe('--second'), width: 2, points: { show: false } }],
        },
        points, element.current);
    };
    make();
    const size = new ResizeObserver(() => plot.current.setSize({ width: element.current.clientWidth, height: 200 }));
    size.observe(element.current);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', make);
    const theme = new MutationObserver(make);
    theme.observe(document.documentElement, { attributeFilter: ['data-theme'] });
    return () => (size.disconnect(), theme.disconnect(), dark.removeEventListener('change', make), plot.current.destroy());
  }, []);
  useEffect(() => plot.current.setData(points), [points]);
  return <div class="chart" ref={element} role="img" aria-label="Tokens a second in the last two minutes" />;
}

function Tile({ name, value, more }) {
  return <div class="tile"><dt>{name}</dt><dd>{value}{more && <small>{more}</small>}</dd></div>;
}

function Pages({ values }) {
  const all = values.kv_pages ?? 0, free = values.kv_pages_free ?? 0, cached = Math.min(values.kv_pages_cached ?? 0, all - free);
  const used = Math.max(0, all - free - cached);
  const words = `${percent(used, all)} in answers, ${percent(cached, all)} cached, ${percent(free, all)} free`;
  const tiers = ['checkpoints', 'host', 'disk'].map((tier) => [tier, values[`cache_tier_bytes{tier="${tier}"}`] ?? 0]);
  return (
    <section aria-labelledby="kv-title">
      <h2 id="kv-title">K/V memory</h2>
      <svg class="bar" role="img" aria-label={words} viewBox="0 0 100 3" preserveAspectRatio="none">
        <rect width="100" height="3" class="free" />
        <rect width={all ? (100 * (used + cached)) / all : 0} height="3" class="cached" />
        <rect width={all ? (100 * used) / all : 0} height="3" class="used" />
      </svg>
      <p class="hint">{count(all)} pages: {words}. Prefix cache beside them: {tiers.map(([tier, size]) => `${tier} ${bytes(size)}`).join(', ')}.</p>
    </section>
  );
}

function stateOf(request) {
  if (request.state !== 'reading') return request.state;
  return `reading ${percent(request.prompt_read, request.prompt_tokens)}`;
}

function Requests({ requests, onCancel }) {
  return (
    <section aria-labelledby="requests-title">
      <h2 id="requests-title">Requests</h2>
      {requests.length === 0 ? <p class="muted">Nobody asks.</p> : (
        <div class="wide" tabindex="0" role="region" aria-label="Requests">
          <table>
            <thead><tr>{['Request', 'Route', 'State', 'Prompt', 'Cached', 'Pieces', 'Time', ''].map((name) => <th scope="col" key={name}>{name || <span class="sr">End</span>}</th>)}</tr></thead>
            <tbody>
              {requests.map((request) => (
                <tr key={request.id}>
                  <td class="id" title={request.id}>{request.id.slice(0, 16)}</td>
                  <td>{request.route.replace('/v1/', '')}</td>
                  <td>{stateOf(request)}</td>
                  <td class="right">{count(request.prompt_tokens)}</td>
                  <td class="right">{count(request.prompt_cached)}</td>
                  <td class="right">{count(request.pieces)}</td>
                  <td class="right">{seconds(request.seconds)}</td>
                  <td><button class="quiet" aria-label={`Cancel ${request.id}`} onClick={() => onCancel(request.id)}>Cancel</button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/// Readings, newest last, and what is being answered.
function useReadings() {
  const [seen, setSeen] = useState({ readings: [], requests: [], trouble: '' });
  const look = useRef(() => {});
  useEffect(() => {
    let over = false, timer = 0;
    look.current = async () => {
      clearTimeout(timer);
      try {
        const [text, live] = await Promise.all([ask('metrics').then((reply) => reply.text()), askJson('v1/requests')]);
        if (over) return;
        const reading = { at: performance.now(), values: parseMetrics(text) };
        setSeen((before) => ({ readings: [...before.readings, reading].slice(-kPoints - 1), requests: live.data, trouble: '' }));
      } catch (error) {
        if (!over) setSeen((before) => ({ ...before, trouble: error.message }));
      }
      clearTimeout(timer);
      if (!over) timer = setTimeout(() => look.current(), 1000);
    };
    look.current();
    return () => ((over = true), clearTimeout(timer));
  }, []);
  return [seen, () => look.current()];
}

export function Live() {
  const [{ readings, requests, trouble }, look] = useReadings();
  const now = readings.at(-1);
  const speeds = (name) => readings.slice(1).map((reading, i) => speed(reading, readings[i], name));
  const answers = speeds('answer_tokens_total'), prompts = speeds('rows_total{kind="prefill"}');
  const points = [readings.slice(1).map((reading) => Math.round((reading.at - now.at) / 1000)), answers, prompts];
  const values = now?.values ?? {};
  const cancel = async (id) => {
    try {
      await ask(`v1/requests/${encodeURIComponent(id)}`, { method: 'DELETE' });
    } catch (error) {
      notify(error.message);
    }
    look();
  };
  return (
    <main class="page">
      <div class="column">
        <h1>Live</h1>
        {trouble && <p class="error" role="alert">{trouble}</p>}
        <dl class="tiles">
          <Tile name="Answers" value={rate(answers.at(-1) ?? 0)} more="tok/s" />
          <Tile name="Prompts" value={rate(prompts.at(-1) ?? 0)} more="tok/s" />
          <Tile name="Running" value={count(values.requests_running ?? 0)} more={`of ${count(values.requests_running_limit ?? 0)}`} />
          <Tile name="Waiting" value={count(values.requests_waiting ?? 0)} />
          <Tile name="From the cache" value={percent(values.prompt_cached_tokens_total ?? 0, values.prompt_tokens_total ?? 0)} />
          <Tile name="Drafts accepted" value={values.drafted_tokens_total === undefined ? 'off' : percent(values.accepted_tokens_total, values.drafted_tokens_total)} />
        </dl>
        <section aria-labelledby="speed-title">
          <h2 id="speed-title">Tokens a second</h2>
          <Chart points={points} />
          <p class="legend"><span class="answers">answers</span> <span class="prompts">prompts</span></p>
        </section>
        <Pages values={values} />
        <Requests requests={requests} onCancel={cancel} />
        <p class="hint">{plural(values.answers_finished_total ?? 0, 'answer', 'answers')} since the server began. Every figure: <code>metrics</code>.</p>
      </div>
    </main>
  );
}
