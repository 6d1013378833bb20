"""The smallest program that approves events, for comparison: `python -m benchmarks.baseline URL INTERVAL_SECONDS`.

It reads the document with `http.client`, parses it, and approves every Scheduled event once. It doesn't check, store,
or report anything.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from urllib.parse import urlsplit

PATH = "/metadata/scheduledevents?api-version=2020-07-01"
HEADERS = {"Metadata": "true"}


def main() -> None:
    address, interval = urlsplit(sys.argv[1]), float(sys.argv[2])
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    approved: set[str] = set()
    while True:
        connection.request("GET", PATH, headers=HEADERS)
        for event in json.loads(connection.getresponse().read())["Events"]:
            if event["EventStatus"] != "Scheduled" or event["EventId"] in approved:
                continue
            body = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
            connection.request("POST", PATH, body, HEADERS)
            connection.getresponse().read()
            approved.add(event["EventId"])
        time.sleep(interval)


if __name__ == "__main__":
    main()
