# shellcheck shell=bash
# Sourced by the other scripts. Afterwards `synrepl_setup [EXTRA ...]` makes the checkout's own virtual environment, or
# finds that it is up to date, and $ROOT and $VENV say where things are. EXTRA is one of setup.py's (default: test);
# an empty one asks for what the daemon needs and no more. Extras that are there stay.
#
#   SYNREPL_PYTHON   the Python to make it with (3.11 or later); otherwise the first one found

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$ROOT/.venv

_say() { printf '%s\n' "$*" >&2; }

# A Python that is new enough and able to make environments (some systems ship one without ensurepip).
_usable_python() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

synrepl_find_python() {
    local candidate
    local -a candidates=()
    if [ -n "${SYNREPL_PYTHON:-}" ]; then
        if _usable_python "$SYNREPL_PYTHON"; then
            printf '%s\n' "$SYNREPL_PYTHON"
            return 0
        fi
        _say "SYNREPL_PYTHON=$SYNREPL_PYTHON is no Python 3.11 or later that can make virtual environments."
        return 1
    fi
    candidates=(python3.11 python3.12 python3.13 python3.14 python3 python)
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-9]*/bin/python; do
        [ -x "$candidate" ] && candidates+=("$candidate")
    done
    for candidate in "${candidates[@]}"; do
        if command -v "$candidate" >/dev/null 2>&1 && _usable_python "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    _say "No Python 3.11 or later that can make virtual environments was found."
    _say "Install one (Debian: python3.11 and python3.11-venv; or pyenv, or uv), or name it with SYNREPL_PYTHON=/path/to/python."
    return 1
}

# What the environment must have been made from to be up to date.
_wanted() {
    {
        cat "$ROOT/setup.py"
        sed -n '/^\[project\]/,/^dynamic/p' "$ROOT/pyproject.toml"
        printf '%s\n' "$ROOT"
        "$1" -c 'import sys; print(sys.version)'
    } | cksum
}

# The extras that are installed, if the environment is up to date.
_installed() {
    [ -f "$VENV/.stamp" ] && [ -x "$VENV/bin/python" ] &&
        [ "$(_wanted "$VENV/bin/python" 2>/dev/null)" = "$(head -n 1 "$VENV/.stamp")" ] &&
        tail -n +2 "$VENV/.stamp"
}

_is_current() { # extras
    local installed extra
    installed=$(_installed) || return 1
    for extra in "$@"; do
        case $extra in
            "") continue ;;
            arrow | dev | servers) grep -qx test <<<"$installed" && continue ;; # which has all that these have
        esac
        grep -qx -- "$extra" <<<"$installed" || return 1
    done
}

# uv takes a third of pip's time. It is told where pip looks; where it finds no package all the same, pip does it.
_fetch() { # arguments of pip install
    local python=$VENV/bin/python
    local index=${PIP_INDEX_URL:-$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null)}
    local -a pip=("$python" -m pip install --quiet --disable-pip-version-check)
    local -a uv=("$python" -m uv pip install --quiet --compile-bytecode --python "$python" --native-tls)
    [ -z "${PIP_CONSTRAINT:-}" ] || uv+=(--constraint "$PIP_CONSTRAINT")
    [ -z "$index" ] || uv+=(--default-index "$index")
    "${pip[@]}" uv && "${uv[@]}" "$@" && return 0
    _say "uv did not find everything; pip tries it."
    "${pip[@]}" "$@"
}

_install() { # extras
    local python extras
    _is_current "$@" && return 0 # somebody else made it while we waited
    extras=$({ tail -n +2 "$VENV/.stamp" 2>/dev/null; printf '%s\n' "$@"; } | sed '/^$/d' | sort -u)
    rm -f "$VENV/.stamp"
    if ! { [ -x "$VENV/bin/python" ] && _usable_python "$VENV/bin/python"; }; then
        python=$(synrepl_find_python) || return 1
        _say "Making $VENV with $python ..."
        rm -rf "$VENV"
        "$python" -m venv "$VENV" || return 1
    fi
    _say "Installing synrepl${extras:+[${extras//$'\n'/,}]} and its libraries ..."
    _fetch --editable "$ROOT${extras:+[${extras//$'\n'/,}]}" || return 1
    {
        _wanted "$VENV/bin/python"
        printf '%s\n' "$extras"
    } >"$VENV/.stamp.new" && mv "$VENV/.stamp.new" "$VENV/.stamp"
}

# Two scripts started at once do not install into each other.
synrepl_setup() { # [extras]
    [ $# -gt 0 ] || set -- test
    _is_current "$@" && return 0
    if command -v flock >/dev/null 2>&1; then
        (
            flock 9
            _install "$@"
        ) 9>"$ROOT/.venv.lock"
    else # no flock on macOS; mkdir is atomic everywhere
        until mkdir "$ROOT/.venv.lock.d" 2>/dev/null; do sleep 1; done
        (
            trap 'rmdir "$ROOT/.venv.lock.d"' EXIT
            _install "$@"
        )
    fi
}
