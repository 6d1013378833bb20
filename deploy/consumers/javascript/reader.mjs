// Messages become lines. Whatever a message is, it becomes a line, or it is counted: nothing here throws.

import { read } from "./record.mjs";

const REMEMBERED = 100_000; // ids and events; a copy comes within minutes of the first
const OUTCOMES = ["completed", "canceled", "ended"]; // the best first: what the best witness saw
const OTHER_ENDS = /[\x7f-\x9f\u2028\u2029]/g; // where some readers end a line, and what a terminal takes for a command

/** The newest keys with a value each; the oldest are forgotten. */
class Recent {
  #values = new Map();

  get(key) {
    return this.#values.get(key);
  }

  set(key, value) {
    this.#values.set(key, value);
    if (this.#values.size > REMEMBERED) this.#values.delete(this.#values.keys().next().value);
  }
}

/** Takes messages and makes lines. */
export class Reader {
  counts = { received: 0, copies: 0, skipped: {} };
  #events;
  #ids = new Recent();
  #told = new Recent();

  constructor(events) {
    this.#events = events;
  }

  /** The line for a message's body, without its newline; null where there is none to write. */
  line(body) {
    this.counts.received += 1;
    try {
      return this.#line(read(body));
    } catch {
      return this.#skip("unexpected"); // one message never keeps the next ones from being read
    }
  }

  #skip(reason) {
    this.counts.skipped[reason] = (this.counts.skipped[reason] ?? 0) + 1;
    return null;
  }

  #line(fact) {
    if (fact.skipped) return this.#skip(fact.skipped);
    const key = `${fact.source}\n${fact.id}`;
    if (this.#ids.get(key)) {
      this.counts.copies += 1;
      return null;
    }
    this.#ids.set(key, true);
    const { summary, ...line } = fact;
    const told = this.#events ? this.#closing(line, summary) : line;
    return told && JSON.stringify(told).replace(OTHER_ENDS, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }

  /** One line for an event: of the first witness that closed it, and again where a later one saw more. */
  #closing(line, summary) {
    const rank = OUTCOMES.indexOf(line.kind);
    if (rank < 0 || line.event_id === null || rank >= (this.#told.get(line.event_id) ?? OUTCOMES.length)) return null;
    this.#told.set(line.event_id, rank);
    return { ...summary, event_id: line.event_id, event_type: line.event_type, reported_by: line.vm, outcome: line.kind };
  }
}

