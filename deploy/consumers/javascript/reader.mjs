// Convert messages to lines. Every message becomes a line or is counted; nothing here throws.

import { read } from "./record.mjs";

const REMEMBERED = 100_000; // ids and events; copies arrive within minutes of the first
const OUTCOMES = ["completed", "canceled", "ended"]; // the best first
const OTHER_ENDS = /[\x7f-\x9f\u2028\u2029]/g; // line ends for some readers, and terminal control characters

/** A map that keeps only the newest keys. */
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

/** Converts messages to lines, and counts. */
export class Reader {
  counts = { received: 0, copies: 0, skipped: {} };
  #events;
  #ids = new Recent();
  #outcomes = new Recent();

  constructor(events) {
    this.#events = events;
  }

  /** Return the line for a message's body, without a newline; null if there is none to write. */
  line(body) {
    this.counts.received += 1;
    try {
      return this.#line(read(body));
    } catch {
      return this.#skip("unexpected"); // one message must not stop the reading of the next
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
    const content = this.#events ? this.#closing(line, summary) : line;
    return content && JSON.stringify(content).replace(OTHER_ENDS, (end) => `\\u${end.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }

  /** Return a line for the first closing record of an event, and for later ones with a better outcome. */
  #closing(line, summary) {
    const rank = OUTCOMES.indexOf(line.kind);
    if (rank < 0 || line.event_id === null || rank >= (this.#outcomes.get(line.event_id) ?? OUTCOMES.length)) return null;
    this.#outcomes.set(line.event_id, rank);
    return { ...summary, event_id: line.event_id, event_type: line.event_type, reported_by: line.vm, outcome: line.kind };
  }
}

