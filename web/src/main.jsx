// The page: chat, what the server does, how to connect.
import { render } from 'preact';
import { useEffect, useLayoutEffect, useState } from 'preact/hooks';
import { key, onKeyRefused, setKey } from './api.js';
import { Chat } from './chat.jsx';
import { Connect, copyButtons } from './connect.jsx';
import { changed, useChanges } from './hub.js';
import { Live } from './live.jsx';
import { leave } from './mcp.js';
import { loadFacts, loadHeads, notify, startConversation, state } from './state.js';
import './style.css';

const views = { chat: 'Chat', live: 'Live', connect: 'Connect' };
const themes = { auto: 'Auto', light: 'Light', dark: 'Dark' };
const viewNow = () => (Object.hasOwn(views, location.hash.slice(1)) ? location.hash.slice(1) : 'chat');

function useView() {
  const [view, setView] = useState(viewNow);
  useEffect(() => {
    const moved = () => setView(viewNow());
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  return view;
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem('riptide-theme') ?? 'auto');
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem('riptide-theme', theme);
  }, [theme]);
  return [theme, setTheme];
}

function KeyForm() {
  const enter = (event) => {
    event.preventDefault();
    setKey(new FormData(event.target).get('key').trim());
    state.needsKey = false;
    loadFacts();
  };
  return (
    <form class="key" onSubmit={enter}>
      <label>{key() ? 'The key is not valid. API key' : 'This server wants an API key'}
        <input name="key" type="password" autocomplete="off" required />
      </label>
      <button class="primary">Use</button>
      <p class="hint">It stays in this tab and is sent to this server only.</p>
    </form>
  );
}

function Header({ view, theme, onTheme, listed, onListed }) {
  return (
    <header class="top">
      {view === 'chat' && <button class="quiet list" aria-expanded={listed} onClick={() => onListed(!listed)}>Conversations</button>}
      <nav aria-label="Views">
        {Object.entries(views).map(([id, name]) => <a key={id} href={`#${id}`} aria-current={view === id ? 'page' : undefined}>{name}</a>)}
      </nav>
      <label class="theme"><span class="sr">Colours</span>
        <select value={theme} onChange={(event) => onTheme(event.target.value)}>
          {Object.entries(themes).map(([id, name]) => <option value={id} key={id}>{name}</option>)}
        </select>
      </label>
    </header>
  );
}

function App() {
  useChanges(state);
  const view = useView();
  const [theme, setTheme] = useTheme();
  const [listed, setListed] = useState(innerWidth >= 900);
  return (
    <>
      <Header view={view} theme={theme} onTheme={setTheme} listed={listed} onListed={setListed} />
      {state.needsKey && <KeyForm />}
      {state.notice && <p class="notice" role="alert">{state.notice} <button class="quiet" onClick={() => notify('')}>Close</button></p>}
      {view === 'chat' && <Chat listed={listed} onListed={setListed} />}
      {view === 'live' && <Live />}
      {view === 'connect' && <Connect />}
      <p class="sr" role="status" aria-live="polite">{state.said}</p>
    </>
  );
}

onKeyRefused(() => {
  state.needsKey = true;
  changed(state);
});
copyButtons();
addEventListener('pagehide', leave);
startConversation();
loadHeads();
loadFacts();
// A server that is still loading is asked again.
setInterval(() => !state.facts && !state.needsKey && loadFacts(), 3000);
render(<App />, document.getElementById('app'));
