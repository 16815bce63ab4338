# shellcheck shell=bash
# Sourced by the scripts that need real Synapse releases to talk to. Each lives in an environment of its own,
# outside the checkout, made by pip from tests/interop/peers/requirements-RELEASE.txt:
#
#   legacy    Synapse 1.0.0     needs Python 3.7
#   current   Synapse 1.66.0    needs Python 3.9 (the last release that speaks the protocol over TCP; over Redis too)
#   newest    Synapse 1.163.2   needs Python 3.12 (it prepares databases, starts on them, and is a whole homeserver)
#   silent    Synapse 1.157.1   needs Python 3.12 (it has a stream that is written and never announced)
#   1.21.2, 1.50.2, 1.85.2, 1.100.0   need Python 3.8 and 3.11 (with the others they read configurations)
#
#   SYNREPL_PEERS            where they are (default: synrepl-peers in the user's cache folder)
#   SYNREPL_PYTHON_LEGACY    the Python 3.7 to make it with (default: pyenv's newest, else python3.7)
#   SYNREPL_PYTHON_CURRENT   the Python 3.9 to make it with (default: pyenv's newest, else python3.9)
#   SYNREPL_PYTHON_NEWEST    the Python 3.12 to make both of its releases with (default: pyenv's newest, else python3.12)
#   SYNREPL_PYTHON_OLD, SYNREPL_PYTHON_BETWEEN   the Pythons 3.8 and 3.11, in the same way

SYNREPL_PEERS=${SYNREPL_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/synrepl-peers}
export SYNREPL_PEERS
_PEERS_SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../tests/interop/peers" && pwd)

synrepl_peer_python() { printf '%s\n' "$SYNREPL_PEERS/synapse-$1/bin/python"; }

_peer_release() { "$(synrepl_peer_python "$1")" -c 'import synapse; print(synapse.__version__)' 2>/dev/null; }

# Made from what is asked for now, and it works.
_peer_is_current() { # peer, release
    [ "$(_peer_release "$1")" = "$2" ] &&
        cmp -s "$_PEERS_SOURCE/requirements-$1.txt" "$SYNREPL_PEERS/synapse-$1/requirements.txt"
}

_peer_find_python() { # version, the variable that names one
    local found
    if [ -n "${!2:-}" ]; then
        printf '%s\n' "${!2}"
        return 0
    fi
    found=$(find "${PYENV_ROOT:-$HOME/.pyenv}/versions" -path "*/versions/$1.*/bin/python" 2>/dev/null | sort -V | tail -n 1)
    [ -n "$found" ] || found=$(command -v "python$1" 2>/dev/null || true)
    if [ -n "$found" ] && "$found" -c 'import ensurepip, venv' 2>/dev/null; then
        printf '%s\n' "$found"
        return 0
    fi
    echo "Python $1 is needed and was not found. Get it with 'pyenv install $1', or name one: $2=/path/to/python$1" >&2
    return 1
}

_peer_facts() { # legacy|current|newest|silent|RELEASE; sets wanted, python, variable and setuptools
    case $1 in
        legacy) wanted=1.0.0 python=3.7 variable=SYNREPL_PYTHON_LEGACY setuptools='setuptools<58' ;;
        current) wanted=1.66.0 python=3.9 variable=SYNREPL_PYTHON_CURRENT setuptools='setuptools<66' ;;
        newest) wanted=1.163.2 python=3.12 variable=SYNREPL_PYTHON_NEWEST setuptools=setuptools ;;
        silent) wanted=1.157.1 python=3.12 variable=SYNREPL_PYTHON_NEWEST setuptools=setuptools ;;
        1.21.2 | 1.50.2) wanted=$1 python=3.8 variable=SYNREPL_PYTHON_OLD setuptools='setuptools<66' ;;
        1.85.2 | 1.100.0) wanted=$1 python=3.11 variable=SYNREPL_PYTHON_BETWEEN setuptools='setuptools<66' ;;
        *)
            echo "there is no peer '$1': say legacy, current, newest, silent, 1.21.2, 1.50.2, 1.85.2 or 1.100.0" >&2
            return 2
            ;;
    esac
}

# Whether it is there, or its Python is to make it with. Says what is missing.
synrepl_peer_is_possible() { # legacy|current|newest|silent
    local wanted setuptools python variable
    _peer_facts "$1" || return
    [ "$(_peer_release "$1")" = "$wanted" ] || _peer_find_python "$python" "$variable" >/dev/null
}

synrepl_peer() { # legacy|current|newest|silent
    local wanted setuptools python variable
    _peer_facts "$1" || return
    _peer_is_current "$1" "$wanted" && return 0
    if [ "$(_peer_release "$1")" = "$wanted" ]; then
        echo "Bringing $SYNREPL_PEERS/synapse-$1 up to date ..." >&2
        python=$(synrepl_peer_python "$1")
    else
        python=$(_peer_find_python "$python" "$variable") || return 1
        echo "Making Synapse $wanted in $SYNREPL_PEERS/synapse-$1 with $python ..." >&2
        mkdir -p "$SYNREPL_PEERS"
        "$python" -m venv --clear "$SYNREPL_PEERS/synapse-$1"
        python=$(synrepl_peer_python "$1")
        "$python" -m pip install --quiet --disable-pip-version-check 'pip<24' "$setuptools" wheel
    fi
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$_PEERS_SOURCE/requirements-$1.txt"
    [ "$(_peer_release "$1")" = "$wanted" ] || {
        echo "Synapse $wanted was installed, but does not import:" >&2
        "$python" -c 'import synapse' >&2
        return 1
    }
    cp "$_PEERS_SOURCE/requirements-$1.txt" "$SYNREPL_PEERS/synapse-$1/requirements.txt"
}
