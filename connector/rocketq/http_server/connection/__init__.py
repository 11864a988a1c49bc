"""uvicorn's HTTP protocol class, with deadlines, short calls and large bodies."""
