"""Connections: how many one address may have, and how long one may say nothing that is a request.

What a whole request may do is decided in `gate`. What never becomes one is not seen there: connections that say
nothing, or a header a minute, would take every place there is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from verax.service.gate import network

SECONDS = 20.0  # in which the head of a request must have come
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: text/plain\r\n"
    b"content-length: 65\r\n\r\ntoo many connections from one address; close some, and try again\n"
)


def limited(most: int, seconds: float = SECONDS) -> type[asyncio.Protocol]:
    """The server's protocol, with at most so many connections of one address; 0 for as many as come.

    >>> issubclass(limited(100), AutoHTTPProtocol)
    True
    """
    there: Counter[str] = Counter()

    class Limited(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        """A connection that is counted, and closed where no request comes."""

        _from: str | None = None
        _waits: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            where = network((self.client or ("nobody", 0))[0])
            if most and there[where] >= most:
                transport.write(_TOO_MANY)
                transport.close()
                return
            there[where] += 1
            self._from = where
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            if self._from is not None:
                there[self._from] -= 1
                if not there[self._from]:
                    del there[self._from]
                self._from = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_idle:
                self._wait()  # for the rest of a head; what comes of it gives no more time
            else:
                self._stop()

        @property
        def _is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _wait(self) -> None:
            if self._waits is None:
                self._waits = self.loop.call_later(seconds, self._give_up)

        def _stop(self) -> None:
            if self._waits is not None:
                self._waits.cancel()
                self._waits = None

        def _give_up(self) -> None:
            self._waits = None
            if self._is_idle and not self.transport.is_closing():
                self.transport.close()

    return Limited
