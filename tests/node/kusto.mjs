// Kusto's language service as a module: its files are scripts for a browser, which share one global scope.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import vm from "node:vm";

const require = createRequire(import.meta.url);
for (const name of ["bridge.min.js", "Kusto.Language.Bridge.min.js"]) {
  const path = require.resolve(`@kusto/language-service-next/${name}`);
  new vm.Script(readFileSync(path, "utf8"), { filename: path }).runInThisContext();
}

export default globalThis.Kusto;
