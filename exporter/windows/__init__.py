"""Windows only: access lists, console events, clock rates, boot ids, the service manager, and the Event Log.

Imports the standard library and pywin32, which no other package imports, and no other package of this program. Each
module can be imported on every system: functions import pywin32 when they're called. Start with `access`.
"""
