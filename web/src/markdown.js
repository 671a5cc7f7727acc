// Markdown of a model: attacker input. No HTML, no images, links only where they are written as links; code in colours.
import MarkdownIt from 'markdown-it';
import hljs from 'highlight.js/lib/core';
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import go from 'highlight.js/lib/languages/go';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import python from 'highlight.js/lib/languages/python';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';

const languages = { bash, c, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);

const kMostHighlighted = 50_000; // characters of a block

const md = new MarkdownIt({ html: false, linkify: false, typographer: false }).disable(['autolink']);
const escape = md.utils.escapeHtml;

md.validateLink = (url) => /^(https?:|mailto:|#)/i.test(url.trim());

function highlighted(code, language) {
  if (!hljs.getLanguage(language) || code.length > kMostHighlighted) return escape(code);
  return hljs.highlight(code, { language, ignoreIllegals: true }).value;
}

function codeBlock(code, language) {
  return (
    `<figure class="code"><figcaption><span>${escape(language || 'text')}</span>` +
    '<button type="button" class="quiet" data-copy>Copy</button></figcaption>' +
    `<pre tabindex="0" role="region" aria-label="Code"><code>${highlighted(code, language)}</code></pre></figure>\n`
  );
}

md.renderer.rules.fence = (tokens, at) => codeBlock(tokens[at].content, tokens[at].info.trim().split(/\s+/)[0].toLowerCase());
md.renderer.rules.code_block = (tokens, at) => codeBlock(tokens[at].content, '');
md.renderer.rules.image = (tokens, at) => `<span class="image">[image: ${escape(tokens[at].content || 'without a name')}]</span>`;
md.renderer.rules.link_open = (tokens, at, options, _, self) => {
  tokens[at].attrSet('target', '_blank');
  tokens[at].attrSet('rel', 'noopener noreferrer nofollow');
  tokens[at].attrSet('title', tokens[at].attrGet('href'));
  return self.renderToken(tokens, at, options);
};
md.renderer.rules.table_open = () => '<div class="wide" tabindex="0" role="region" aria-label="Table"><table>\n';
md.renderer.rules.table_close = () => '</table></div>\n';
// The page allows no style attributes.
md.renderer.rules.th_open = md.renderer.rules.td_open = (tokens, at) => {
  const side = /text-align:(\w+)/.exec(tokens[at].attrGet('style') ?? '')?.[1];
  return `<${tokens[at].tag}${side ? ` class="${side}"` : ''}>`;
};

export const renderMarkdown = (text) => md.render(text);

/// Shows a text that grows. What comes before its last block is rendered once.
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.reset();
  }
  reset() {
    clearTimeout(this.later);
    this.seen = '';
    this.begin = 0; // of the last block, in `seen`
    this.cost = 0; // milliseconds of the last rendering
    this.until = 0; // when the next is due
    this.tail = document.createElement('div');
    this.element.replaceChildren(this.tail);
  }
  close() {
    clearTimeout(this.later);
  }
  /// Rendering takes at most a fifth of the time: a long last block is shown less often.
  set(text) {
    if (text === this.seen) return;
    if (!text.startsWith(this.seen)) this.reset();
    clearTimeout(this.later);
    const now = performance.now();
    if (now < this.until) {
      this.later = setTimeout(() => this.set(text), this.until - now);
      return;
    }
    this.seen = text;
    this.render();
    this.cost = performance.now() - now;
    this.until = now + (this.cost > 3 ? 5 * this.cost : 0);
  }
  render() {
    const text = this.seen.slice(this.begin);
    const tokens = md.parse(text, {});
    const last = tokens.findLastIndex((token) => token.level === 0 && token.nesting >= 0 && token.map);
    if (last > 0) {
      const block = document.createElement('div');
      block.innerHTML = md.renderer.render(tokens.slice(0, last), md.options, {});
      this.tail.before(block);
      let at = 0;
      for (let line = tokens[last].map[0]; line > 0; --line) at = text.indexOf('\n', at) + 1;
      this.begin += at;
    }
    this.tail.innerHTML = md.renderer.render(tokens.slice(Math.max(last, 0)), md.options, {});
  }
}
