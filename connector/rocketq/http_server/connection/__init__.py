"""One HTTP connection: uvicorn's protocol class with deadlines, limits and small calls."""
