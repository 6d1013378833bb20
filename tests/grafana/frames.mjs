// Prometheus' answers as data frames, as Grafana's Prometheus data source makes them.
import { FieldType, toDataFrame } from '@grafana/data';

const number = (text) => (text === 'NaN' ? NaN : text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

function asTable(query, alone) {
  const labels = [...new Set(query.result.flatMap((series) => Object.keys(series.metric)))].sort();
  return toDataFrame({
    refId: query.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: query.result.map((series) => series.value[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        config: { filterable: true },
        values: query.result.map((series) => series.metric[label]),
      })),
      {
        name: alone ? 'Value' : `Value #${query.refId}`,
        type: FieldType.number,
        values: query.result.map((series) => number(series.value[1])),
      },
    ],
  });
}

function legend(query, metric) {
  if (!query.legend || query.legend === '__auto') return undefined;
  return query.legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
}

// A range query omits the steps without a sample; Grafana adds the steps again, so that a gap is drawn as a gap.
function filled(query, series) {
  if (!series.values) return [series.value];
  const known = new Map(series.values.map(([at, value]) => [Math.round(at), value]));
  const all = [];
  for (let at = Math.round(query.from); at <= query.to + 1; at += query.step) all.push([at, known.get(at) ?? null]);
  return all;
}

function asSeries(query, series) {
  const points = filled(query, series);
  const name = legend(query, series.metric);
  return toDataFrame({
    refId: query.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([at]) => at * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels: series.metric,
        config: name ? { displayNameFromDS: name } : {},
        values: points.map(([, value]) => (value === null ? null : number(value))),
      },
    ],
  });
}

// An empty response gives no frame.
export function frames(queries) {
  return queries.flatMap((query) => {
    if (query.result.length === 0) return [];
    if (query.format === 'table') return [asTable(query, queries.length === 1)];
    return query.result.map((series) => asSeries(query, series));
  });
}
