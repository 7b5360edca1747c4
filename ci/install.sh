#!/bin/sh
# Installs redlock from a directory of releases, below PREFIX: install.sh PREFIX
#
# REDLOCK_RELEASES  where you keep what `make dist` has made: https://..., http://... or file:///...
# REDLOCK_VERSION   the version, such as 0.1.0, or its tag
# REDLOCK_SHA256    the checksum of the tarball; by default the one in SHA256SUMS beside it
set -eu

say() {
    echo "redlock: $*" >&2
}

download() {
    case $releases in
    file://*) cp "${releases#file://}/$1" "$2" ;;
    *)
        if command -v curl >/dev/null; then
            curl -fsSL --retry 3 -o "$2" "$releases/$1"
        else
            wget -q -O "$2" "$releases/$1"
        fi
        ;;
    esac || {
        # Without a user and password in the URL, which may have a slash that isn't encoded.
        say "can't download $1 from $(echo "$releases" | sed 's,//[^/@]*:.*@,//,; s,//[^/]*@,//,')"
        exit 69
    }
}

# A function, so that nothing is run of a script that was downloaded in part.
install_redlock() {
    prefix=${1:?usage: install.sh PREFIX}
    releases=${REDLOCK_RELEASES:-}
    if [ -z "$releases" ]; then
        say "REDLOCK_RELEASES is not set: the URL of the directory in which you keep releases"
        exit 78
    fi
    releases=${releases%/}
    version=${REDLOCK_VERSION:-0.1.0}
    tarball=redlock-${version#v}-$(uname -m).tar.gz

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    download "$tarball" "$work/$tarball"
    expected=$(echo "${REDLOCK_SHA256:-}" | sed y/ABCDEF/abcdef/)
    if [ -z "$expected" ]; then
        download SHA256SUMS "$work/SHA256SUMS"
        expected=$(sed -n "s/^\([0-9a-f]*\)  $tarball\$/\1/p" "$work/SHA256SUMS")
    fi
    actual=$(sha256sum <"$work/$tarball")
    if [ "${actual%% *}" != "$expected" ]; then
        say "$tarball has the checksum ${actual%% *}, not ${expected:-one of SHA256SUMS}; nothing is installed"
        exit 65
    fi
    mkdir -p "$prefix"
    gzip -dc "$work/$tarball" | tar -C "$prefix" --strip-components=1 -xf -
}

install_redlock "$@"
