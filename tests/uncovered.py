"""Lists the lines of the library that no test has run: `python -m tests.uncovered`, after tests under `coverage`.

See `docs/contributing.md` for how to measure. The exit code is 1 if less than 95 % of the lines were run.
"""

import sys
from pathlib import Path

import coverage

ROOT = Path(__file__).parent.parent
LEAST_SHARE = 0.95


def ranges(lines: list[int]) -> str:
    """Line numbers with neighbours joined: 3-5, 9."""
    joined: list[list[int]] = []
    for line in lines:
        if joined and line == joined[-1][1] + 1:
            joined[-1][1] = line
        else:
            joined.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in joined)


def main() -> None:
    """Run the program."""
    data = coverage.Coverage(data_file=str(ROOT / ".coverage"), config_file=str(ROOT / "pyproject.toml"))
    data.load()
    num_lines = num_missing = 0
    for path in sorted((ROOT / "pyro_bnn").rglob("*.py")):
        _, lines, _, missing, _ = data.analysis2(str(path))
        num_lines, num_missing = num_lines + len(lines), num_missing + len(missing)
        if missing:
            print(f"{path.relative_to(ROOT)}: {ranges(missing)}")
            text = path.read_text().splitlines()
            print("".join(f"  {line:4d} {text[line - 1]}\n" for line in missing), end="")
    share = 1 - num_missing / num_lines
    print(f"{num_lines - num_missing} of {num_lines} lines were run: {share:.1%}")
    sys.exit(share < LEAST_SHARE)


if __name__ == "__main__":
    main()
