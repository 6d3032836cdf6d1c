"""Clients teach a small language model where creatures live, and are paid for what their texts taught it."""
