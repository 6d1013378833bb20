// Reads the records of azure-scheduled-events-exporter from Event Hubs and writes a line of JSON for each on standard
// output; with --events one for each event that is over. README.md says how to run it.
//
// Lines first, then the position: after a crash some lines come again, and none is missing.

import { EventHubConsumerClient, earliestEventPosition, latestEventPosition } from "@azure/event-hubs";
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { parseArgs } from "node:util";
import { Reader } from "./reader.mjs";

const VARIABLE = "EVENT_HUBS_CONNECTION_STRING";
const REPORT_MS = 60_000;

/** Positions in a JSON file, for one process: it owns every partition. */
class PositionsFile {
  #path;
  #positions;
  #owned = new Map();

  constructor(path) {
    this.#path = path;
    try {
      this.#positions = JSON.parse(readFileSync(path, "utf8"));
    } catch (error) {
      if (error.code !== "ENOENT") throw error;
      this.#positions = {};
    }
  }

  async listOwnership() {
    return [...this.#owned.values()];
  }

  async claimOwnership(claims) {
    const granted = claims.map((claim) => ({ ...claim, lastModifiedTimeInMs: Date.now(), etag: "1" }));
    for (const claim of granted) this.#owned.set(claim.partitionId, claim);
    return granted;
  }

  async updateCheckpoint(checkpoint) {
    this.#positions[keyOf(checkpoint)] = checkpoint;
    const file = openSync(`${this.#path}.new`, "w");
    writeSync(file, JSON.stringify(this.#positions));
    fsyncSync(file);
    closeSync(file);
    renameSync(`${this.#path}.new`, this.#path);
  }

  /** The number of the last message that was told; -1 where none was. */
  numberOf(context) {
    return this.#positions[keyOf(context)]?.sequenceNumber ?? -1;
  }

  async listCheckpoints(fullyQualifiedNamespace, eventHubName, consumerGroup) {
    const wanted = keyOf({ fullyQualifiedNamespace, eventHubName, consumerGroup, partitionId: "" });
    return Object.entries(this.#positions).flatMap(([key, found]) => (key.startsWith(wanted) ? [found] : []));
  }
}

const keyOf = (place) =>
  [place.fullyQualifiedNamespace, place.eventHubName, place.consumerGroup, place.partitionId].join("\n");

const write = (text) => new Promise((done, failed) => process.stdout.write(text, (error) => (error ? failed(error) : done())));

/** Bad usage: a sentence, and exit code 2. */
function refuse(sentence) {
  console.error(`consume.mjs: ${sentence}`);
  process.exit(2);
}

async function clientOf(options, positions) {
  const further = { loadBalancingOptions: { strategy: "greedy", updateIntervalInMs: 5_000 } };
  const text = process.env[VARIABLE];
  if (text) {
    const place = options.hub ? [text, options.hub] : [text];
    try {
      return new EventHubConsumerClient(options.group, ...place, positions, further);
    } catch {
      // the text of the error holds the connection string
      refuse(`${VARIABLE} is no connection string, or names no event hub, or another than --hub`);
    }
  }
  if (!options.namespace || !options.hub) refuse(`set ${VARIABLE}, or give --namespace and --hub`);
  const { DefaultAzureCredential } = await import("@azure/identity");
  const place = [options.namespace, options.hub, new DefaultAzureCredential()];
  return new EventHubConsumerClient(options.group, ...place, positions, further);
}

function flags() {
  try {
    const { values } = parseArgs({
      options: {
        state: { type: "string" },
        namespace: { type: "string" },
        hub: { type: "string" },
        group: { type: "string", default: "$Default" },
        from: { type: "string", default: "start" },
        events: { type: "boolean", default: false },
        once: { type: "boolean", default: false }, // read what is there now, and end
      },
    });
    return values;
  } catch (error) {
    // What is no flag is not shown, nor what follows a flag: it may be anything.
    const stray = error.code === "ERR_PARSE_ARGS_UNEXPECTED_POSITIONAL";
    return refuse(stray ? "an argument that is no flag" : error.message.split(/[.=\n]/)[0]);
  }
}

const options = flags();
if (!options.state) refuse("give --state FILE: where the positions are kept");
if (options.from !== "start" && options.from !== "now") refuse("--from takes start or now");

const reader = new Reader(options.events);
let reported = JSON.stringify(reader.counts);
let reasons = 0; // why messages were skipped so far: a new reason is reported at once
const positions = new PositionsFile(options.state);
const client = await clientOf(options, positions);
let failure = null;
let stopping = false;
let working = Promise.resolve();

// With --once: the number of the last message that is still to be read, by partition.
const behind = options.once ? await ends() : new Map();

async function ends() {
  const partitions = await Promise.all((await client.getPartitionIds()).map((id) => client.getPartitionProperties(id)));
  return new Map(
    partitions.filter((one) => !one.isEmpty).map((one) => [one.partitionId, one.lastEnqueuedSequenceNumber]),
  );
}

function isAt(partition, number) {
  if (number >= behind.get(partition)) behind.delete(partition);
  if (options.once && behind.size === 0) stop();
}

const subscription = client.subscribe(
  {
    processEvents: async (events, context) => {
      if (events.length === 0 || failure) return;
      // One batch after the other, so that a slow reader of our output slows us down as well.
      working = working.then(async () => {
        const lines = events.map((event) => reader.line(event.body)).filter((line) => line !== null);
        if (lines.length > 0) await write(lines.join("\n") + "\n");
        await context.updateCheckpoint(events.at(-1));
        if (Object.keys(reader.counts.skipped).length > reasons) report();
        isAt(context.partitionId, events.at(-1).sequenceNumber);
      });
      await working.catch(stop); // the SDK would go on after it
    },
    processInitialize: async (context) => {
      const number = positions.numberOf(context);
      // With --from now, what was there at the start is passed over where nothing was read before.
      isAt(context.partitionId, number < 0 && options.from === "now" ? Infinity : number);
    },
    processError: async (error, context) => {
      console.error(`partition ${context.partitionId}: ${error.name}: ${String(error.message).slice(0, 300)}`);
    },
  },
  {
    startPosition: options.from === "now" ? latestEventPosition : earliestEventPosition,
    skipParsingBodyAsJson: true, // anybody may have sent it: it is parsed where it is checked
    maxBatchSize: 300,
    maxWaitTimeInSeconds: 1, // a batch that is not full waits no longer
  },
);

/** The counts on standard error, if they have changed. */
function report() {
  const text = JSON.stringify(reader.counts);
  if (text !== reported) console.error(text);
  reported = text;
  reasons = Object.keys(reader.counts.skipped).length;
}

setInterval(report, REPORT_MS).unref();

async function stop(error) {
  if (failure || stopping) return;
  failure = error instanceof Error ? error : null;
  stopping = true;
  if (failure) console.error(`${failure.name}: ${failure.message}`);
  console.error(JSON.stringify(reader.counts));
  setTimeout(() => process.exit(failure ? 1 : 0), 5_000).unref();
  await working.catch(() => {}); // where it is the batch itself that stops, `working` is that batch
  await subscription.close().catch(() => {});
  await client.close().catch(() => {});
  process.exit(failure ? 1 : 0);
}

process.on("SIGTERM", stop);
process.on("SIGINT", stop);
