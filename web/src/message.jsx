// One message of a conversation.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { copyFrom } from './clipboard.js';
import { bytes, count, percent, plural, rate, seconds } from './format.js';
import { answer, askUser, goOn, runCalls, sendCalls, sendResults } from './generate.js';
import { changed, useChanges, watch } from './hub.js';
import { MarkdownView } from './markdown.js';
import { allow, isAllowed, mcpOf } from './mcp.js';
import { keep, state } from './state.js';
import { JsonTable, valueOf } from './table.jsx';
import { childrenOf, userText } from './tree.js';

/// Text of a node that may still grow: beside the components' rendering.
function Growing({ node, field }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    const view = new MarkdownView(element.current);
    const show = () => view.set(node[field] ?? '');
    show();
    const end = watch(node, show);
    return () => (end(), view.close());
  }, [node]);
  return <div class="markdown" ref={element} />;
}

function Reasoning({ node, running }) {
  useChanges(node);
  const tokens = node.stats?.usage?.completion_tokens_details?.reasoning_tokens;
  const thinks = running && !node.text && !node.calls?.length;
  const time = node.thought !== undefined ? ` ${thinks ? '' : 'for '}${seconds(node.thought)}` : '';
  return (
    <details class="thinking">
      <summary>{thinks ? 'Thinking' : 'Thought'}{time}{tokens ? ` · ${plural(tokens, 'token', 'tokens')}` : ''}</summary>
      <Growing node={node} field="reasoning" />
    </details>
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/// What is asked before an MCP server is.
function Consent({ conversation, node, call, server }) {
  return (
    <>
      {call.error && <p class="error" role="alert">{call.error} Run it again, or write the result yourself.</p>}
      <div class="row">
        <button type="button" onClick={() => runCalls(conversation, node, [call])}>Run on {server}</button>
        <label class="check">
          <input type="checkbox" checked={isAllowed(call.name)} onChange={(event) => allow(call.name, event.target.checked)} />
          Always allow this tool
        </label>
      </div>
    </>
  );
}

function Calls({ conversation, node, running, answered }) {
  useChanges(state);
  const open = !running && !answered && !node.error;
  const type = (call) => (event) => {
    call.result = event.target.value;
    keep(conversation);
    changed(node);
  };
  return (
    <form class="calls" onSubmit={(event) => (event.preventDefault(), sendCalls(conversation, node))}>
      {node.calls.map((call) => {
        const mcp = mcpOf(conversation, call.name);
        return (
          <section class="card" key={call.id} aria-label={`Call of ${call.name}`}>
            <h3><span class="muted">calls</span> {call.name}</h3>
            <pre tabindex="0" role="region" aria-label="Arguments"><code>{running ? call.arguments : pretty(call.arguments)}</code></pre>
            {running && mcp && node.finish && <p class="hint">Waits for {mcp.server}</p>}
            {open && mcp && <Consent conversation={conversation} node={node} call={call} server={mcp.server} />}
            {open && (
              <label>Result
                <textarea rows="3" value={call.result ?? ''} placeholder="What the tool returns" onInput={type(call)} />
              </label>
            )}
          </section>
        );
      })}
      {open && <button class="primary">{node.calls.length === 1 ? 'Send result' : 'Send results'}</button>}
    </form>
  );
}

function Compressed({ usage }) {
  const { original_tokens: original, shown } = usage.prompt_tokens_details;
  if (!original) return null;
  const line = `The prompt was shortened: ${count(usage.prompt_tokens)} of ${count(original)} tokens were read (${percent(usage.prompt_tokens, original)})`;
  if (!shown) return <p class="stats">{line}</p>;
  return <details class="kept"><summary>{line}</summary><pre tabindex="0" role="region" aria-label="Prompt with what was left out">{shown}</pre></details>;
}

/// " (the rest is new)" of "12 tokens from the cache; the rest is new".
function whyNotMore(timings) {
  const at = timings?.cache_note?.indexOf('; ') ?? -1;
  return at < 0 ? '' : ` (${timings.cache_note.slice(at + 2)})`;
}

function Stats({ node }) {
  const { first, usage, timings } = node.stats ?? {};
  const parts = [];
  if (first !== undefined) parts.push(`first token ${seconds(first)}`);
  if (timings?.predicted_n > 1) parts.push(`${rate(timings.predicted_per_second)} tok/s`);
  if (usage) parts.push(plural(usage.completion_tokens, 'token', 'tokens'));
  if (usage) parts.push(`${count(usage.prompt_tokens_details.cached_tokens)} of ${count(usage.prompt_tokens)} prompt tokens from the cache${whyNotMore(timings)}`);
  if (timings?.draft_n > 0) parts.push(`${count(timings.draft_n_accepted)} of ${count(timings.draft_n)} drafted tokens accepted`);
  if (node.finish === 'length') parts.push('cut at its length');
  if (node.finish === 'stopped') parts.push('stopped');
  if (parts.length === 0) return null;
  return (
    <>
      <p class="stats">{parts.join(' · ')}</p>
      {usage && <Compressed usage={usage} />}
    </>
  );
}

function Branches({ conversation, node }) {
  const all = childrenOf(conversation, node.parent);
  if (all.length < 2) return null;
  const at = all.indexOf(node);
  const go = (step) => {
    conversation.chosen[node.parent] = all[at + step].id;
    keep(conversation);
  };
  return (
    <span class="branches" role="group" aria-label="Versions">
      <button class="quiet" disabled={at === 0} aria-label="Previous version" onClick={() => go(-1)}>‹</button>
      <span>{at + 1}/{all.length}</span>
      <button class="quiet" disabled={at === all.length - 1} aria-label="Next version" onClick={() => go(1)}>›</button>
    </span>
  );
}

function Editor({ text, onSend, onCancel }) {
  const area = useRef(null);
  useEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(text.length, text.length);
  }, []);
  const keys = (event) => {
    if (event.key === 'Escape') (event.stopPropagation(), onCancel());
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) (event.preventDefault(), onSend(area.current.value));
  };
  return (
    <form class="editor" onSubmit={(event) => (event.preventDefault(), onSend(area.current.value))}>
      <textarea ref={area} aria-label="Edit the message" rows={Math.min(12, text.split('\n').length + 1)} defaultValue={text} onKeyDown={keys} />
      <div class="row"><button class="primary">Send</button><button type="button" onClick={onCancel}>Cancel</button></div>
    </form>
  );
}

function UserMessage({ conversation, node }) {
  const [edits, setEdits] = useState(false);
  if (edits)
    return (
      <Editor text={node.text} onCancel={() => setEdits(false)}
        onSend={(text) => (setEdits(false), askUser(conversation, node.parent, text, node.files))} />
    );
  return (
    <>
      <div class="bubble">
        {node.text && <p class="plain">{node.text}</p>}
        {node.files?.map((file, i) => (
          <details class="file" key={i}><summary>{file.name} · {bytes(new Blob([file.text]).size)}</summary><pre tabindex="0" role="region" aria-label={file.name}>{file.text}</pre></details>
        ))}
      </div>
      <div class="actions">
        <Branches conversation={conversation} node={node} />
        <button class="quiet" onClick={(event) => copyFrom(event.currentTarget, userText(node))}>Copy</button>
        <button class="quiet" data-edit onClick={() => setEdits(true)}>Edit</button>
      </div>
    </>
  );
}

function ToolMessage({ conversation, node }) {
  const [edits, setEdits] = useState(-1);
  const send = (at, text) => {
    setEdits(-1);
    sendResults(conversation, node.parent, node.results.map((result, i) => (i === at ? { ...result, text } : result)));
  };
  return (
    <>
      {node.results.map((result, i) => (
        <section class="card" key={result.id} aria-label={`Result of ${result.name}`}>
          <h3><span class="muted">result of</span> {result.name}</h3>
          {edits === i ? (
            <Editor text={result.text} onCancel={() => setEdits(-1)} onSend={(text) => send(i, text)} />
          ) : (
            <pre tabindex="0" role="region" aria-label="Result">{result.text || ' '}</pre>
          )}
          {edits !== i && <div class="actions"><button class="quiet" onClick={() => setEdits(i)}>Edit</button></div>}
        </section>
      ))}
      <div class="actions"><Branches conversation={conversation} node={node} /></div>
    </>
  );
}

function Answer({ node, running }) {
  const [plain, setPlain] = useState(false);
  const value = node.form && !running ? valueOf(node.text) : undefined;
  if (value === undefined) return <Growing node={node} field="text" />;
  return (
    <>
      <div class="row switch" role="group" aria-label="How the answer is shown">
        <button class="quiet" aria-pressed={!plain} onClick={() => setPlain(false)}>Table</button>
        <button class="quiet" aria-pressed={plain} onClick={() => setPlain(true)}>JSON</button>
      </div>
      {plain ? <pre tabindex="0" role="region" aria-label="JSON">{pretty(node.text)}</pre>
        : <div class="wide" tabindex="0" role="region" aria-label="Answer as a table"><JsonTable value={value} /></div>}
    </>
  );
}

function Waits({ node }) {
  const read = state.read.get(node.id);
  return (
    <p class="waits">
      <i /><i /><i /> {read && <span class="hint">{count(read.prompt_read)} of {plural(read.prompt_tokens, 'token', 'tokens')} of the prompt read</span>}
    </p>
  );
}

function AssistantMessage({ conversation, node, last }) {
  useChanges(node);
  const running = state.running.has(node.id);
  const unfinished = node.finish === 'stopped' || node.finish === 'length' || node.error;
  const canGoOn = last && unfinished && node.text && !node.form && !node.calls?.length;
  return (
    <>
      {node.reasoning && <Reasoning node={node} running={running} />}
      {node.text ? <Answer node={node} running={running} /> : running && !node.reasoning && !node.calls?.length && <Waits node={node} />}
      {node.calls?.length > 0 && <Calls conversation={conversation} node={node} running={running} answered={!last} />}
      {node.error && <p class="error" role="alert">{node.error}</p>}
      {!running && <Stats node={node} />}
      {!running && (
        <div class="actions">
          <Branches conversation={conversation} node={node} />
          {node.text && <button class="quiet" onClick={(event) => copyFrom(event.currentTarget, node.text)}>Copy</button>}
          <button class="quiet" onClick={() => answer(conversation, node.parent)}>Retry</button>
          {canGoOn && <button class="quiet" onClick={() => goOn(conversation, node)}>Continue</button>}
        </div>
      )}
    </>
  );
}

const kinds = { user: [UserMessage, 'You'], tool: [ToolMessage, 'Tool'], assistant: [AssistantMessage, 'Model'] };

export function Message(props) {
  const [Kind, name] = kinds[props.node.role];
  return <article class={`message ${props.node.role}`} aria-label={name}><Kind {...props} /></article>;
}
