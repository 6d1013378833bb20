// node build.mjs FOLDER: bundles what Node runs (told.cjs) and what a browser draws (page.js).
import { build } from 'esbuild';

const [folder] = process.argv.slice(2);
const common = { bundle: true, logLevel: 'error', define: { 'process.env.NODE_ENV': '"production"' } };
await build({
  ...common,
  entryPoints: ['told.mjs'],
  outfile: `${folder}/told.cjs`,
  platform: 'node',
  format: 'cjs',
  banner: { js: 'globalThis.window = globalThis; globalThis.navigator ??= { languages: ["en"] };' }, // it asks a browser
});
await build({
  ...common,
  entryPoints: ['page.tsx'],
  outfile: `${folder}/page.js`,
  platform: 'browser',
  format: 'iife',
  alias: { '@grafana/ui': './node_modules/@grafana/ui/dist/cjs/index.cjs' }, // its ESM names files that are not there
  loader: { '.svg': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl', '.png': 'dataurl' },
});
