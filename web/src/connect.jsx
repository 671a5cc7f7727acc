// Lines to copy: how other programs ask this server.
import { key, root } from './api.js';
import { copyFrom } from './clipboard.js';
import { renderMarkdown } from './markdown.js';
import { useChanges } from './hub.js';
import { state } from './state.js';

/// What a shell or a program reads as one word.
const quoted = (text) => JSON.stringify(text);

function snippets(model, hasKey) {
  const secret = hasKey ? 'YOUR-KEY' : 'none';
  const header = hasKey ? ` -H 'Authorization: Bearer ${secret}'` : '';
  const { hostname, port, protocol } = new URL(root);
  const number = port || (protocol === 'https:' ? '443' : '80');
  const where = `--host ${hostname} --port ${number}${hasKey ? ` --api-key ${secret}` : ''}`;
  return [
    ['curl', 'bash', `curl ${root}v1/chat/completions -H 'Content-Type: application/json'${header} \\\n  -d '{"messages": [{"role": "user", "content": "What is 12 plus 30?"}]}'`],
    ['Python', 'python', `from openai import OpenAI\n\nclient = OpenAI(base_url=${quoted(`${root}v1`)}, api_key=${quoted(secret)})\nreply = client.chat.completions.create(\n    model=${quoted(model)},\n    messages=[{"role": "user", "content": "What is 12 plus 30?"}],\n)\nprint(reply.choices[0].message.content)`],
    ['JavaScript', 'javascript', `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: ${quoted(`${root}v1`)}, apiKey: ${quoted(secret)} });\nconst reply = await client.chat.completions.create({\n  model: ${quoted(model)},\n  messages: [{ role: 'user', content: 'What is 12 plus 30?' }],\n});\nconsole.log(reply.choices[0].message.content);`],
    ['Coding agents', 'bash', ['claude', 'codex', 'opencode', 'pi'].map((agent) => `riptide launch ${agent} ${where}`).join('\n')],
    ['Anthropic', 'bash', `export ANTHROPIC_BASE_URL=${root.replace(/\/$/, '')}\nexport ANTHROPIC_AUTH_TOKEN=${secret}`],
  ];
}

export function Connect() {
  useChanges(state);
  const model = state.facts?.model ?? 'riptide';
  return (
    <main class="page">
      <div class="column">
        <h1>Connect</h1>
        <p>Any client of OpenAI's or Anthropic's API: base URL <code>{root}v1</code>, model <code>{model}</code>{key() ? ', and your key' : ', any key'}.</p>
        {snippets(model, key() !== '').map(([name, language, code]) => (
          <section key={name} aria-label={name}>
            <h2>{name}</h2>
            <div class="markdown" dangerouslySetInnerHTML={{ __html: renderMarkdown(`\`\`\`${language}\n${code}\n\`\`\``) }} />
          </section>
        ))}
      </div>
    </main>
  );
}

/// Buttons in rendered Markdown.
export function copyButtons() {
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('[data-copy]');
    if (button) copyFrom(button, button.closest('figure').querySelector('code').textContent);
  });
}
