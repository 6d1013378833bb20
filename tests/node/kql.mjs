// Check KQL with Kusto's language service. Read {"files": [{"name", "text"}], "queries": [{"name", "text"}]} as JSON
// from standard input. The files contain management commands, run in order: each table, function, and view is
// known to later commands. The queries are checked against all of them. Print as JSON:
//   {"commands": [{"file", "line", "kind", "text"}],
//    "problems": [{"where", "line", "severity", "code", "message", "at"}],
//    "entities": {NAME: {"kind", "columns": [[name, type]], "parameters", "body"}},
//    "results": {NAME OF A QUERY: [[name, type]] or null},
//    "paths": [{"where", "root", "path": [names], "type": type of the whole, "converted": function around it or null}]}
import { readFileSync } from "node:fs";
import Kusto from "./kusto.mjs";

const { KustoCode, GlobalState, Symbols, Syntax } = Kusto.Language;
const { files, queries } = JSON.parse(readFileSync(0, "utf8"));
const minimal = Syntax.IncludeTrivia.Interior;
const members = [];
const commands = [];
const problems = [];
const entities = {};
const results = {};
const paths = [];

const globals = () => GlobalState.Default.WithDatabase(new Symbols.DatabaseSymbol.ctor("db", members));
const columns = (type) => {
  if (!type?.Columns) return null;
  return Array.from({ length: type.Columns.Count }, (_, i) => type.Columns.getItem(i)).map((c) => [c.Name, c.Type.Name]);
};
const children = (node) => Array.from({ length: node.ChildCount }, (_, i) => node.GetChild(i)).filter((child) => child);
const name = (node) => node.constructor.$$name?.split(".").pop() ?? "";
const first = (node, wanted) => {
  if (name(node) === wanted) return node;
  for (const child of children(node)) {
    const found = first(child, wanted);
    if (found) return found;
  }
  return null;
};

// The column and the members that an expression such as Data.summary.gone_at goes through; null for any other one.
function path(node) {
  if (name(node) === "NameReference") return { root: node.SimpleName, path: [] };
  if (name(node) === "ParenthesizedExpression") return path(node.Expression);
  if (name(node) === "PathExpression") {
    const before = path(node.Expression);
    return before && { ...before, path: [...before.path, node.Selector.toString(minimal).trim()] };
  }
  if (name(node) === "ElementExpression") {
    const before = path(node.Expression);
    return before && { ...before, path: [...before.path, node.Selector.toString(minimal).replace(/[[\]"']/g, "").trim()] };
  }
  return null;
}

function collect(where, node, converted = null) {
  const found = name(node) === "PathExpression" || name(node) === "ElementExpression" ? path(node) : null;
  if (found) {
    paths.push({ where, ...found, type: node.ResultType?.Name ?? null, converted });
    return;
  }
  const call = name(node) === "FunctionCallExpression";
  for (const child of children(node)) {
    collect(where, child, call && child !== node.Name ? (node.Name.SimpleName ?? null) : keeps(node) ? converted : null);
  }
}

// Lists and separators are between a function's call and its arguments.
function keeps(node) {
  return /List|SeparatedElement/.test(node.constructor.$$name ?? "");
}

function check(where, text, start) {
  const code = KustoCode.ParseAndAnalyze(text, globals());
  const found = code.GetDiagnostics();
  for (let i = 0; i < found.Count; i++) {
    const { Severity: severity, Code: code_, Message: message, Start: at, Length: length } = found.getItem(i);
    const line = start + text.slice(0, at).split("\n").length - 1;
    problems.push({ where, line, severity, code: code_, message, at: text.slice(at, at + length).slice(0, 60) });
  }
  collect(where, code.Syntax);
  return code;
}

function learn(text, code) {
  const table = /^\.create-merge\s+table\s+(\w+)\s*(\([^)]*\))/.exec(text);
  if (table) {
    const symbol = new Symbols.TableSymbol.$ctor7(table[1], table[2]);
    entities[table[1]] = { kind: "table", columns: columns(symbol) };
    return symbol;
  }
  const body = first(code.Syntax, "FunctionBody");
  if (/^\.create-or-alter\s+function\b/.test(text) && body) {
    const parameters = first(code.Syntax, "FunctionParameters").toString(minimal).trim();
    const called = /(\w+)\s*$/.exec(text.slice(0, first(code.Syntax, "FunctionParameters").TextStart))[1];
    const inside = body.toString(minimal).trim();
    entities[called] = { kind: "function", parameters, body: inside, columns: null };
    return new Symbols.FunctionSymbol.$ctor16(called, parameters, inside);
  }
  const view = /^\.create-or-alter\s+materialized-view\b[^{]*?(\w+)\s+on\s+table\s+\w+\s*\{([^}]*)\}/.exec(text);
  if (view) {
    const type = KustoCode.ParseAndAnalyze(view[2], globals()).ResultType;
    const symbol = new Symbols.MaterializedViewSymbol.$ctor2(view[1], type.Columns, view[2], null);
    entities[view[1]] = { kind: "view", body: view[2].trim(), columns: columns(type) };
    return symbol;
  }
  return null;
}

for (const { name: file, text } of files) {
  let line = 1;
  for (const block of text.split(/\n(?=\n)/)) {
    const start = line + (block.startsWith("\n") ? 1 : 0);
    line += block.split("\n").length;
    const bare = block.replace(/^\n/, "");
    if (bare.split("\n").every((one) => !one.trim() || one.startsWith("//"))) continue;
    const code = check(file, bare, start);
    const command = first(code.Syntax, "CustomCommand");
    commands.push({ file, line: start, kind: command?.CommandKind ?? code.Kind, text: bare });
    const symbol = learn(bare.replace(/^(\/\/.*\n)+/, ""), code);
    if (symbol) members.push(symbol);
  }
}
for (const { name: named, text } of queries) results[named] = columns(check(named, text, 1).ResultType);
console.log(JSON.stringify({ commands, problems, entities, results, paths }));
