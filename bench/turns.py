#!/usr/bin/env python3
"""Benchmark programs that take turns, each one process for all rounds: so torch.compile compiles once.

usage: bench/turns.py ROUNDS PROGRAM [ARG...] --- PROGRAM [ARG...] [--- ...]

Prints the lines of the rounds. A side that fails is named on standard error with the end of what it said, and the
others go on; so a round has the same sides, in this order in one round and backwards in the next. Ends with 1 if one
failed, with 2 if none was left.
"""
import os
import subprocess
import sys
import tempfile


class Side:
    """A program that waits for a line before each round (bench_round() in bench.h)."""

    def __init__(self, command, rounds):
        self.command, self.said, self.over = command, tempfile.TemporaryFile("w+"), False
        self.process = subprocess.Popen(command + ["--rounds", str(rounds)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.said, text=True)

    def lines(self):
        """Its lines until it is ready for a round, or has ended; None: it failed."""
        lines = []
        for line in self.process.stdout:
            if line.startswith("# ready"):
                return lines
            lines.append(line)
        self.over = True
        return None if self.process.wait() else lines

    def begin(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # lines() says so

    def why(self):
        self.said.seek(0)
        text = self.said.read().strip().splitlines()
        return f"{' '.join(map(os.path.basename, self.command[:2]))}: {text[-1] if text else 'said nothing'}"

    def notes(self):
        self.said.seek(0)
        return [line for line in self.said if line.startswith("# ")]


def main():
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1:
        sys.stderr.write(__doc__ if sys.argv[1:2] == ["--help"] else "turns.py: want ROUNDS and programs (see --help)\n")
        sys.exit(2)
    rounds, commands = int(sys.argv[1]), [[]]
    for word in sys.argv[2:]:
        if word == "---":
            commands.append([])
        else:
            commands[-1].append(word)
    failed, sides = False, []

    def hear(side):
        nonlocal failed
        lines = side.lines()
        if lines is not None:
            print("".join(lines), end="", flush=True)
            return True
        failed = True
        sys.stderr.write(f"turns.py: failed: {side.why()}\n")
        return False

    for command in commands:  # one after the other: the first writes the weights
        side = Side(command, rounds)
        if hear(side):
            sides.append(side)
    for number in range(rounds):
        order = sides if number % 2 == 0 else sides[::-1]
        for side in order:
            side.begin()
            if not hear(side):
                sides = [s for s in sides if s is not side]
    for side in sides:
        sys.stderr.write("".join(side.notes()))
    sys.exit(2 if not sides else failed)


if __name__ == "__main__":
    main()
