// node content.mjs DASHBOARD.json DATA.json: print the content of each panel, as Grafana's own pipeline formats it, as JSON.
// DATA: { scenario: { panel id: [query, ...] } }; out: { scenario: { panel id: {...} } }.
import fs from 'node:fs';
import * as grafana from '@grafana/data';
import { display, piped, reduced, text } from './pipeline.mjs';

const [dashboard, scenarios] = process.argv.slice(2, 4).map((file) => JSON.parse(fs.readFileSync(file, 'utf8')));
const theme = grafana.createTheme();

function table(data) {
  const [frame] = data;
  if (!frame) return { columns: [], rows: [] };
  const columns = frame.fields.map((field) => grafana.getFieldDisplayName(field, frame, data));
  const rows = [];
  for (let row = 0; row < frame.length; row++) {
    rows.push(frame.fields.map((field) => text(display(field, field.values[row], theme))));
  }
  return { columns, rows };
}

function curves(data) {
  return data.map((frame) => {
    const field = frame.fields.find((one) => one.type === grafana.FieldType.number);
    const points = [...field.values].filter((value) => value !== null);
    const last = display(field, points.at(-1), theme);
    return { name: grafana.getFieldDisplayName(field, frame, data), last: text(last), points: points.length };
  });
}

async function panel(it, queries) {
  const data = await piped(it, queries, theme);
  if (it.type === 'table') return table(data);
  if (it.type !== 'stat' && it.type !== 'bargauge') return curves(data);
  return reduced(it, data, theme).map(({ display: shown }) => ({
    name: shown.title ?? '',
    text: text(shown),
    color: shown.color,
  }));
}

async function main() {
  const found = {};
  for (const [scenario, answers] of Object.entries(scenarios)) {
    found[scenario] = {};
    for (const it of dashboard.panels.filter((one) => one.type !== 'row')) {
      found[scenario][it.id] = await panel(it, answers[it.id]);
    }
  }
  console.log(JSON.stringify(found));
  process.exit(0);
}

main();
