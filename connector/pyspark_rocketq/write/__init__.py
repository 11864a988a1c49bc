"""The sink: rows become messages, tasks send or stage them, the driver commits."""
