"""Questions and changes that concern the whole cluster: every master is asked. The CLI stands on this."""
