"""Questions to, and changes of, a whole cluster. The command line stands on this; a console can too."""
