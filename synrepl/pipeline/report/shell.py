"""HTML shell of the page, self-contained."""

from html import escape
from typing import Final

from synrepl.html.markup import Markup
from synrepl.html.theme import LOOK
from synrepl.pipeline.report.style import colors_css

__all__ = ["shell"]

STYLE: Final = (
    LOOK
    + """\
h2{font-size:1.15rem;margin:0 0 .35rem}h3{font-size:.95rem;margin:1.4rem 0 .25rem}
a{color:var(--bar)}
.state.dim{color:var(--soft)}
ul.findings{list-style:none;padding:0;margin:.75rem 0 0}
ul.findings li{border-left:4px solid var(--line);background:var(--card);border-radius:4px;
padding:.4rem .75rem;margin:.35rem 0;font-weight:600}
ul.findings li span{font-weight:400;color:var(--soft)}ul.findings a{color:inherit;
text-decoration-color:var(--soft);text-underline-offset:.2em}
ul.findings li.bad{background:var(--badbg);border-color:var(--bad)}
ul.findings li.busy{background:var(--busybg);border-color:var(--busy)}
ul.findings li.good{background:var(--goodbg);border-color:var(--good)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1rem 0 0}
.figures div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.55rem .85rem}
.figures b{display:block;font-size:1.4rem;line-height:1.25;font-variant-numeric:tabular-nums}
.figures span{color:var(--soft);font-size:.87rem}
nav{margin:1rem 0 0;font-size:.93rem}nav a{margin-right:1rem;white-space:nowrap}
main{margin-top:1rem}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem;
margin:0 0 1rem;min-width:0}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.15rem 1rem;margin:.3rem 0}
.dim,.note,.files,figcaption{color:var(--soft)}.note{max-width:62rem}.files,figcaption{font-size:.87rem}
figure{margin:.9rem 0 .25rem}figure svg{width:100%;height:auto;display:block}
figure svg.narrow{display:none}
svg.spark{width:7.5rem;height:1.5rem;display:block}svg.spark path{fill:var(--bar)}
td:last-child,th:last-child{padding-right:0}
th{overflow-wrap:normal}td.number{white-space:nowrap}td:first-child{min-width:7rem}
.slim{overflow-x:auto;margin-top:.35rem}th{color:var(--soft);font-weight:500;font-size:.87rem;
vertical-align:bottom}
td:first-child{font-weight:600}
details{border-top:1px solid var(--line);padding:.35rem 0;margin-top:.6rem}
ul.names{columns:16rem;padding-left:1.1rem;margin:.3rem 0}
footer{padding:0 1rem 1.5rem;color:var(--soft);font-size:.87rem}
@media(max-width:46rem){section{padding:.75rem}figure svg.wide{display:none}
figure svg.narrow{display:block}.slim td,.slim th{padding-right:.7rem}
.state small{display:block;line-height:1.4}
.slim td{white-space:nowrap}.slim td:first-child{white-space:normal;max-width:11rem}
.slim th{min-width:3.2rem}td:first-child{min-width:8rem}
.figures{grid-template-columns:repeat(2,minmax(0,1fr));gap:.5rem}.figures b{font-size:1.15rem}
dl{grid-template-columns:6.5rem minmax(0,1fr);gap:.15rem .5rem}}
@media print{body{background:none}section{break-inside:avoid-page;border:0;padding:0}nav{display:none}}
"""
)

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The policy forbids all requests, whatever names the page contains. Plots are styled inline."""

HEAD: Final = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
)


def shell(title: str, body: Markup) -> str:
    """Render the whole page."""
    return (
        f"{HEAD}<title>{escape(title)}</title><style>{STYLE}{colors_css()}</style></head>"
        f"<body>{body}</body></html>\n"
    )
