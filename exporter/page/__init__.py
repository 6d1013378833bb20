"""What the agent knows at one moment, for machines (`/api/v1/status`) and for people (the landing page).

Imports `core` and `text`; the web server and the agent hand it a status and send what it returns.
Begin with `status.status_value`: it turns a status into one JSON value, with the verdict that `sentences` makes of it.
`view.render_page` makes the page of that value alone, laid out by `page.html`.
"""
