#!/bin/sh
# Installs redlock if its checksum is right: install.sh [PREFIX]
#
# PREFIX is /usr/local where it can be written, else ~/.local. Read from these variables:
#
# REDLOCK_VERSION   the version, such as 0.1.0, or its tag; by default the newest
# REDLOCK_SHA256    the checksum of the tarball of that version (or of this script's own); by default the one in
#                   SHA256SUMS beside it
# REDLOCK_RELEASES  a directory with the files of `make dist`, https://..., http://... or file:///..., in place of
#                   redlock's home
set -eu

own=0.1.0
release=
newest=

say() {
    echo "redlock: $*" >&2
}

# download DIRECTORY FILE TO
download() {
    case $1 in
    file://*) cp "${1#file://}/$2" "$3" ;;
    *)
        if command -v curl >/dev/null; then
            curl -fsSL --retry 3 -o "$3" "$1/$2"
        else
            wget -q -O "$3" "$1/$2"
        fi
        ;;
    esac || {
        # Without a user and password in the URL, which may have a slash that isn't encoded.
        say "can't download $2 from $(echo "$1" | sed 's,//[^/@]*:.*@,//,; s,//[^/]*@,//,')"
        exit 69
    }
}

# of_version DIRECTORY VERSION: where the files of this version are
of_version() {
    case $1 in
    *TAG) echo "${1%TAG}v$2" ;;
    *) echo "$1" ;;
    esac
}

# A function, so that nothing is run of a script that was downloaded in part.
install_redlock() {
    prefix=${1:-}
    if [ -z "$prefix" ] && [ -w /usr/local ]; then
        prefix=/usr/local
    fi
    prefix=${prefix:-${HOME:?}/.local}
    if [ -n "${REDLOCK_RELEASES:-}" ]; then
        release=${REDLOCK_RELEASES%/}
        newest=$release
    elif [ -z "$release" ]; then
        say "redlock has no public home yet; set REDLOCK_RELEASES to the URL of a directory with the files of make dist"
        exit 78
    fi
    case $(uname -m) in
    x86_64 | amd64) arch=x86_64 ;;
    aarch64 | arm64) arch=aarch64 ;;
    *)
        say "there is no release for the processor $(uname -m); build redlock from source"
        exit 69
        ;;
    esac
    target=$arch-unknown-linux-musl

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    version=${REDLOCK_VERSION:-}
    version=${version#v}
    case $version in
    *[!0-9A-Za-z.+-]*)
        say "REDLOCK_VERSION is no version: $version"
        exit 64
        ;;
    esac
    expected=$(echo "${REDLOCK_SHA256:-}" | sed y/ABCDEF/abcdef/)
    if [ -z "$expected" ]; then
        if [ -n "$version" ]; then
            download "$(of_version "$release" "$version")" SHA256SUMS "$work/SHA256SUMS"
        else
            download "$newest" SHA256SUMS "$work/SHA256SUMS"
            version=$(sed -n "s/^[0-9a-f]*  redlock-\([0-9A-Za-z.-]*\)-$target\.tar\.gz\$/\1/p" "$work/SHA256SUMS" | sed -n '$p')
            if [ -z "$version" ]; then
                say "SHA256SUMS lists no redlock for $target; nothing is installed"
                exit 65
            fi
        fi
    fi
    version=${version:-$own}
    tarball=redlock-$version-$target.tar.gz
    download "$(of_version "$release" "$version")" "$tarball" "$work/$tarball"
    if [ -z "$expected" ]; then
        expected=$(sed -n "s/^\([0-9a-f]*\)  $tarball\$/\1/p" "$work/SHA256SUMS")
    fi
    actual=$(sha256sum <"$work/$tarball")
    actual=${actual%% *}
    if [ "$actual" != "$expected" ]; then
        say "checksum mismatch: $tarball has $actual, not ${expected:-one of SHA256SUMS}; nothing is installed"
        exit 65
    fi
    # Everybody may enter the directories that are made.
    umask 022
    mkdir -p "$prefix"
    gzip -dc "$work/$tarball" | tar -C "$prefix" --strip-components=1 -xf -
    say "installed version $version as $prefix/bin/redlock, with man pages and completions in $prefix/share; the checksum is right"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) say "$prefix/bin isn't on your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

install_redlock "$@"
