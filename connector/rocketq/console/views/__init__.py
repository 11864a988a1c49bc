"""The views: functions of the console and a call, each of which answers a page."""
