# fish completion for redlock(1): redlock itself knows what comes next, also the names of locks.

function __redlock_complete
    set -l words (commandline -opc)
    if not contains -- -- $words
        _REDLOCK_COMPLETES=1 redlock -- $words "$(commandline -ct)" 2>/dev/null
        return
    end
    # After -- comes a separate command line.
    set -e words[1..(contains -i -- -- $words)]
    if set -q words[1]
        __fish_complete_subcommand --commandline $words (commandline -ct)
    else
        __fish_complete_command
    end
end

complete -c redlock --keep-order --no-files --arguments '(__redlock_complete)'
