"""The agent's process: `python -m rankclock.agent CONFIG`. Light: no YAML reader, no validator, no numpy.

`rankclock agent` replaces itself by this one.
"""

from __future__ import annotations

import asyncio
import sys

from rankclock.agent.service import Service, read_settings
from rankclock.agent.settings import Settings
from rankclock.errors import ExitCode, RankclockError


def main(arguments: list[str]) -> int:
    """Run until ended; the exit code."""
    config = arguments[0] if arguments else ""
    try:
        settings = read_settings(config) if config else Settings.here()
        asyncio.run(_run(settings, config))
    except RankclockError as error:
        sys.stderr.write(f"rankclock: {error}\n")
        return int(error.exit_code)
    return int(ExitCode.OK)


async def _run(settings: Settings, config: str) -> None:
    await Service(settings, config=config).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
