// The chat: one conversation in a column, the list of all beside it.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Composer } from './composer.jsx';
import { askUser, stopAnswer } from './generate.js';
import { useChanges, watch } from './hub.js';
import { Message } from './message.jsx';
import { Settings } from './settings.jsx';
import { Sidebar } from './sidebar.jsx';
import { state } from './state.js';
import { pathOf } from './tree.js';

/// Follows what comes, unless the reader has scrolled up.
function useFollowing(conversation, running) {
  const box = useRef(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    follows.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  }, [conversation.id]);
  useLayoutEffect(() => {
    if (!running) return undefined;
    follows.current = true;
    const down = () => {
      if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    };
    const seen = new ResizeObserver(down);
    seen.observe(box.current.firstElementChild);
    // What stands below a complete answer comes in the next frame.
    return () => (seen.disconnect(), setTimeout(down, 50));
  }, [running?.id]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 60;
  };
  return [box, scrolled];
}

function Welcome() {
  const { facts, trouble } = state;
  if (!facts) return <div class="welcome"><h1>Riptide</h1><p class="muted">{trouble || 'Asking the server what it runs'}</p></div>;
  return (
    <div class="welcome">
      <h1>{facts.model}</h1>
      <p class="muted">{facts.context_length.toLocaleString('en-US')} tokens of context · {facts.device}</p>
      {!facts.chat?.template && <p class="error">This model has no chat template: it only goes on with texts (v1/completions).</p>}
    </div>
  );
}

export function Chat({ listed, onListed }) {
  useChanges(state);
  const conversation = state.open;
  useChanges(conversation);
  const [settings, setSettings] = useState(false);
  const path = pathOf(conversation);
  const last = path.at(-1);
  const running = path.find((node) => state.running.has(node.id));
  const blocked = last?.role === 'assistant' && last.calls?.length > 0 && !last.error && last.finish !== 'stopped';
  const [box, scrolled] = useFollowing(conversation, running);

  useEffect(() => {
    const keys = (event) => {
      if (event.key === 'Escape' && running && !document.querySelector('dialog[open]')) stopAnswer(running);
      if (event.key === '/' && !/^(TEXTAREA|INPUT|SELECT)$/.test(event.target.tagName)) {
        event.preventDefault();
        document.getElementById('composer')?.focus();
      }
    };
    addEventListener('keydown', keys);
    return () => removeEventListener('keydown', keys);
  }, [running]);

  return (
    <div class={`chat${listed ? ' listed' : ''}`}>
      <Sidebar onDone={() => innerWidth < 900 && onListed(false)} />
      {listed && <div class="veil" onClick={() => onListed(false)} />}
      <main class="talk">
        <div class="scroll" ref={box} onScroll={scrolled} tabindex="0" role="region" aria-label="Conversation">
          <div class="column">
            {path.length === 0 && <Welcome />}
            {path.map((node) => <Message key={node.id} conversation={conversation} node={node} last={node === last} />)}
          </div>
        </div>
        <div class="column">
          {blocked && <p class="hint">The model waits for the result of its call.</p>}
          <Composer conversation={conversation} running={running} blocked={blocked} onSettings={() => setSettings(true)} onStop={() => stopAnswer(running)}
            onSend={(text, files) => askUser(conversation, last?.id ?? 'root', text, files)} />
        </div>
      </main>
      {settings && <Settings conversation={conversation} onClose={() => setSettings(false)} />}
    </div>
  );
}
