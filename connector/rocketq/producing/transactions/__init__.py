"""Transactional messages: half sends, decisions and checks."""
