// Where the user writes: Enter sends, Shift+Enter is a new line, files and long pastes go along as text.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { kLongPaste, readText } from './attach.js';
import { bytes } from './format.js';
import { notify } from './state.js';

function Attached({ files, onRemove }) {
  if (files.length === 0) return null;
  return (
    <ul class="attached" aria-label="Attached">
      {files.map((file, i) => (
        <li key={i}>
          <span>{file.name} <span class="muted">{bytes(new Blob([file.text]).size)}</span></span>
          <button type="button" class="quiet" aria-label={`Remove ${file.name}`} onClick={() => onRemove(i)}>×</button>
        </li>
      ))}
    </ul>
  );
}

export function Composer({ conversation, running, blocked, onSend, onStop, onSettings }) {
  const area = useRef(null), picker = useRef(null);
  const [text, setText] = useState('');
  const [files, setFiles] = useState([]);
  const [over, setOver] = useState(false);

  useLayoutEffect(() => {
    area.current.style.height = 'auto';
    area.current.style.height = `${Math.min(area.current.scrollHeight + 2, innerHeight * 0.4)}px`;
  }, [text]);
  useEffect(() => area.current.focus(), [conversation.id]);

  const add = async (list) => {
    for (const file of [...list]) { // the browser empties its own list
      try {
        const read = await readText(file);
        setFiles((now) => [...now, read]);
      } catch (error) {
        notify(error.message);
      }
    }
  };
  const send = () => {
    if (running || blocked || (!text.trim() && files.length === 0)) return;
    onSend(text.trim(), files);
    setText('');
    setFiles([]);
  };
  const keys = (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const paste = (event) => {
    const pasted = event.clipboardData.getData('text/plain');
    if (event.clipboardData.files.length) {
      event.preventDefault();
      add(event.clipboardData.files);
    } else if (pasted.length > kLongPaste) {
      event.preventDefault();
      setFiles((now) => [...now, { name: `pasted-${now.length + 1}.txt`, text: pasted }]);
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    add(event.dataTransfer.files);
  };
  return (
    <form class={`composer${over ? ' over' : ''}`} onSubmit={(event) => (event.preventDefault(), send())} onDrop={drop}
      onDragOver={(event) => (event.preventDefault(), setOver(true))} onDragLeave={() => setOver(false)}>
      <Attached files={files} onRemove={(at) => setFiles(files.filter((_, i) => i !== at))} />
      <textarea ref={area} id="composer" rows="1" value={text} placeholder="Ask something" aria-label="Message" onKeyDown={keys} onPaste={paste}
        onInput={(event) => setText(event.target.value)} />
      <div class="row">
        <button type="button" class="quiet" onClick={() => picker.current.click()}>Attach</button>
        <button type="button" class="quiet" onClick={onSettings}>Settings</button>
        <input ref={picker} type="file" multiple hidden aria-label="Files to attach" onChange={(event) => (add(event.target.files), (event.target.value = ''))} />
        <span class="space" />
        {running ? <button type="button" onClick={onStop}>Stop</button>
          : <button class="primary" disabled={blocked || (!text.trim() && files.length === 0)}>Send</button>}
      </div>
    </form>
  );
}
