"""A terminal for a test: what a process writes to it, as a person would see it, line by line.

    with Terminal() as terminal:
        process = subprocess.Popen(argv, stdout=terminal.fd, stderr=terminal.fd, env=os.environ | terminal.env)
        terminal.wait_for(r"worker:1 +silent", 60, process)
        terminal.text                       # all lines that were ever on it; those that were redrawn, as they are now

It knows what the launcher writes: text, carriage returns, line feeds, cursor up, erase to the end, colours. Anything else fails.
"""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import termios
import threading
import time

_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Terminal:
    """`columns` by `lines`; longer lines are not broken, as none that is redrawn is longer."""

    env = {"TERM": "xterm", "NO_COLOR": "", "CI": "", "PYTHONIOENCODING": "utf-8"}

    def __init__(self, columns=100, lines=24):
        self._ours, self.fd = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._lines, self._row, self._column = [""], 0, 0
        self._decoder, self._rest = codecs.getincrementaldecoder("utf-8")(), ""
        self.strange = []  # sequences that are not known here
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in list(self._lines))

    def wait_for(self, pattern, secs, process):
        """The match of a pattern on the screen; fails if the process has ended without."""
        deadline = time.monotonic() + secs
        while not (found := re.search(pattern, self.text)):
            has_ended = process.poll() is not None
            time.sleep(0.05)
            assert not has_ended or re.search(pattern, self.text), f"ended without {pattern!r}\n{self.text}"
            assert time.monotonic() < deadline, f"no {pattern!r} in {secs} s\n{self.text}"
        return found

    def _read(self):
        while not self._is_closed:
            with contextlib.suppress(OSError):
                if select.select([self._ours], [], [], 0.1)[0]:
                    self._write(self._decoder.decode(os.read(self._ours, 65536)))

    def _write(self, text):
        text, self._rest = self._rest + text, ""
        while text:
            found = _SEQUENCE.match(text)
            if text[0] == "\x1b" and not found:
                self._rest = text  # the rest of it is to come
                return
            if found:
                self._obey(found)
                text = text[found.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _obey(self, found):
        if found[2] == "A":
            self._row -= int(found[1] or 1)
        elif found[2] == "J" and found[1] in ("", "0"):
            self._lines[self._row :] = [self._lines[self._row][: self._column]]
        elif found[2] != "m":
            self.strange.append(found[0])

    def _put(self, char):
        if char == "\r":
            self._column = 0
        elif char == "\n":  # the terminal's driver has put a carriage return before it
            self._row += 1
            self._lines += [""] * (self._row + 1 - len(self._lines))
        else:
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._is_closed = True
        self._thread.join(5)
        os.close(self.fd)
        os.close(self._ours)
