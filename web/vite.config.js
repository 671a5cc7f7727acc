// Builds the page into one file, src/server/page/page.html: script and style inside, nothing to fetch; and beside it the
// licences of the packages of which something is in it.
import fs from 'node:fs';
import path from 'node:path';

const out = path.resolve(process.env.RIPTIDE_PAGE_OUT ?? '../src/server/page');

/// The packages of the modules that the bundle has kept something of, with their folders.
function packagesOf(chunk) {
  const found = new Map();
  for (const [id, module] of Object.entries(chunk.modules)) {
    const match = /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(id.replace(/^\0/, ''));
    if (match && module.renderedLength > 0) found.set(match[2], match[1]);
  }
  return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
}

function licenceOf([name, folder]) {
  const { version, license } = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8'));
  const file = fs.readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  if (!file) throw new Error(`${name}: no licence file in the package`);
  const text = fs.readFileSync(path.join(folder, file), 'utf8').replace(/\r/g, '').trim();
  return `${name} ${version} (${license})\n\n${text}\n`;
}

const oneFile = {
  name: 'one-file',
  enforce: 'post',
  generateBundle(_, bundle) {
    const take = (ending) => {
      const names = Object.keys(bundle).filter((name) => name.endsWith(ending));
      if (names.length !== 1) throw new Error(`${names.length} files end in ${ending}, expected one`);
      const file = bundle[names[0]];
      delete bundle[names[0]];
      return file;
    };
    const script = take('.js'), style = take('.css'), html = take('.html');
    // Behind such words a browser would look for the script's end elsewhere.
    if (/<script[\s/>]/i.test(script.code)) throw new Error('the script holds the words of a script tag');
    const page = html.source
      .replace(/<script\b[^>]*><\/script>\s*/g, '')
      .replace(/<link rel="stylesheet"[^>]*>\s*/g, '')
      .replace('</head>', () => `<style>${style.source.trim()}</style>\n</head>`)
      .replace('</body>', () => `<script type="module">${script.code.trim().replace(/<\/script/g, '<\\/script')}</script>\n</body>`);
    this.emitFile({ type: 'asset', fileName: 'page.html', source: page });
    const licences = packagesOf(script).map(licenceOf).join(`\n${'-'.repeat(80)}\n\n`);
    this.emitFile({ type: 'asset', fileName: 'LICENSES.txt', source: `Packages of which something is in page.html.\n\n${licences}` });
  },
};

export default {
  base: './',
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none', charset: 'utf8' },
  build: {
    outDir: out,
    emptyOutDir: false,
    target: 'es2022',
    cssTarget: 'esnext',
    modulePreload: false,
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 1000,
  },
  plugins: [oneFile],
  // `npm run dev` beside a `riptide serve --cors-origin http://localhost:5173`
  server: { proxy: Object.fromEntries(['/v1', '/props', '/metrics', '/health'].map((at) => [at, 'http://127.0.0.1:8484'])) },
};
