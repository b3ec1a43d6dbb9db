"""Globs on dotted names."""

import fnmatch


def matches(glob: str, name: str) -> bool:
    """Whether a dotted name matches a glob: `*` is any one component (or part of it), `**` any number of components.

    >>> matches("net.*.weight", "net.0.weight"), matches("net.*.weight", "net.block.0.weight")
    (True, False)
    >>> matches("**.weight", "net.block.0.weight"), matches("**", "net.0.bias")
    (True, True)
    """

    def walk(patterns: list[str], parts: list[str]) -> bool:
        if not patterns:
            return not parts
        if patterns[0] == "**":
            return any(walk(patterns[1:], parts[i:]) for i in range(len(parts) + 1))
        return bool(parts) and fnmatch.fnmatchcase(parts[0], patterns[0]) and walk(patterns[1:], parts[1:])

    return walk(glob.split("."), name.split("."))
