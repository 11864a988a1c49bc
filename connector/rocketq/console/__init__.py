"""The console: web pages on which an operator sees one cluster, and where allowed changes it."""
