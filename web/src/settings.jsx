// What a conversation is asked with: a dialog.
import { useEffect, useRef, useState } from 'preact/hooks';
import { useChanges } from './hub.js';
import { setSettings, state } from './state.js';
import { toolsOf } from './generate.js';
import { allow, allowedOf, connect } from './mcp.js';

const numbers = [
  ['temperature', 'Temperature', '0 is always the most likely token', { min: 0, max: 100, step: 0.1 }],
  ['top_p', 'Top p', 'the fewest tokens with this share', { min: 0.01, max: 1, step: 0.01 }],
  ['top_k', 'Top k', 'only the k most likely; 0: all', { min: 0, step: 1 }],
  ['min_p', 'Min p', 'only what has this share of the most likely', { min: 0, max: 1, step: 0.01 }],
  ['max_tokens', 'Most tokens', 'of an answer, thinking included', { min: 1, step: 1 }],
  ['seed', 'Seed', 'the same seed, the same answer', { step: 1 }],
  ['thinking_budget', 'Thinking budget', 'tokens, then thinking ends', { min: 0, step: 1 }],
];

const kTools = `[{
  "name": "get_weather",
  "description": "The weather in a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
}]`;
const kSchema = `{
  "type": "object",
  "properties": {"city": {"type": "string"}, "inhabitants": {"type": "integer"}},
  "required": ["city", "inhabitants"]
}`;

function faultOf(text, read) {
  if (!text?.trim()) return '';
  try {
    read(text);
    return '';
  } catch (error) {
    return error.message;
  }
}

function JsonField({ name, label, hint, example, value, onChange, read }) {
  const fault = faultOf(value, read);
  return (
    <div class="field">
      <label for={`set-${name}`}>{label}</label>
      <textarea id={`set-${name}`} class="mono" rows="5" spellcheck={false} value={value ?? ''} aria-describedby={`about-${name}`}
        aria-invalid={fault !== ''} onInput={(event) => onChange(event.target.value)} />
      <p class={fault ? 'error' : 'hint'} id={`about-${name}`}>
        {fault || hint} {!value && <button type="button" class="link" onClick={() => onChange(example)}>An example</button>}
      </p>
    </div>
  );
}

function Choice({ name, label, value, options, onChange }) {
  return (
    <div class="field">
      <label for={`set-${name}`}>{label}</label>
      <select id={`set-${name}`} value={value ?? ''} onChange={(event) => onChange(event.target.value)}>
        {options.map(([id, words]) => <option value={id} key={id}>{words}</option>)}
      </select>
    </div>
  );
}

/// A server of the command line: whether its tools are offered, which, and which it may run without asking.
function McpServer({ name, on, onChange }) {
  const [found, setFound] = useState({});
  useEffect(() => {
    if (!on) return undefined;
    let here = true;
    const show = (what) => here && setFound(what);
    show({});
    connect(name).then((session) => show({ tools: session.tools }), (error) => show({ error: error.message }));
    return () => (here = false);
  }, [on]);
  const { tools, error } = found;
  const words = error || (tools ? `Tools: ${tools.map((tool) => tool.name).join(', ') || 'none'}` : 'Asking for its tools');
  return (
    <li>
      <label class="check"><input type="checkbox" checked={on} onChange={(event) => onChange(event.target.checked)} /> {name}</label>
      {on && <p class={error ? 'error' : 'hint'} role={error ? 'alert' : undefined}>{words}</p>}
      {allowedOf(name).map((called) => (
        <p class="hint" key={called}>{called} runs without asking. <button type="button" class="link" onClick={() => allow(called, false)}>Ask again</button></p>
      ))}
    </li>
  );
}

function McpServers({ chosen, onChange }) {
  useChanges(state);
  const names = state.facts?.mcp_servers ?? [];
  if (names.length === 0) return null;
  return (
    <fieldset class="field">
      <legend>MCP servers whose tools the model may call</legend>
      <ul>
        {names.map((name) => (
          <McpServer key={name} name={name} on={chosen.includes(name)}
            onChange={(yes) => onChange(yes ? [...chosen, name] : chosen.filter((each) => each !== name))} />
        ))}
      </ul>
    </fieldset>
  );
}

function Fields({ conversation }) {
  useChanges(conversation);
  const { settings } = conversation;
  const usual = state.facts?.default_sampling ?? {};
  const set = (name) => (value) => setSettings(conversation, { ...settings, [name]: value });
  return (
    <>
      <div class="field">
        <label for="set-system">System prompt</label>
        <textarea id="set-system" rows="4" value={settings.system ?? ''} onInput={(event) => set('system')(event.target.value)} />
      </div>
      <Choice name="thinking" label="Thinking" value={settings.thinking} onChange={set('thinking')}
        options={[['', 'As the model has it'], ['on', 'On'], ['off', 'Off']]} />
      <div class="grid">
        {numbers.map(([name, label, hint, range]) => (
          <div class="field" key={name}>
            <label for={`set-${name}`}>{label}</label>
            <input id={`set-${name}`} type="number" {...range} value={settings[name] ?? ''} placeholder={usual[name] ?? ''} aria-describedby={`about-${name}`}
              onInput={(event) => set(name)(event.target.value === '' ? undefined : Number(event.target.value))} />
            <p class="hint" id={`about-${name}`}>{hint}</p>
          </div>
        ))}
      </div>
      <JsonField name="schema" label="JSON Schema of the answer" hint="The answer keeps to it, and is shown as a table." example={kSchema}
        value={settings.schema} onChange={set('schema')} read={JSON.parse} />
      <JsonField name="tools" label="Tools" hint="Functions that the model may call; you give the results." example={kTools}
        value={settings.tools} onChange={set('tools')} read={toolsOf} />
      <McpServers chosen={settings.mcp ?? []} onChange={set('mcp')} />
      {state.facts?.compression && (
        <Choice name="compress" label="Long prompts" value={settings.compress} onChange={set('compress')}
          options={[['', 'As the server has it'], ['off', 'Read whole'], ['auto', 'Shorten long ones'], ['always', 'Shorten always']]} />
      )}
    </>
  );
}

export function Settings({ conversation, onClose }) {
  const dialog = useRef(null);
  const [shown, setShown] = useState(false);
  useEffect(() => {
    dialog.current.showModal();
    setShown(true);
  }, []);
  return (
    <dialog ref={dialog} class="settings" aria-labelledby="settings-title" onClose={onClose}
      onClick={(event) => event.target === dialog.current && dialog.current.close()}>
      <div class="inside">
        <header class="row">
          <h2 id="settings-title">Settings</h2>
          <button type="button" onClick={() => dialog.current.close()}>Done</button>
        </header>
        {shown && <Fields conversation={conversation} />}
      </div>
    </dialog>
  );
}
