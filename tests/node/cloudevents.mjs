// Reads messages as the strict reader of npm's cloudevents does, and prints what it understood. Standard input: JSON
// lines, each `{"contentType": …, "body": …}` as it arrives at Event Hubs.
import { readFileSync } from "node:fs";
import { CloudEvent, HTTP } from "cloudevents";

for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const { contentType, body } = JSON.parse(line);
  // The JSON format of CloudEvents is one for all protocols; this package brings HTTP's, and no AMQP's.
  const read = HTTP.toEvent({ headers: { "content-type": contentType }, body });
  const event = new CloudEvent({ ...read }, true);
  event.validate();
  console.log(JSON.stringify(event));
}
