"""The frame of a report: head, style, verdicts, contents."""

from collections.abc import Sequence
from html import escape
from string import Template

from .html import plain
from .numbers import plural
from .section import Level, Section, Verdict

__all__ = ["page"]

WORDS: dict[Level, str] = {"good": "Good", "note": "Note", "problem": "Problem"}
SIGNS: dict[Level, str] = {"good": "✓", "note": "!", "problem": "✗"}

STYLE = """
:root { color-scheme: light; --ink: #1c2430; --soft: #566070; --line: #d9dee5; --paper: #fff; --tint: #f5f7fa;
  --accent: #1f5fa8; --good: #1a6b3c; --note: #8a5800; --problem: #a81f2d; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 2.75rem 0 .75rem; padding-bottom: .3rem; border-bottom: 2px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
p { max-width: 46rem; margin: .6rem 0; }
.soft { color: var(--soft); margin-top: 0; }
.headline { font-size: 1.2rem; font-weight: 600; margin: 1.25rem 0 .5rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; background: var(--tint); }
.tile dt { font-size: .85rem; color: var(--soft); }
.tile .value { margin: 0; font-size: 1.6rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile .remark { margin: 0; font-size: .8rem; color: var(--soft); line-height: 1.35; }
ul.verdicts { list-style: none; margin: .5rem 0 1rem; padding: 0; max-width: 56rem; }
ul.verdicts li { display: grid; grid-template-columns: 6.2rem 1fr; gap: .75rem; padding: .45rem 0;
  border-bottom: 1px solid var(--line); align-items: baseline; }
.level { font-size: .8rem; font-weight: 650; border: 1px solid currentColor; border-radius: 1rem; padding: .05rem .6rem;
  text-align: center; white-space: nowrap; }
.good { color: var(--good); } .note { color: var(--note); } .problem { color: var(--problem); }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; list-style: none; padding: 0; margin: 1rem 0; }
a { color: var(--accent); }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 18rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
caption span { display: block; max-width: calc(100vw - 2rem); }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child { text-align: left; font-weight: 500; }
thead th, thead th:first-child { color: var(--soft); font-weight: 600; }
td, thead th { white-space: nowrap; }
table.words td, table.words th { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem; }
figure { margin: .5rem 0; max-width: 34rem; } figure img { width: 100%; height: auto; display: block; }
figcaption { font-size: .85rem; color: var(--soft); }
.groups { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 2rem; }
.cards { display: grid; grid-template-columns: 1fr; gap: .75rem; }
.card { display: grid; grid-template-columns: 6.5rem 1fr; gap: .9rem; border: 1px solid var(--line);
  border-radius: .5rem; padding: .6rem; font-size: .85rem; }
.card p { margin: 0 0 .3rem; line-height: 1.4; } .pixels { width: 6.5rem; height: 6.5rem; image-rendering: pixelated; }
ul.votes { list-style: none; margin: 0; padding: 0; }
ul.votes li { display: grid; grid-template-columns: 5.6rem 1fr 3rem; gap: .4rem; align-items: center; }
.bar { height: .65rem; background: linear-gradient(var(--accent), var(--accent)) no-repeat left /
  calc(100% * var(--share)) 100% var(--tint); print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.number { text-align: right; } .name { overflow-wrap: anywhere; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--accent); }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: .4rem; padding: .8rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 30rem) { h1 { font-size: 1.5rem; } ul.verdicts li { grid-template-columns: 1fr; gap: .2rem; }
  table { font-size: .8rem; min-width: 0; } th, td { padding-right: .5rem; } thead th { white-space: normal; }
  tbody th { min-width: 4.2rem; } .level { justify-self: start; }
  .tiles { grid-template-columns: 1fr 1fr; } .tile .value { font-size: 1.3rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; } h2 { break-after: avoid; }
  figure, .card, tr, .tile { break-inside: avoid; } .wide { overflow: visible; } }
"""

PAGE = Template(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="pyro_bnn">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
<p class="soft">$subtitle</p>
<p class="headline">$headline</p>
$verdicts
$tiles
<nav aria-label="Contents"><ul>$contents</ul></nav>
</header>
<main>
$sections
</main>
<footer><p>$footer</p></footer>
</body>
</html>
"""
)


def page(title: str, subtitle: str, sections: Sequence[Section], *, footer: str) -> str:
    """A whole HTML page, which needs nothing else: no other file, no network and no script.

    Args:
        title: Its heading.
        subtitle: The line below.
        sections: Its parts.
        footer: Its last line.
    """
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    tiles = "".join(
        f'<div class="tile"><dt>{escape(tile.name)}</dt><dd class="value">{plain(tile.value)}</dd>'
        f'<dd class="remark">{plain(tile.remark)}</dd></div>'
        for section in sections
        for tile in section.tiles
    )
    return PAGE.substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        style=STYLE,
        headline=escape(headline(verdicts)),
        verdicts=f'<ul class="verdicts">{"".join(map(_item, verdicts))}</ul>',
        tiles=f'<dl class="tiles">{tiles}</dl>' if tiles else "",
        contents="".join(f'<li><a href="#{_anchor(s)}">{escape(s.title)}</a></li>' for s in sections),
        sections="\n".join(
            f'<section aria-labelledby="{_anchor(s)}"><h2 id="{_anchor(s)}">{escape(s.title)}</h2>{s.body}</section>'
            for s in sections
        ),
        footer=plain(footer),
    )


def headline(verdicts: Sequence[Verdict]) -> str:
    """All verdicts in one line."""
    number = {level: sum(verdict.level == level for verdict in verdicts) for level in WORDS}
    if number["problem"]:
        more = f" and {plural(number['note'], 'reservation')}" if number["note"] else ""
        return f"Not to be relied on as it is: {plural(number['problem'], 'problem')}{more}."
    if number["note"]:
        return f"No problem was found; {plural(number['note'], 'reservation')}."
    return "No problem was found, and there is no reservation."


def _item(verdict: Verdict) -> str:
    sign = f'<span aria-hidden="true">{SIGNS[verdict.level]}</span>'
    return (
        f'<li><span class="level {verdict.level}">{sign} {WORDS[verdict.level]}</span>'
        f"<span>{plain(verdict.text)}</span></li>"
    )


def _anchor(section: Section) -> str:
    return section.title.lower().replace(" ", "-")
