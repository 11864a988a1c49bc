"""What the NameServer and the broker share as HTTP services.

Imported by servers only: it needs the `server` extra (FastAPI, uvicorn), which a
producer, a consumer and a Spark executor do not have.
"""
