"""Questions to, and changes of, a whole cluster. The command line and the console stand on this."""
