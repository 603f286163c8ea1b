"""The history of one rank's clock beside the run: `rankclock-clock.rank<R>.jsonl`, appended line by line.

A restarted process appends a new header. A folder or disk that fails costs the file, never the run: said once, by the
caller, and nothing more is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from rankclock.timebase.clock_record import ClockEvent, ClockHeader, ClockLine
from rankclock.wire.clock_record import encode_header, encode_line, file_name

__all__ = ["ClockFile"]


class ClockFile:
    """One rank's file; opened with the first lines, when its rank is known."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None
        self._broken = False

    def append(self, header: ClockHeader, lines: Sequence[ClockLine]) -> str | None:
        """Write lines; what went wrong, where it did."""
        if self._broken or not lines:
            return None
        try:
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._file = _open(self._directory / file_name(header.rank))
                self._file.write(encode_header(header))
            self._file.write("".join(encode_line(line) for line in lines))
            self._file.flush()
        except OSError as error:
            self._broken = True
            return f"the clock's history cannot be kept in {self._directory}: {error.strerror}"
        return None

    def close(self, last: ClockLine | None) -> None:
        """Write the end and close."""
        if self._file is None:
            return
        try:
            if last is not None and not self._broken:
                self._file.write(encode_line(replace(last, event=ClockEvent.END, detail="")))
            self._file.close()
        except OSError:
            pass  # what could be written is there; the reader forgives a torn last line
        self._file = None


def _open(path: Path) -> IO[str]:
    """For appending, on a line of its own: the process before may have been killed while it wrote."""
    file = path.open("a+", encoding="utf-8")
    if file.tell() > 0:
        with path.open("rb") as before:
            before.seek(-1, 2)
            if before.read(1) != b"\n":
                file.write("\n")
    return file
