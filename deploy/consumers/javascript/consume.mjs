// Read the records of azure-scheduled-events-exporter from Event Hubs and write a line of JSON for each on standard
// output; with --events, one for each closed event. To run it, see README.md.
//
// The position is saved after the lines were written: a crash can repeat lines, but none is lost.

import { EventHubConsumerClient, earliestEventPosition, latestEventPosition } from "@azure/event-hubs";
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { parseArgs } from "node:util";
import { Reader } from "./reader.mjs";

const VARIABLE = "EVENT_HUBS_CONNECTION_STRING";
const REPORT_MS = 60_000;

/** Positions in a JSON file, for one process, which owns every partition. */
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

  /** Return the number of the last message whose line was written; -1 if there is none. */
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

/** Print an error for bad usage, and exit with code 2. */
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
      // the error's text contains the connection string
      refuse(`${VARIABLE} is not a connection string, has no EntityPath, or a different one than --hub`);
    }
  }
  if (!options.namespace || !options.hub) refuse(`no credentials; set ${VARIABLE}, or --namespace and --hub`);
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
        once: { type: "boolean", default: false }, // read up to the current end of the hub, and exit
      },
    });
    return values;
  } catch (error) {
    // Don't print the argument or a flag's value: it can be a secret.
    const stray = error.code === "ERR_PARSE_ARGS_UNEXPECTED_POSITIONAL";
    return refuse(stray ? "unexpected argument; only flags are allowed" : error.message.split(/[.=\n]/)[0]);
  }
}

const options = flags();
if (!options.state) refuse("no --state FILE; set it to the file for the positions");
if (options.from !== "start" && options.from !== "now") refuse("--from: unknown value; use start or now");

const reader = new Reader(options.events);
let reported = JSON.stringify(reader.counts);
let reasons = 0; // number of skip reasons so far: a new reason is logged at once
const positions = new PositionsFile(options.state);
const client = await clientOf(options, positions);
let failure = null;
let stopping = false;
let working = Promise.resolve();

// With --once: the number of the last message to read, by partition.
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
      // One batch after the other, so that a slow reader of the output also slows down the reading.
      working = working.then(async () => {
        const lines = events.map((event) => reader.line(event.body)).filter((line) => line !== null);
        if (lines.length > 0) await write(lines.join("\n") + "\n");
        await context.updateCheckpoint(events.at(-1));
        if (Object.keys(reader.counts.skipped).length > reasons) report();
        isAt(context.partitionId, events.at(-1).sequenceNumber);
      });
      await working.catch(stop); // the SDK would continue
    },
    processInitialize: async (context) => {
      const number = positions.numberOf(context);
      // With --from now, partitions without a saved position skip the messages from before the start.
      isAt(context.partitionId, number < 0 && options.from === "now" ? Infinity : number);
    },
    processError: async (error, context) => {
      console.error(`partition ${context.partitionId}: ${error.name}: ${String(error.message).slice(0, 300)}`);
    },
  },
  {
    startPosition: options.from === "now" ? latestEventPosition : earliestEventPosition,
    skipParsingBodyAsJson: true, // messages are untrusted: record.mjs parses and validates them
    maxBatchSize: 300,
    maxWaitTimeInSeconds: 1, // deliver an incomplete batch after this time
  },
);

/** Print the counts on standard error, if they have changed. */
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
  await working.catch(() => {}); // if a batch caused the stop, `working` is that batch
  await subscription.close().catch(() => {});
  await client.close().catch(() => {});
  process.exit(failure ? 1 : 0);
}

process.on("SIGTERM", stop);
process.on("SIGINT", stop);
