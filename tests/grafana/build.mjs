// node build.mjs FOLDER: bundle the program for Node (content.cjs) and the page for a browser (page.js).
import { build } from 'esbuild';

const [folder] = process.argv.slice(2);
const common = { bundle: true, logLevel: 'error', define: { 'process.env.NODE_ENV': '"production"' } };
await build({
  ...common,
  entryPoints: ['content.mjs'],
  outfile: `${folder}/content.cjs`,
  platform: 'node',
  format: 'cjs',
  banner: { js: 'globalThis.window = globalThis; globalThis.navigator ??= { languages: ["en"] };' }, // it reads these of a browser
});
await build({
  ...common,
  entryPoints: ['page.tsx'],
  outfile: `${folder}/page.js`,
  platform: 'browser',
  format: 'iife',
  alias: { '@grafana/ui': './node_modules/@grafana/ui/dist/cjs/index.cjs' }, // its ESM names missing files
  loader: { '.svg': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl', '.png': 'dataurl' },
});
