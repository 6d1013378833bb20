// grafana.mjs, with { name: dashboard } on standard input: print the fields of the dashboards that the types of the
// locked @grafana/schema do not have, as JSON { name: [message, …] }.
//
// The types are Grafana's own, published for each version and generated from its schema. Some parts are open ("unknown"):
// those are checked against the types that the panel plugins and the Prometheus data source publish as well.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const here = dirname(fileURLToPath(import.meta.url));
const schema = join(dirname(createRequire(import.meta.url).resolve("@grafana/schema")), "esm/raw/composable");
const plugin = (name, kind, title) => `${schema}/${name}/${kind}/x/${title}_types.gen`;

const PANELS = {
  bargauge: [plugin("bargauge", "panelcfg", "BarGaugePanelCfg"), "Options", "unknown"],
  stat: [plugin("stat", "panelcfg", "StatPanelCfg"), "Options", "unknown"],
  "state-timeline": [plugin("statetimeline", "panelcfg", "StateTimelinePanelCfg"), "Options", "FieldConfig"],
  table: [plugin("table", "panelcfg", "TablePanelCfg"), "Options", "FieldConfig"],
  timeseries: [plugin("timeseries", "panelcfg", "TimeSeriesPanelCfg"), "Options", "FieldConfig"],
};
const QUERY = plugin("prometheus", "dataquery", "PrometheusDataQuery");

// Plain<T>: the JSON for T. Each field may be missing: only unknown fields are reported.
// The data source keeps the fields of its annotations next to Grafana's, and publishes no type for them.
const HEAD = `
import type * as g from "@grafana/schema";
type Plain<T> = unknown extends T ? unknown
  : T extends string ? \`\${T}\`
  : T extends number | boolean | null | undefined ? T
  : T extends Array<infer U> ? Array<Plain<U>>
  : T extends object ? { [K in keyof T]?: Plain<T[K]> }
  : T;
type Without<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;
type Board = Omit<g.Dashboard, "panels" | "id"> & { id: number | null };
type Row = Extract<NonNullable<g.Dashboard["panels"]>[number], { collapsed: boolean }>;
type Prometheus = { expr: string; step: string; titleFormat: string; textFormat: string; tagKeys: string; useValueForTime: boolean };
type Annotation = g.AnnotationQuery & Prometheus;
`;

function literal(type, value, about) {
  return `// ${about}\nexport const _${literal.count++}: Plain<${type}> = ${JSON.stringify(value, null, 1)};\n`;
}
literal.count = 0;

function overrides(panel, custom) {
  return panel.fieldConfig.overrides.flatMap(({ properties }) =>
    properties.map(({ id, value }) => {
      const [first, second] = id.split(".");
      const type = first === "custom" ? custom : "g.FieldConfig";
      return literal(type, { [second ?? first]: value }, `override ${id} of ${panel.title}`);
    })
  );
}

function panelSource(panel) {
  if (panel.type === "row") return literal("Row", panel, `row ${panel.title}`);
  const [path, options, custom] = PANELS[panel.type];
  const customType = custom === "unknown" ? "Record<never, never>" : `import("${path}").${custom}`;
  const { options: own, targets, fieldConfig, ...rest } = panel;
  const { custom: ownCustom, ...defaults } = fieldConfig.defaults;
  return [
    literal("g.Panel", rest, `panel ${panel.title}`),
    literal("g.FieldConfig", defaults, `field of ${panel.title}`),
    literal(customType, ownCustom ?? {}, `custom field of ${panel.title}`),
    literal(`import("${path}").${options}`, own, `options of ${panel.title}`),
    ...targets.map((target) => literal(`import("${QUERY}").PrometheusDataQuery`, target, `query of ${panel.title}`)),
    ...overrides(panel, customType),
  ].join("");
}

function source(board) {
  const { panels = [], annotations, ...rest } = board;
  return [
    HEAD,
    literal("Board", rest, "dashboard"),
    ...(annotations?.list ?? []).map((one) => literal("Annotation", one, `annotation ${one.name}`)),
    ...panels.map(panelSource),
  ].join("");
}

function unknown(boards) {
  const files = Object.fromEntries(Object.entries(boards).map(([name, board]) => [join(here, `${name}.ts`), source(board)]));
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.CommonJS,
    moduleResolution: ts.ModuleResolutionKind.Node10,
  };
  const host = ts.createCompilerHost(options);
  const [read, exists] = [host.getSourceFile, host.fileExists];
  host.fileExists = (path) => path in files || exists(path);
  host.getSourceFile = (path, ...more) =>
    path in files ? ts.createSourceFile(path, files[path], ...more) : read(path, ...more);
  const program = ts.createProgram(Object.keys(files), options, host);
  const found = Object.fromEntries(Object.keys(boards).map((name) => [name, []]));
  const global = program.getGlobalDiagnostics().concat(program.getOptionsDiagnostics());
  if (global.length) throw new Error(ts.formatDiagnostics(global, { ...host, getNewLine: () => "\n" }));
  for (const name of Object.keys(boards)) {
    const file = program.getSourceFile(join(here, `${name}.ts`));
    const all = [...program.getSyntacticDiagnostics(file), ...program.getSemanticDiagnostics(file)];
    for (const { start, messageText } of all) {
      const about = file.text.slice(0, start).match(/^\/\/ .*$/gm)?.at(-1) ?? "";
      found[name].push(`${about.slice(3)}: ${ts.flattenDiagnosticMessageText(messageText, " ")}`);
    }
  }
  return found;
}

console.log(JSON.stringify(unknown(JSON.parse(readFileSync(0, "utf8")))));
