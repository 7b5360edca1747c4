# bash completion for redlock(1)                            -*- shell-script -*-

# redlock itself knows what comes next, also the names of locks. These come from Redis, so they are data and never
# expanded.
_redlock() {
    # COMP_WORDS is split at colons and equals signs too; names and URLs are full of them.
    local line=${COMP_LINE:0:COMP_POINT} words cur i
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    cur=${words[-1]}
    COMPREPLY=()
    # After -- comes a separate command line.
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$cur")
        else
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        fi
        return
    done
    while IFS=$'\t' read -r i _; do
        [[ $i == */ ]] && compopt -o nospace 2>/dev/null
        i=$(printf %q "$i")
        # bash replaces only what follows the last equals sign or colon.
        [[ $COMP_WORDBREAKS == *=* && $cur == --*=* ]] && i=${i#"${cur%%=*}="}
        [[ $COMP_WORDBREAKS == *:* && $cur == *:* ]] && i=${i#"${cur%"${cur##*:}"}"}
        COMPREPLY+=("$i")
    done < <(_REDLOCK_COMPLETES=1 redlock -- "${words[@]}" 2>/dev/null)
}

complete -F _redlock redlock
