# Aliases of dev.py, which works without make as well: python3 dev.py help
PYTHON ?= $(firstword $(shell command -v python3 python3.14 python3.13 python3.12 python3.11 2>/dev/null) python3)

.PHONY: help setup demo test test-slow check bench bench-peers docs notebook pages
help setup demo test test-slow check bench bench-peers docs notebook pages:
	@$(PYTHON) dev.py $@ $(ARGS)
