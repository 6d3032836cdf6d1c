"""The service: rounds over HTTP, for people who share no disk. It asks `Rounds` and decides nothing of its own."""
