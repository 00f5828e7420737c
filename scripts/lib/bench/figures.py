"""Samples of seconds and how they are shown."""

import json
import os
import pathlib
import sys
import time

RESULTS = pathlib.Path(__file__).resolve().parents[3] / "docs/results.md"
SUMMARY_HEAD = ["samples", "median", "95 %", "maximum"]
WRITES = "Without --quick the table in docs/results.md is written anew."


def quantile(values, q):
    """Nearest rank; None when there are none."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * q)] if ordered else None


def summary(values_s):
    """Median, 95 % and maximum, seconds, and how many there are."""
    return {
        "n": len(values_s),
        "p50_s": rounded(quantile(values_s, 0.5)),
        "p95_s": rounded(quantile(values_s, 0.95)),
        "max_s": rounded(quantile(values_s, 1.0)),
    }


def rounded(number):
    return None if number is None else round(number, 3)


def table(head, rows):
    """Lines of a Markdown table."""
    lines = ["| {} |".format(" | ".join(head)), "|" + "---|" * len(head)]
    return lines + ["| {} |".format(" | ".join(row)) for row in rows]


def cells(shown):
    """A summary's cells."""
    numbers = [shown[name] for name in ("p50_s", "p95_s", "max_s")]
    return [str(shown["n"])] + ["-" if n is None else "{:.2f}".format(n) for n in numbers]


def write_json(shown, path):
    """What is shown, as JSON, when a path is given."""
    if path:
        with open(path, "w") as file:
            json.dump(shown, file, indent=2)
            file.write("\n")


def machine():
    """What the figures depend on."""
    return "{} cores, load {:.1f} at the start".format(os.cpu_count(), os.getloadavg()[0])


def show(command, lines, quick):
    """Prints the lines; those of a full run go into docs/results.md as well."""
    if quick:
        print("\n".join(lines))
    else:
        write_section(command, lines)


def write_section(command, lines):
    """Puts the lines between the marks of `command` in docs/results.md, and prints them."""
    begin, end = ("<!-- {}: {} -->".format(edge, command) for edge in ("begin", "end"))
    section = "\n".join([begin, *lines, end])
    print(section)
    text = RESULTS.read_text(encoding="utf-8")
    if text.count(begin) != 1 or end not in text.split(begin)[1]:
        sys.exit("{}: write the lines {} and {} where the table belongs".format(RESULTS, begin, end))
    head, rest = text.split(begin)
    RESULTS.write_text(head + section + rest.split(end, 1)[1], encoding="utf-8")


class Progress:
    """Lines on standard error: what is being measured, since when."""

    def __init__(self, name):
        self.name = name
        self.began_s = time.monotonic()

    def say(self, text):
        passed_s = time.monotonic() - self.began_s
        print("{}: {:4.0f} s  {}".format(self.name, passed_s, text), file=sys.stderr, flush=True)
