"""The agent's state at one moment: as JSON for programs (`/api/v1/status`), and as the human-readable landing page.

Imports `core` and `text`; the web server and the agent pass a status and send the result.
Begin with `status.status_value`: it turns a status into a JSON value, with a verdict from `sentences`.
`view.render_page` renders the page from this value only, with the template `page.html`.
"""
