"""The calls of idle workers in a separate process: `python -m bench.idle_workers URL WORKERS TOKENS`."""

import asyncio
import json
import resource
import sys
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import urlsplit

from moerge_proto.demands import LONGEST_WAIT

_AT_ONCE = 20  # first calls


async def _worker(url: str, token: str, expert: str, first: asyncio.Semaphore, waits: asyncio.Semaphore) -> None:
    """One connection, on which call follows call; `waits` is released after the first answer."""
    place = urlsplit(url)
    async with first:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        tag = await _demands(reader, writer, place.netloc, token, f"expert={expert}")
    waits.release()
    while True:
        query = f"expert={expert}&seen={tag}&wait_s={LONGEST_WAIT}"
        tag = await _demands(reader, writer, place.netloc, token, query)


async def _demands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, token: str, query: str
) -> str:
    """The tag of the answer to one call."""
    lines = (f"GET /v1/demands?{query} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}")
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    [length] = [line for line in head.splitlines() if line.startswith("content-length:")]
    content = await reader.readexactly(int(length.partition(":")[2]))
    if " 200 " not in head.splitlines()[0]:
        raise RuntimeError(f"{head}{content.decode()}")
    return str(json.loads(content)["tag"])


async def _run(url: str, workers: int, tokens: list[str]) -> None:
    first, waits = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for number, token in enumerate(islice(cycle(tokens), workers)):
            group.create_task(_worker(url, token, f"{number:064x}", first, waits))
        for _ in range(workers):
            await waits.acquire()
        print("all wait", flush=True)


def main() -> None:
    url, workers, tokens = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(url, int(workers), Path(tokens).read_text().split()))


if __name__ == "__main__":
    main()
