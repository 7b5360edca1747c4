# bash completion for redlock(1)                            -*- shell-script -*-

# Offers the names of the locks that are held or waited for now (`redlock history`: also of those that have a
# history), on the server that the command line names; one that doesn't answer within 300 ms offers none. Names come from Redis, so they are data and never expanded
# (compgen -W would run a $(command) in one).
_redlock_names() {
    local name listing=status
    [[ $command == history ]] && listing=history
    while IFS= read -r name; do
        [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
    done < <(redlock "$@" $listing --names-only --quiet --connect-timeout 300ms 2>/dev/null)
}

_redlock_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

_redlock_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}

# After -- comes a separate command line, which begins at this word.
_redlock_command() {
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
    else
        _redlock_files
    fi
}

_redlock() {
    # COMP_WORDS is split at colons and equals signs too; names and URLs are full of them.
    local line=${COMP_LINE:0:COMP_POINT}
    local words server=() command='' names=0 cur prev i
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    COMPREPLY=()
    ((${#words[@]} > 1)) || return
    cur=${words[-1]} prev=${words[-2]}

    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            _redlock_command $((i + 1))
            return
        fi
    done
    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        case ${words[i]} in
        -u | --url | --prefix | --password-file | --tls-ca | --tls-cert | --tls-key)
            server+=("${words[i]}" "${words[i + 1]}")
            ((++i))
            ;;
        --url=* | --prefix=* | --password-file=* | --tls-ca=* | --tls-cert=* | --tls-key=*)
            server+=("${words[i]}")
            ;;
        --connect-timeout | --history-size | --ttl | --sync | --sync-timeout | -E | --conflict-exit-code | \
            --slots | --seq | -m | --reason | -t | --max-runtime | -k | --kill-after | --on-lost | \
            --on-unreachable | --hold-at-least | --once-per | --jitter | -c | --shell | \
            --format | --while-pid | --token-file | --held | --for | --id | --last | --since | --svg | --older-than | --prometheus | --max-queue | --once | \
            --no-success-for)
            ((++i))
            ;;
        -w | --wait) ((++i)) ;;
        # Elsewhere -n takes nothing.
        -n) [[ $command == history ]] && ((++i)) ;;
        -*) ;;
        *)
            if [[ $command ]]; then ((++names)); else command=${words[i]}; fi
            ;;
        esac
    done
    if [[ $cur == --*=* ]]; then
        prev=${cur%%=*} cur=${cur#*=}
    fi

    local common='--url --prefix --password-file --tls-ca --tls-cert --tls-key
        --connect-timeout --quiet --verbose --help'
    local patience='--wait --no-wait --conflict-exit-code'
    local taking="--ttl $patience --max-queue --ignore-freeze --shared --slots --supersede --seq --cancel-in-progress
        --reason --kill-after --on-lost"
    [[ $command$prev == history-n ]] && prev=--last
    case $prev in
    --sync) _redlock_words 'all 1 2' ;;
    --on-lost) _redlock_words 'stop warn' ;;
    --on-unreachable) _redlock_words 'fail run' ;;
    --format) _redlock_words 'env json token github' ;;
    --password-file | --token-file | --held | --tls-ca | --tls-cert | --tls-key | --svg | --prometheus) _redlock_files ;;
    --while-pid) mapfile -t COMPREPLY < <(compgen -W "\$\$ $(ps -u "$UID" -o pid= 2>/dev/null)" -- "$cur") ;;
    --ttl | --sync-timeout | --wait | -w | --max-runtime | -t | --kill-after | -k | --connect-timeout | --hold-at-least | \
        --once-per | --jitter | --for | --since | --older-than | --no-success-for)
        _redlock_words '5s 30s 1m 10m 1h'
        ;;
    --url | -u | --prefix | --history-size | --slots | --seq | -m | --reason | --id | -E | \
        --conflict-exit-code | -c | --shell | --last | --max-queue | --once) ;;
    *)
        case $command:$cur in
        run:-*)
            _redlock_words "$taking --max-runtime --on-unreachable --hold-at-least --once --once-per
                --with-children --jitter --shell -- $common"
            ;;
        guard:-*) _redlock_words "--held --max-runtime --kill-after --with-children --shell -- $common" ;;
        acquire:-*) _redlock_words "$taking --format --while-pid --with-children $common" ;;
        extend:-*) _redlock_words "--token-file --for $common" ;;
        status:-*) _redlock_words "--json --watch --older-than --no-success-for --prometheus $common" ;;
        history:-*) _redlock_words "--last --since --skipped --json --svg $common" ;;
        release:-*) _redlock_words "--token-file --force --yes --id --all --reason $common" ;;
        stop:-*) _redlock_words "--id --all --reason --no-wait $common" ;;
        freeze:-*) _redlock_words "--reason --for --drain --new $common" ;;
        doctor:-*) _redlock_words "--ttl --json $common" ;;
        thaw:-* | fence:-* | help:-* | completions:-*) _redlock_words "$common" ;;
        :*)
            _redlock_words "run guard acquire extend release stop status history freeze thaw
                fence doctor help --version $common"
            ;;
        run:* | guard:*)
            ((names)) && [[ ! $cur ]] && COMPREPLY=(--)
            _redlock_names "${server[@]}"
            ;;
        status:* | history:* | freeze:* | thaw:*) _redlock_names "${server[@]}" ;;
        acquire:* | extend:* | release:* | stop:* | doctor:*) ((names)) || _redlock_names "${server[@]}" ;;
        fence:*) ((names)) || _redlock_files ;;
        help:*)
            ((names)) || _redlock_words 'redlock run guard acquire extend release stop status history freeze
                thaw fence doctor help completions recipes protocol'
            ;;
        completions:*) ((names)) || _redlock_words 'bash zsh fish' ;;
        esac
        ;;
    esac

    # Only what follows the last colon is replaced.
    if [[ $COMP_WORDBREAKS == *:* && $cur == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*:}"}"}")
    fi
}

complete -F _redlock redlock
