// Load each package of package.json and print their versions as JSON.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

const require = createRequire(import.meta.url);
await import("@azure/event-hubs");
await import("cloudevents");
await import("./kusto.mjs");

const versions = {};
for (const name of process.argv.slice(2)) {
  let folder = dirname(require.resolve(name));
  while (!folder.endsWith(`node_modules/${name}`)) folder = dirname(folder);
  versions[name] = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")).version;
}
console.log(JSON.stringify(versions));
