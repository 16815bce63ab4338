"""The page: problems first, then this daemon, its readers and its data, in a frame that refreshes it."""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final

from synrepl.html.humanize import at, span
from synrepl.html.markup import LOOK, Markup, element
from synrepl.transports.http.status_page.about import errors, log, state, upstream
from synrepl.transports.http.status_page.contents import epoch_starts, files, recent, streams
from synrepl.transports.http.status_page.readers import followers, leases, replicas
from synrepl.transports.http.status_page.sources import heard_from, stuck, tables, unfinished

__all__ = ["POLICY", "page"]

STYLE: Final = (
    LOOK
    + """\
h2{font-size:.95rem;margin:0 0 .5rem}
ul.errors{list-style:none;padding:0;margin:.75rem 0 0}
ul.errors li{background:var(--badbg);border-left:4px solid var(--bad);border-radius:4px;padding:.5rem .75rem;
margin:.4rem 0;font-weight:600}ul.errors li span{font-weight:400;color:var(--soft)}
ul.errors.busy li{background:var(--busybg);border-color:var(--busy)}
.lost{display:none;background:var(--busybg);border-left:4px solid var(--busy);padding:.5rem .75rem;
border-radius:4px;font-weight:600}.old .lost{display:block}
.old main{opacity:.55}
main{display:flex;flex-wrap:wrap;gap:1rem;margin-top:1rem}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1rem;min-width:0;
flex:1 1 22rem;max-width:100%}
section.wide{flex-basis:100%}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.15rem 1rem;margin:0}
.dim{color:var(--soft)}
.mark[title],span[title]{
text-decoration:underline dotted from-font;text-underline-offset:.2em;text-decoration-color:var(--line)}
.slim{overflow-x:auto}th{color:var(--soft);font-weight:500;font-size:.87rem}
td.name{font-weight:600}td progress{width:8rem;margin-right:.5rem}
progress{appearance:none;-webkit-appearance:none;width:100%;max-width:16rem;height:.6rem;border:0;
border-radius:99px;background:var(--line);vertical-align:middle;overflow:hidden}
progress::-webkit-progress-bar{background:var(--line)}progress::-webkit-progress-value{background:var(--bar)}
progress::-moz-progress-bar{background:var(--bar)}
progress.bad::-webkit-progress-value{background:var(--bad)}progress.bad::-moz-progress-bar{background:var(--bad)}
progress.join{max-width:none;height:.9rem;margin:.5rem 0 .25rem}
details{border-top:1px solid var(--line);padding:.25rem 0}
summary span{color:var(--soft)}details table{margin:.25rem 0 .5rem}
footer{padding:1rem;color:var(--soft);font-size:.87rem}
@media(max-width:46rem){section{padding:.75rem}
.cards thead{position:absolute;clip-path:inset(50%);height:1px;width:1px;overflow:hidden}
.cards,.cards tbody,.cards tr{display:block}.cards tbody tr{padding:.4rem 0}
.cards td{display:grid;grid-template-columns:7rem minmax(0,1fr);gap:.5rem;padding:.08rem 0}
.cards td.name{display:block}.cards td.number{text-align:left}.cards td:empty{display:none}
.cards td:not(.name)::before{content:attr(data-label);color:var(--soft);font-size:.87rem}
.slim td,.slim th{padding-right:.7rem;white-space:nowrap}
dl{grid-template-columns:7rem minmax(0,1fr);gap:.15rem .5rem}}
"""
)

# Fetches the page again and replaces the body. Folded parts stay as they are, and a selection stops the
# refresh. Without a response the page says so: an old page must not look current.
SCRIPT: Final = """\
const root=document.documentElement;
async function again(){
  if(!document.hidden&&String(getSelection())==="")try{
    const answer=await fetch(location.href,{cache:"no-store",signal:AbortSignal.timeout(5000)});
    if(!answer.ok)throw 0;
    const fresh=new DOMParser().parseFromString(await answer.text(),"text/html");
    for(const one of fresh.querySelectorAll("details")){
      const here=document.getElementById(one.id);if(here)one.open=here.open}
    document.title=fresh.title;document.body.replaceChildren(...fresh.body.childNodes);
    root.classList.remove("old")
  }catch{root.classList.add("old")}
  setTimeout(again,2000)}
setTimeout(again,2000);
"""


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
).encode()
"""The content policy: this style, this script, and requests to the same daemon."""

HEAD: Final = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width,initial-scale=1">'
    '<noscript><meta http-equiv="refresh" content="5"></noscript>'
    '<link rel="icon" href="data:,">'
)


def _shell(title: str, body: str) -> str:
    """Render the document."""
    return (
        f"{HEAD}<title>{escape(title)}</title><style>{STYLE}</style><script>{SCRIPT}</script></head>"
        f"<body>{body}</body></html>\n"
    )


def page(status: Mapping[str, Any], now: float) -> bytes:
    """Render a status from `build_status` at a time in Unix seconds."""
    title = f"{status['instance']} of {status['server_name']}"
    title = f"{status['name']} ({title})" if status.get("name") else title
    header = element(
        "header",
        Markup(
            element("h1", f"synrepl · {title}")
            + state(status)
            + element(
                "p", "No response from this daemon: this page is out of date.", class_="lost", role="status"
            )
            + errors(status, now)
        ),
    )
    main = element(
        "main",
        Markup(
            log(status, now)
            + upstream(status, now)
            + files(status, now)
            + epoch_starts(status, now)
            + replicas(status, now)
            + leases(status, now)
            + stuck(status)
            + heard_from(status)
            + followers(status)
            + tables(status)
            + unfinished(status)
            + streams(status)
            + recent(status, now)
        ),
    )
    footer = f"synrepl {status['version']}, up for {span(status['uptime_seconds'])}; as of {at(now * 1000)}"
    document = _shell(f"{status['state']}: {title}", header + main + element("footer", footer))
    return document.encode("utf-8", "replace")
