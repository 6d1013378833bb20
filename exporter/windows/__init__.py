"""What only Windows has: access lists, console events, clock rates, boot ids, the service manager and the Event Log.

It imports the standard library and pywin32, which is imported nowhere else, and nothing of this package. Each module
can be imported on every system; what needs Windows is imported where it is called. Begin with `access`.
"""
