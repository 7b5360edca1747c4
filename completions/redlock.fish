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

# The words that are neither options nor values of options: the command, then names. A lock may be called like a
# command, so it is their places that tell them apart.
function __redlock_plain_words
    set -l words (commandline -opc)
    set -e words[1]
    set -l plain
    set -l skip 0
    for word in $words
        if test $skip = 1
            set skip 0
        else if contains -- $word $__redlock_with_value
            set skip 1
        else if test "$word" = -n; and test "$plain[1]" = history
            set skip 1
        else if not string match -q -- '-*' $word
            set -a plain $word
        end
    end
    set -q plain[1]; and printf '%s\n' $plain
end

function __redlock_is
    __redlock_after_dashes; and return 1
    set -l words (__redlock_plain_words)
    set -q words[1]; and contains -- $words[1] $argv
end

# How many words stand after the command.
function __redlock_has
    set -l words (__redlock_plain_words)
    test (count $words) -eq (math $argv[1] + 1)
end

complete -c redlock -f
complete -c redlock -n __redlock_after_dashes -a '(__redlock_command)'

set -g __redlock_commands run acquire extend check release wait status history freeze thaw fence
# Of these, the commands that take any number of names, and those that take one.
set -g __redlock_many_names run wait status history
set -g __redlock_one_name acquire extend check release freeze thaw
# The options whose value is a word of its own. In `redlock history` -n is one, too.
set -g __redlock_with_value -u --url --prefix --password-file --tls-ca --tls-cert --tls-key --connect-timeout \
    --history-size -w --wait -E --conflict-exit-code --ttl --slots --priority --order --reason -k --kill-after \
    --on-lost -t --timeout --on-unreachable --hold-at-least --once-per --unless --jitter -c --shell --format \
    --while-pid --token-file --for --id --last --since --svg

function __redlock_no_command
    not __redlock_is $__redlock_commands; and not __redlock_after_dashes
end

complete -c redlock -n __redlock_no_command -a run -d 'Run a command while holding a lock'
complete -c redlock -n __redlock_no_command -a acquire -d 'Take a lock for a script that goes on'
complete -c redlock -n __redlock_no_command -a extend -d 'Hold a lock for longer, from within the work'
complete -c redlock -n __redlock_no_command -a check -d 'Ask whether a lock is still ours'
complete -c redlock -n __redlock_no_command -a release -d 'Give a lock back, or take it from its holder'
complete -c redlock -n __redlock_no_command -a wait -d 'Wait until a lock is free'
complete -c redlock -n __redlock_no_command -a status -d 'Show who holds which lock, and who waits'
complete -c redlock -n __redlock_no_command -a history -d 'Show who held a lock, how long, and how it ended'
complete -c redlock -n __redlock_no_command -a freeze -d 'Let the holder finish, and nobody new in'
complete -c redlock -n __redlock_no_command -a thaw -d 'Let others in again'
complete -c redlock -n __redlock_no_command -a fence -d 'Refuse a late writer'
complete -c redlock -n __redlock_no_command -s V -l version -d 'Print the version'

complete -c redlock -n 'not __redlock_after_dashes' -s u -l url -x -d 'Redis server'
complete -c redlock -n 'not __redlock_after_dashes' -l prefix -x -d 'Text before each name'
complete -c redlock -n 'not __redlock_after_dashes' -l password-file -r -F -d 'File that holds the password'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-ca -r -F -d 'Trusted certificates'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-cert -r -F -d 'Our certificate'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-key -r -F -d 'The key of our certificate'
complete -c redlock -n 'not __redlock_after_dashes' -l connect-timeout -x -d 'Longest time to connect'
complete -c redlock -n 'not __redlock_after_dashes' -l history-size -x -d 'How many past holders are kept'
complete -c redlock -n 'not __redlock_after_dashes' -s q -l quiet -d 'Say nothing but errors'
complete -c redlock -n 'not __redlock_after_dashes' -s v -l verbose -d 'Say each change of state'
complete -c redlock -n 'not __redlock_after_dashes' -s h -l help -d 'Show help'

for command in run acquire wait
    complete -c redlock -n "__redlock_is $command" -s w -l wait -x -d 'Wait at most this long'
    complete -c redlock -n "__redlock_is $command" -s n -l no-wait -d 'Give up at once if the lock is busy'
    complete -c redlock -n "__redlock_is $command" -s E -l conflict-exit-code -x -d 'Status when the lock stays busy'
end

for command in run acquire
    complete -c redlock -n "__redlock_is $command" -l ttl -x -d 'How long the lock outlives a dead holder'
    complete -c redlock -n "__redlock_is $command" -s s -l shared -d 'Share the lock with others that do'
    complete -c redlock -n "__redlock_is $command" -l slots -x -d 'At most N hold it at a time'
    complete -c redlock -n "__redlock_is $command" -l priority -x -d 'Go before lower ones in the queue'
    complete -c redlock -n "__redlock_is $command" -l lifo -d 'Newest waiter first'
    complete -c redlock -n "__redlock_is $command" -l supersede -d 'Have older waiters give up'
    complete -c redlock -n "__redlock_is $command" -l order -x -d 'What counts as newer'
    complete -c redlock -n "__redlock_is $command" -l cancel-running -d 'Stop the run that holds the lock'
    complete -c redlock -n "__redlock_is $command" -l repair-ttl -d 'Give a lock without an expiry one'
    complete -c redlock -n "__redlock_is $command" -l reason -x -d 'Why, shown to others'
    complete -c redlock -n "__redlock_is $command" -s k -l kill-after -x -d 'Time between SIGTERM and SIGKILL'
    complete -c redlock -n "__redlock_is $command" -l on-lost -x -a 'stop warn' -d 'When the lock is lost'
end

complete -c redlock -n '__redlock_is run' -s t -l timeout -x -d 'Stop the command after this long'
complete -c redlock -n '__redlock_is run' -l on-unreachable -x -a 'fail run' -d 'When Redis is out of reach'
complete -c redlock -n '__redlock_is run' -l hold-at-least -x -d 'Keep the lock at least this long'
complete -c redlock -n '__redlock_is run' -l once-per -x -d 'Skip if a run has succeeded within this time'
complete -c redlock -n '__redlock_is run' -l unless -x -d 'Skip if this script succeeds'
complete -c redlock -n '__redlock_is run' -l wait-tree -d 'Hold the lock until all that the command has started has ended'
complete -c redlock -n '__redlock_is run' -l join -d 'End with the run that is going on'
complete -c redlock -n '__redlock_is run' -l jitter -x -d 'Wait a random time first'
complete -c redlock -n '__redlock_is run' -s c -l shell -x -d 'Run a shell script in place of a command'

complete -c redlock -n '__redlock_is acquire' -l format -x -a 'env json token github' -d 'What to print'
complete -c redlock -n '__redlock_is acquire' -l while-pid -x -a '(__fish_complete_pids)' -d 'Keep it while this process lives'
complete -c redlock -n '__redlock_is acquire' -l wait-tree -d 'Keep it until all that the process has started has ended'

complete -c redlock -n '__redlock_is extend check release' -l token-file -r -F -d 'File that holds the token'
complete -c redlock -n '__redlock_is check' -l for -x -d 'For at least this long'
complete -c redlock -n '__redlock_is release' -l force -d 'Free the lock whoever holds it'
complete -c redlock -n '__redlock_is release' -l id -x -d 'Only if the holder has this id'

complete -c redlock -n '__redlock_is status' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_is status' -l names-only -d 'Print names only'
complete -c redlock -n '__redlock_is status' -l watch -d 'Show it again every so often'

complete -c redlock -n '__redlock_is history' -s n -l last -x -d 'Only the last N'
complete -c redlock -n '__redlock_is history' -l since -x -d 'Only those within this time'
complete -c redlock -n '__redlock_is history' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_is history' -s f -l follow -d 'Show each when it ends'
complete -c redlock -n '__redlock_is history' -l timeline -d 'Draw a chart'
complete -c redlock -n '__redlock_is history' -l svg -r -F -d 'Write the chart to a file'

complete -c redlock -n '__redlock_is freeze' -l reason -x -d 'Why, shown to all who want the lock'
complete -c redlock -n '__redlock_is freeze' -l for -x -d 'How long'

complete -c redlock -n '__redlock_is $__redlock_many_names' -a '(__redlock_names)' -d lock
complete -c redlock -n '__redlock_is $__redlock_one_name; and __redlock_has 0' -a '(__redlock_names)' -d lock
complete -c redlock -n '__redlock_is extend; and __redlock_has 1' -a '1m 10m 1h' -d 'How long'
complete -c redlock -n '__redlock_is fence; and __redlock_has 0' -F
