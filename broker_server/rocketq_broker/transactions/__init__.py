"""The broker's work for undecided transactions: checks that producers wait for, and parking."""
