"""What the store's tests stand on: a disk that can fail, a driver, and a ledger of what was promised."""
