"""Single messages gathered into batches: `submit` and its futures."""
