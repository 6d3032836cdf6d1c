"""Adapters: a framework's messages turned into replies and back; what is checked and paid is decided in `federation`."""
