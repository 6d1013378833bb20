// node content.mjs DASHBOARD.json DATA.json: print the content of each panel, as Grafana's own pipeline formats it, as JSON.
// DATA: { scenario: { panel id: [query, ...] } }; out: { scenario: { panel id: {...} } }.
import fs from 'node:fs';
import * as grafana from '@grafana/data';
import { display, piped, reduced, text } from './pipeline.mjs';

const [dashboard, scenarios] = process.argv.slice(2, 4).map((file) => JSON.parse(fs.readFileSync(file, 'utf8')));
const theme = grafana.createTheme();

// The links of a row, with fields inserted as Grafana does it: ${__data.fields.NAME} as text, ….numeric as a number.
function links(frame, row) {
  const fields = grafana.getFieldDisplayValuesProxy({ frame, rowIndex: row, timeZone: 'utc' });
  const inserted = (url) =>
    url.replace(/\$\{__data\.fields\.(\w+)(?:\.(\w+))?\}/g, (_, name, part) =>
      String((part ? fields[name]?.[part] : fields[name]) ?? '')
    );
  return frame.fields.flatMap((field) => (field.config.links ?? []).map((link) => inserted(link.url)));
}

function table(data) {
  const [frame] = data;
  if (!frame) return { columns: [], rows: [], links: [] };
  const visible = frame.fields.filter((field) => !field.config.custom?.hidden);
  const columns = visible.map((field) => grafana.getFieldDisplayName(field, frame, data));
  const rows = [];
  for (let row = 0; row < frame.length; row++) {
    rows.push(visible.map((field) => text(display(field, field.values[row], theme))));
  }
  return { columns, rows, links: rows.map((_, row) => links(frame, row)) };
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
  process.stdout.write(JSON.stringify(found), () => process.exit(0)); // a pipe takes 64 KiB at once
}

main();
