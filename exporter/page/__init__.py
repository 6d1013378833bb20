"""The landing page: this VM, what is coming and when, what was decided and why.

Imports `core` and `text`; the web server and the agent hand it a status and send what it returns.
Begin with `view.render_page`: it turns a status into plain values (`view`, `sentences`), which `page.html` lays out.
"""
