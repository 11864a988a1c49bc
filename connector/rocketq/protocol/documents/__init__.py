"""The JSON documents that cross the wire, a file for each capability."""
