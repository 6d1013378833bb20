// One message as a fact: everything is checked, whoever may have sent it. Members that are not known are ignored.

export const MAX_BODY = 1 << 20; // bytes; the largest message of Event Hubs' Standard tier
const MAX_TEXT = 4096;
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

/** A to Z in lower case and everything else as it is: ids that differ in no more are the same. */
export const lower = (text) => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());

/** The fact in a message's body (a Buffer), or `{ skipped: reason }`; never throws. */
export function read(body) {
  if (!Buffer.isBuffer(body)) return { skipped: "not-json" };
  if (body.length > MAX_BODY) return { skipped: "too-large" };
  let content;
  try {
    content = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
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
  if (![id, source, subject, time].every(isText) || Number.isNaN(Date.parse(time)) || !isObject(data)) return null;
  if (!isObject(data.vm) || !isText(data.message) || !isText(data.severity)) return null;
  const closing = CLOSING.includes(kind);
  if (closing && !isObject(data.account)) return null;
  return {
    id,
    source,
    kind,
    time,
    event_id: eventId(data, subject),
    event_type: isText(data.event?.EventType) ? data.event.EventType : null,
    vm: isText(data.vm.name) ? data.vm.name : source,
    severity: data.severity,
    message: data.message,
    account: closing ? data.account : null,
  };
}

/** `data.event_id`; in records of former versions the subject, where that is the event's own id. */
function eventId(data, subject) {
  if ("event_id" in data) return isText(data.event_id) ? lower(data.event_id) : null;
  const own = data.event?.EventId;
  return isText(own) && lower(own) === lower(subject) ? lower(subject) : null;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === "string" && value.length > 0 && value.length <= MAX_TEXT;
