// Grafana's own data pipeline: frames, transformations, field configuration. Its panels draw the result.
import * as grafana from '@grafana/data';
import { firstValueFrom } from 'rxjs';
import { frames } from './frames.mjs';

grafana.standardTransformersRegistry.setInit(() =>
  [...new Map(Object.values(grafana.standardTransformers).map((it) => [it.id, it])).values()].map((it) => ({
    id: it.id,
    name: it.name,
    transformation: async () => it,
    editor: null,
  }))
);

const PROPERTIES = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'thresholds', 'mappings', 'color', 'links'];
const CUSTOM = ['cellOptions', 'width', 'drawStyle', 'lineWidth', 'fillOpacity', 'showPoints', 'stacking', 'pointSize', 'align', 'hidden', 'axisSoftMax'];

const property = (id, path, isCustom) => ({
  id,
  path,
  name: id,
  isCustom,
  shouldApply: () => true,
  process: (value) => value,
  override: {},
  editor: {},
  settings: {},
});

const registry = new grafana.FieldConfigOptionsRegistry(() => [
  ...PROPERTIES.map((id) => property(id, id, false)),
  ...CUSTOM.map((id) => property(`custom.${id}`, id, true)),
]);

export const asIs = (text) => text;

export async function piped(panel, queries, theme) {
  let data = frames(queries);
  if (panel.transformations?.length && data.length) {
    data = await firstValueFrom(grafana.transformDataFrame(panel.transformations, data));
  }
  return grafana.applyFieldOverrides({
    data,
    fieldConfig: panel.fieldConfig,
    replaceVariables: asIs,
    theme,
    fieldConfigRegistry: registry,
    timeZone: 'utc',
  });
}

export const text = (shown) => `${shown.prefix ?? ''}${shown.text}${shown.suffix ?? ''}`;

export const display = (field, value, theme) =>
  (field.display ?? grafana.getDisplayProcessor({ field, theme, timeZone: 'utc' }))(value);

// The content of a stat or bar gauge: one entry per series, or the no-value text.
export function reduced(panel, data, theme) {
  return grafana.getFieldDisplayValues({
    data,
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: asIs,
    theme,
    timeZone: 'utc',
  });
}
