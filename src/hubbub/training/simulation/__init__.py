"""Clients in one process: what each does, one by one or in stacks."""
