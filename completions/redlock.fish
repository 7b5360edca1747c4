# fish completion for redlock(1)

# The names of the locks that are held or waited for now, on the server that the command line names; one that
# doesn't answer is not waited for.
function __redlock_names
    set -l words (commandline -opc)
    set -l server
    for i in (seq (count $words))
        switch $words[$i]
            case -u --url --prefix --password-file --tls-ca --tls-cert --tls-key
                set -a server $words[$i] $words[(math $i + 1)]
            case '--url=*' '--prefix=*' '--password-file=*' '--tls-ca=*' '--tls-cert=*' '--tls-key=*'
                set -a server $words[$i]
        end
    end
    redlock $server status --names-only --quiet --connect-timeout 300ms 2>/dev/null
end

# What follows -- is a command line of its own.
function __redlock_after_dashes
    contains -- -- (commandline -opc)
end

function __redlock_command
    set -l words (commandline -opc)
    set -e words[1..(contains -i -- -- $words)]
    if set -q words[1]
        __fish_complete_subcommand --commandline $words (commandline -ct)
    else
        __fish_complete_command
    end
end

function __redlock_is
    __fish_seen_subcommand_from $argv; and not __redlock_after_dashes
end

complete -c redlock -f
complete -c redlock -n __redlock_after_dashes -a '(__redlock_command)'

complete -c redlock -n 'not __fish_seen_subcommand_from run wait status release' -a run -d 'Run a command while holding a lock'
complete -c redlock -n 'not __fish_seen_subcommand_from run wait status release' -a wait -d 'Wait until a lock is free'
complete -c redlock -n 'not __fish_seen_subcommand_from run wait status release' -a status -d 'Show who holds which lock, and who waits'
complete -c redlock -n 'not __fish_seen_subcommand_from run wait status release' -a release -d 'Give a lock back, or take it from its holder'
complete -c redlock -n 'not __fish_seen_subcommand_from run wait status release' -s V -l version -d 'Print the version'

complete -c redlock -n 'not __redlock_after_dashes' -s u -l url -x -d 'Redis server'
complete -c redlock -n 'not __redlock_after_dashes' -l prefix -x -d 'Text before each name'
complete -c redlock -n 'not __redlock_after_dashes' -l password-file -r -F -d 'File that holds the password'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-ca -r -F -d 'Trusted certificates'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-cert -r -F -d 'Our certificate'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-key -r -F -d 'The key of our certificate'
complete -c redlock -n 'not __redlock_after_dashes' -l connect-timeout -x -d 'Longest time to connect'
complete -c redlock -n 'not __redlock_after_dashes' -s q -l quiet -d 'Say nothing but errors'
complete -c redlock -n 'not __redlock_after_dashes' -s v -l verbose -d 'Say each change of state'
complete -c redlock -n 'not __redlock_after_dashes' -s h -l help -d 'Show help'

complete -c redlock -n '__redlock_is run' -l ttl -x -d 'How long the lock outlives a killed redlock'
complete -c redlock -n '__redlock_is run' -s w -l wait -x -d 'Wait at most this long'
complete -c redlock -n '__redlock_is run' -s n -l no-wait -d 'Give up at once if the lock is busy'
complete -c redlock -n '__redlock_is run' -s E -l conflict-exit-code -x -d 'Status when the lock stays busy'
complete -c redlock -n '__redlock_is run' -s s -l shared -d 'Share the lock with others that do'
complete -c redlock -n '__redlock_is run' -l slots -x -d 'At most N hold it at a time'
complete -c redlock -n '__redlock_is run' -l priority -x -d 'Go before lower ones in the queue'
complete -c redlock -n '__redlock_is run' -l lifo -d 'Newest waiter first'
complete -c redlock -n '__redlock_is run' -l supersede -d 'Have older waiters give up'
complete -c redlock -n '__redlock_is run' -s t -l timeout -x -d 'Stop the command after this long'
complete -c redlock -n '__redlock_is run' -s k -l kill-after -x -d 'Time between SIGTERM and SIGKILL'
complete -c redlock -n '__redlock_is run' -l on-lost -x -a 'stop warn' -d 'When the lock is lost'
complete -c redlock -n '__redlock_is run' -l on-unreachable -x -a 'fail run' -d 'When Redis is out of reach'
complete -c redlock -n '__redlock_is run' -l reason -x -d 'Why, shown to others'
complete -c redlock -n '__redlock_is run' -s c -l shell -x -d 'Run a shell script in place of a command'

complete -c redlock -n '__redlock_is wait' -s w -l wait -x -d 'Wait at most this long'
complete -c redlock -n '__redlock_is wait' -s n -l no-wait -d 'Only say whether it is free'
complete -c redlock -n '__redlock_is wait' -s E -l conflict-exit-code -x -d 'Status when the lock stays busy'

complete -c redlock -n '__redlock_is status' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_is status' -l names-only -d 'Print names only'
complete -c redlock -n '__redlock_is status' -l watch -d 'Show it again every so often'

complete -c redlock -n '__redlock_is release' -l token-file -r -F -d 'File that holds the token'
complete -c redlock -n '__redlock_is release' -l force -d 'Free the lock whoever holds it'
complete -c redlock -n '__redlock_is release' -l id -x -d 'Only if the holder has this id'

complete -c redlock -n '__redlock_is run wait status release' -a '(__redlock_names)' -d lock
