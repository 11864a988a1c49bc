"""The command `rocketq`.

Its modules import click and the standard library only; the client, Arrow and Spark
are loaded by the command that needs them, so `rocketq --help` is there at once.
"""
