// The list of conversations, and what is done with all of them.
import { useRef, useState } from 'preact/hooks';
import { ago } from './format.js';
import { exportAll, exportMarkdown, importFile } from './portable.js';
import { forgetConversation, loadHeads, notify, openConversation, startConversation, state } from './state.js';

const kShown = 200;

function Entry({ head, onDone }) {
  const [asks, setAsks] = useState(false);
  const current = state.open.id === head.id;
  return (
    <li class={current ? 'current' : ''}>
      <button class="title" aria-current={current ? 'true' : undefined} onClick={() => (openConversation(head.id), onDone())}>
        <span>{head.title || 'Untitled'}</span> <span class="muted">{ago(head.updated)}</span>
      </button>
      <button class="quiet" aria-label={asks ? `Really delete ${head.title}` : `Delete ${head.title}`} onBlur={() => setAsks(false)}
        onClick={() => (asks ? forgetConversation(head.id) : setAsks(true))}>{asks ? 'Delete?' : '×'}</button>
    </li>
  );
}

export function Sidebar({ onDone }) {
  const picker = useRef(null);
  const [words, setWords] = useState('');
  const empty = Object.keys(state.open.nodes).length === 0;
  const wanted = words.trim().toLowerCase();
  const heads = state.heads.filter((head) => head.title.toLowerCase().includes(wanted));
  const attempt = async (what) => {
    try {
      const words = await what();
      await loadHeads();
      notify(words ?? '');
    } catch (error) {
      notify(`${error.message} Nothing has been changed.`);
    }
  };
  const take = (event) => {
    const [file] = event.target.files;
    if (file) attempt(() => importFile(file));
    event.target.value = '';
  };
  return (
    <nav class="sidebar" aria-label="Conversations">
      <button class="new" onClick={() => (startConversation(), onDone())}>New conversation</button>
      {state.heads.length > 8 && <input type="search" placeholder="Find" aria-label="Find a conversation" value={words} onInput={(event) => setWords(event.target.value)} />}
      <ul>
        {heads.slice(0, kShown).map((head) => <Entry head={head} key={head.id} onDone={onDone} />)}
      </ul>
      {state.heads.length === 0 && <p class="hint">Conversations stay in this browser.</p>}
      {heads.length > kShown && <p class="hint">{heads.length - kShown} older ones: find them by their first words.</p>}
      <footer>
        <button class="quiet" disabled={state.heads.length === 0 && empty} onClick={() => attempt(() => exportAll(state.open))}>Export all</button>
        <button class="quiet" disabled={empty} onClick={() => exportMarkdown(state.open)}>Export as Markdown</button>
        <button class="quiet" onClick={() => picker.current.click()}>Import</button>
        <input ref={picker} type="file" accept=".json,application/json" hidden aria-label="File to import" onChange={take} />
      </footer>
    </nav>
  );
}
