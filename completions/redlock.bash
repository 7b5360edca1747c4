# bash completion for redlock(1)                            -*- shell-script -*-

# The names of the locks that are held now; a server that doesn't answer is not waited for.
_redlock_names() {
    redlock status --names-only --quiet --connect-timeout 300ms 2>/dev/null
}

_redlock() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' word i
    local common='--url --prefix --password-file --tls-ca --tls-cert --tls-key --connect-timeout
        --quiet --verbose --help'
    COMPREPLY=()

    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == -- ]]; then
            # What follows is a command line of its own.
            if declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((i + 1 == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$cur")
            else
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            fi
            return
        fi
        [[ -z $command && $word =~ ^(run|status|release)$ ]] && command=$word
    done

    case $prev in
    --on-lost)
        mapfile -t COMPREPLY < <(compgen -W 'stop warn' -- "$cur")
        return
        ;;
    --on-unreachable)
        mapfile -t COMPREPLY < <(compgen -W 'fail run' -- "$cur")
        return
        ;;
    --password-file | --token-file | --tls-ca | --tls-cert | --tls-key)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    --ttl | --wait | -w | --timeout | -t | --kill-after | -k | --connect-timeout)
        mapfile -t COMPREPLY < <(compgen -W '5s 30s 1m 10m 1h' -- "$cur")
        return
        ;;
    --url | -u | --prefix | --reason | --id | -E | --conflict-exit-code | -c | --shell)
        return
        ;;
    esac

    local options
    case $command in
    run)
        options="--ttl --wait --no-wait --conflict-exit-code --timeout --kill-after --on-lost
            --on-unreachable --reason --shell -- $common"
        ;;
    status) options="--json --names-only --watch $common" ;;
    release) options="--token-file --force --id $common" ;;
    *) options="run status release --version $common" ;;
    esac

    if [[ -z $command || $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -W "$(_redlock_names)" -- "$cur")
    fi
    if declare -F __ltrim_colon_completions >/dev/null; then
        __ltrim_colon_completions "$cur"
    fi
}

complete -F _redlock redlock
