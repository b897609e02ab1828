#!/bin/sh
# Bring a checkout to the point where its commands run, then run one:
#
#   scripts/bootstrap.sh                     Python 3.11+ → .venv with the package and its tools; Java 17+
#   scripts/bootstrap.sh COMMAND [ARG...]    the same, then COMMAND inside .venv
#
# Messages go to standard error only. A second run finds the stamp and costs milliseconds.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
cd "$root"
venv=$root/.venv
log=$venv/bootstrap.log
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1

say() { printf '%s\n' "bootstrap: $*" >&2; }
die() { say "$@"; exit 1; }

# --- the system's packages ------------------------------------------------------------------------------------------

may_install() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# install_first PACKAGE...: install the first of these that the system offers.
install_first() {
  may_install || return 1
  if command -v apt-get >/dev/null; then
    as_root apt-get update -qq </dev/null >/dev/null 2>&1 || say "apt-get update failed; going on with the known packages"
    for package in "$@"; do
      as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$package" </dev/null >/dev/null 2>&1 && return 0
    done
  elif command -v dnf >/dev/null; then
    for package in "$@"; do
      as_root dnf install -y -q "$package" </dev/null >/dev/null 2>&1 && return 0
    done
  fi
  return 1
}

# --- Python and .venv -----------------------------------------------------------------------------------------------

find_python() {
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  found=$(python3 --version 2>&1 || true)
  die "Python 3.11 or newer is needed; python3 is: ${found:-missing}. Install it, or name one: PYTHON=/path/to/python3.12 make ..."
}

make_venv() {
  say "creating .venv with $("$1" --version 2>&1) ($1)"
  rm -rf "$venv"
  "$1" -m venv "$venv" >/dev/null 2>&1 && return
  rm -rf "$venv"
  say "this Python lacks its venv module: installing it from the system's packages"
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  install_first "python$version-venv" python3-venv ||
    die "cannot create a virtual environment, and may not install packages here. Run: apt-get install python3-venv"
  if ! message=$("$1" -m venv "$venv" 2>&1); then
    rm -rf "$venv"
    die "$1 still cannot create a virtual environment: $message"
  fi
}

# The stamp names what .venv was made from: a moved checkout or a vanished Python needs a new .venv, a changed
# pyproject.toml an install into the old one.
setup_python() {
  project=$(cksum <pyproject.toml)
  stamp=$(cat "$venv/stamp" 2>/dev/null || true)
  [ -x "$venv/bin/python" ] || stamp=
  case "$stamp" in
    "$root: $project") return ;;
    "$root: "*) ;;
    *)
      python=$(find_python)
      make_venv "$python"
      ;;
  esac
  say "installing strandline and its dependencies into .venv (PySpark alone is some 450 MB: the first time takes minutes)"
  if ! "$venv/bin/python" -m pip install --quiet --editable '.[dev]' </dev/null >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    die "pip could not install the dependencies; the end of $log is above"
  fi
  printf '%s\n' "$root: $project" >"$venv/stamp"
}

# --- Java -----------------------------------------------------------------------------------------------------------

# java_home JAVA: its home, when it is 17 or newer and has the module that Spark asks for (some reduced JREs lack it).
java_home() {
  properties=$("$1" --add-modules jdk.incubator.vector -XshowSettings:properties -version 2>&1) || return 1
  version=$(printf '%s\n' "$properties" | sed -n 's/^ *java\.specification\.version = //p')
  [ "${version%%.*}" -ge 17 ] 2>/dev/null || return 1
  printf '%s\n' "$properties" | sed -n 's/^ *java\.home = //p'
}

find_java() {
  for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/*/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
    command -v "$java" >/dev/null 2>&1 && java_home "$java" && return
  done
  return 1
}

setup_java() {
  known=$(cat "$venv/java-home" 2>/dev/null || true)
  if [ ! -x "${known:-none}/bin/java" ] || [ "${JAVA_HOME:-$known}" != "$known" ]; then
    if ! known=$(find_java); then
      say "no Java 17+ found: installing it from the system's packages"
      install_first openjdk-17-jre-headless openjdk-21-jre-headless java-21-openjdk-headless || true
      known=$(find_java) ||
        die "Spark needs Java 17 or newer. Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
    fi
    say "Java: $known"
    printf '%s\n' "$known" >"$venv/java-home"
  fi
  export JAVA_HOME="$known"
}

# --- Chromium, for tests of the page (STRANDLINE_BROWSER=1) ---------------------------------------------------------

setup_browser() {
  for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && return
  done
  [ -e "$venv/no-browser" ] && return
  say "installing Chromium for the tests of the page"
  install_first chromium chromium-browser && return
  say "no Chromium can be installed: tests of the page in a browser are skipped"
  : >"$venv/no-browser"
}

# --------------------------------------------------------------------------------------------------------------------

setup_python
setup_java
[ -z "${STRANDLINE_BROWSER:-}" ] || setup_browser
if [ "$#" -gt 0 ]; then
  export VIRTUAL_ENV="$venv" PATH="$venv/bin:$JAVA_HOME/bin:$PATH"
  exec "$@"
fi
say "ready: $venv"
