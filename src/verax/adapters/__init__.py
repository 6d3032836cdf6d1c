"""Adapters: a framework's messages turned into replies and back; what is paid is decided in `federation`."""
