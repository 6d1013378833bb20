// Validate one message and convert it into a fact. Unknown members are ignored.

export const MAX_BODY = 1 << 20; // bytes; the largest message of Event Hubs' Standard tier
const MAX_KEY = 2048; // characters of an id, a source, a subject or a name
const MAX_TEXT = 4096; // characters of a message
const MAX_WORDS = 16;
const MAX_NUMBER = 2 ** 53; // largest integer that a double holds exactly
const PREFIX = "azure_scheduled_event.";
const CLOSING = ["completed", "canceled", "ended"];
const KINDS = new Set([
  ...CLOSING,
  "scheduled",
  "updated",
  "started",
  "approval.decided",
  "approval.accepted",
  "approval.failed",
  "approval.outdated",
  "interruption.observed",
  "event.rejected",
  "source.unavailable",
  "source.recovered",
  "source.anomaly",
  "document.rejected",
  "agent.started",
  "agent.stopped",
]);

/** The members of a closing record's summary that lines contain, with the check of each value that isn't null. */
const SUMMARY = {
  first_seen: isTime,
  seen_before: isKey,
  notice_seconds: isNumber,
  documented_minimum_notice_seconds: isNumber,
  started_by: isKey,
  approved_at: isTime,
  rule: isKey,
  approval_attempts: isInteger,
  scheduled_duration_seconds: isNumber,
  started_at: isTime,
  started_duration_seconds: isNumber,
  gone_at: isTime,
  last_status: isKey,
  last_not_before: isTime,
  unseen: isWords,
  updates: isInteger,
  updates_while_started: isInteger,
  gaps: isInteger,
  gap_seconds: isNumber,
  announced_duration_seconds: isInteger,
  interruptions_observed: isInteger,
  interruption_seconds: isNumber,
  interruption_longest_seconds: isNumber,
};

/** Return `text` with A to Z in lower case. Ids that only differ in this are the same. */
export const lower = (text) => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());

/** Return the fact in a message's body (a Buffer), or `{ skipped: reason }`. Never throws. */
export function read(body) {
  if (!Buffer.isBuffer(body)) return { skipped: "not-json" };
  if (body.length > MAX_BODY) return { skipped: "too-large" };
  let content;
  try {
    content = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body));
  } catch {
    return { skipped: "not-json" };
  }
  if (!isObject(content) || content.specversion !== "1.0" || typeof content.type !== "string") {
    return { skipped: isObject(content) ? "not-cloudevents" : "not-json" };
  }
  if (!content.type.startsWith(PREFIX)) return { skipped: "other-producer" };
  const [, kind, version] = /^(.*)\.v([^.]*)$/s.exec(content.type.slice(PREFIX.length)) ?? [];
  if (version !== "1") return { skipped: "other-version" };
  if (!KINDS.has(kind)) return { skipped: "unknown-kind" };
  return checked(content, kind) ?? { skipped: "wrong-type" };
}

function checked(content, kind) {
  const { id, source, subject, time, data } = content;
  if (![id, source, subject].every(isKey) || !isTime(time) || !isObject(data)) return null;
  if (!isObject(data.vm) || !isText(data.message) || !isKey(data.severity)) return null;
  if (![data.vm.name, data.event_id].every((value) => value == null || value === "" || isKey(value))) return null;
  const summary = CLOSING.includes(kind) ? summaryOf(data.summary) : null;
  if (summary === undefined) return null;
  const [azure, earlier] = [data.event, data.last_readable].map((value) => (isObject(value) ? value : {}));
  const { EventType: type } = data.event_id ? { ...azure, ...earlier } : {}; // last valid values replace invalid ones
  return {
    id,
    source,
    kind,
    time,
    event_id: data.event_id ? lower(data.event_id) : null,
    event_type: isKey(type) ? type : null,
    vm: data.vm.name || source,
    severity: data.severity,
    message: data.message,
    summary,
  };
}

/** Return the known members of a summary, which become part of the line; undefined if one has the wrong type. */
function summaryOf(given) {
  if (!isObject(given)) return undefined;
  const found = {};
  for (const [name, isRight] of Object.entries(SUMMARY)) {
    const value = Object.hasOwn(given, name) ? given[name] : null;
    if (value !== null && !isRight(value)) return undefined;
    found[name] = value;
  }
  return found;
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value, most = MAX_TEXT) {
  return typeof value === "string" && value.length > 0 && value.length <= most;
}

function isKey(value) {
  return isText(value, MAX_KEY);
}

/** Return whether the value is RFC 3339, with date, time, and zone. */
function isTime(value) {
  const form = /^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/;
  return typeof value === "string" && form.test(value) && !Number.isNaN(Date.parse(value));
}

function isNumber(value) {
  return typeof value === "number" && Math.abs(value) < MAX_NUMBER;
}

function isInteger(value) {
  return Number.isSafeInteger(value);
}

function isWords(value) {
  return Array.isArray(value) && value.length <= MAX_WORDS && value.every(isKey);
}
