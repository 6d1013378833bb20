// Read messages with the strict reader of npm's cloudevents, and print the result. Standard input: JSON
// lines, each `{"contentType": …, "body": …}` as it arrives at Event Hubs.
import { readFileSync } from "node:fs";
import { CloudEvent, HTTP } from "cloudevents";

for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const { contentType, body } = JSON.parse(line);
  // The JSON format of CloudEvents is the same for all protocols; this package has HTTP's, but not AMQP's.
  const read = HTTP.toEvent({ headers: { "content-type": contentType }, body });
  const event = new CloudEvent({ ...read }, true);
  event.validate();
  console.log(JSON.stringify(event));
}
