# fish completion for redlock(1)

# The names of the locks that are held or waited for now (with the argument history: also of those that have a
# history), on the server that the command line names. A server that doesn't answer within 300 ms offers none.
function __redlock_names
    set -l listing status
    set -q argv[1]; and set listing $argv[1]
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
    redlock $server $listing --names-only --quiet --connect-timeout 300ms 2>/dev/null
end

# After -- comes a separate command line.
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

# The words that are neither options nor values of options: the command, then names. A lock may have the name of a
# command, so only their positions tell them apart.
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

# Whether this many words follow the command.
function __redlock_has
    set -l words (__redlock_plain_words)
    test (count $words) -eq (math $argv[1] + 1)
end

complete -c redlock -f
complete -c redlock -n __redlock_after_dashes -a '(__redlock_command)'

set -g __redlock_commands run guard acquire extend release stop status history freeze thaw fence doctor help completions
# Of these, the commands that take any number of names of live locks, and those that take one.
set -g __redlock_many_names run guard status freeze thaw
set -g __redlock_one_name acquire extend release stop doctor
# The options whose value is a separate word. In `redlock history` -n is one, too.
set -g __redlock_with_value -u --url --prefix --password-file --tls-ca --tls-cert --tls-key \
    --connect-timeout --history-size -w --wait -E --conflict-exit-code --ttl --sync --sync-timeout --slots --seq -m --reason -k --kill-after \
    --on-lost -t --max-runtime --on-unreachable --hold-at-least --once-per --jitter -c --shell --format \
    --while-pid --token-file --for --id --last --since --svg --older-than --prometheus --held --max-queue --once --no-success-for

function __redlock_no_command
    not __redlock_is $__redlock_commands; and not __redlock_after_dashes
end

complete -c redlock -n __redlock_no_command -a run -d 'Run a command while holding a lock'
complete -c redlock -n __redlock_no_command -a guard -d 'Run a command elsewhere under a lock of this job'
complete -c redlock -n __redlock_no_command -a acquire -d 'Acquire a lock and return (for scripts)'
complete -c redlock -n __redlock_no_command -a extend -d 'Check that this job still holds its lock, and extend it'
complete -c redlock -n __redlock_no_command -a release -d 'Release a lock, or force it free'
complete -c redlock -n __redlock_no_command -a stop -d "Stop the holder's command and hand its lock over"
complete -c redlock -n __redlock_no_command -a status -d 'Show who holds which lock, and who waits'
complete -c redlock -n __redlock_no_command -a history -d 'Show who held a lock, for how long, and how it ended'
complete -c redlock -n __redlock_no_command -a freeze -d 'Block new holders; the current one may finish'
complete -c redlock -n __redlock_no_command -a thaw -d 'Undo redlock freeze'
complete -c redlock -n __redlock_no_command -a fence -d 'Reject stale writes, using a fence file'
complete -c redlock -n __redlock_no_command -a doctor -d 'Check that this Redis is fit to hold locks'
complete -c redlock -n __redlock_no_command -a help -d 'Show a page of the manual'
complete -c redlock -n __redlock_no_command -s V -l version -d 'Print the version'

complete -c redlock -n 'not __redlock_after_dashes' -s u -l url -x -d 'Redis server'
complete -c redlock -n 'not __redlock_after_dashes' -l prefix -x -d 'Key prefix'
complete -c redlock -n 'not __redlock_after_dashes' -l password-file -r -F -d 'File with the password'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-ca -r -F -d 'Trusted certificates'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-cert -r -F -d 'Client certificate'
complete -c redlock -n 'not __redlock_after_dashes' -l tls-key -r -F -d 'Client key'
complete -c redlock -n 'not __redlock_after_dashes' -l connect-timeout -x -d 'Timeout for connecting and for each reply'
complete -c redlock -n 'not __redlock_after_dashes' -s q -l quiet -d 'Print errors only'
complete -c redlock -n 'not __redlock_after_dashes' -s v -l verbose -d 'Print every state change'
complete -c redlock -n 'not __redlock_after_dashes' -s h -l help -d 'Show help'

for command in run acquire
    complete -c redlock -n "__redlock_is $command" -s w -l wait -x -d 'Wait at most this long'
    complete -c redlock -n "__redlock_is $command" -s n -l no-wait -d 'Give up at once if the lock is busy'
    complete -c redlock -n "__redlock_is $command" -s E -l conflict-exit-code -x -d 'Status when the lock stays busy'
end

for command in run acquire
    complete -c redlock -n "__redlock_is $command" -l ttl -x -d 'Lease length'
    complete -c redlock -n "__redlock_is $command" -s s -l shared -d 'Take a shared (read) lock'
    complete -c redlock -n "__redlock_is $command" -l slots -x -d 'Semaphore: up to N holders'
    complete -c redlock -n "__redlock_is $command" -l max-queue -x -d "Don't wait behind N others"
    complete -c redlock -n "__redlock_is $command" -l ignore-freeze -d 'Run although the lock is frozen'
    complete -c redlock -n "__redlock_is $command" -l supersede -d 'Make all earlier waiters give up'
    complete -c redlock -n "__redlock_is $command" -l seq -x -d 'Version of this run, for --supersede'
    complete -c redlock -n "__redlock_is $command" -l cancel-in-progress -d 'Also stop the run that holds the lock'
    complete -c redlock -n "__redlock_is $command" -s m -l reason -x -d 'Reason, shown to others'
    complete -c redlock -n "__redlock_is $command" -s k -l kill-after -x -d 'Time between SIGTERM and SIGKILL'
    complete -c redlock -n "__redlock_is $command" -l on-lost -x -a 'stop warn' -d 'What to do if the lock is lost'
end

complete -c redlock -n '__redlock_is run' -s t -l max-runtime -x -d 'Stop the command after this long'
complete -c redlock -n '__redlock_is run' -l on-unreachable -x -a 'fail run' -d 'What to do if Redis is unreachable at start'
complete -c redlock -n '__redlock_is run' -l hold-at-least -x -d 'Keep the lock at least this long'
complete -c redlock -n '__redlock_is run' -l once -x -d 'Skip if a run with this key succeeded'
complete -c redlock -n '__redlock_is run' -l once-per -x -d 'Skip if a run succeeded within this time'
complete -c redlock -n '__redlock_is run' -l with-children -d 'Hold the lock until all processes of the command have ended'
complete -c redlock -n '__redlock_is run' -l jitter -x -d 'Sleep a random time first'
complete -c redlock -n '__redlock_is run' -s c -l shell -x -d 'Run a shell script instead of a command'

complete -c redlock -n '__redlock_is guard' -l held -r -F -d 'File with the REDLOCK_HELD of the job'
complete -c redlock -n '__redlock_is guard' -s t -l max-runtime -x -d 'Stop the command after this long'
complete -c redlock -n '__redlock_is guard' -s k -l kill-after -x -d 'Time between SIGTERM and SIGKILL'
complete -c redlock -n '__redlock_is guard' -l with-children -d 'Guard until all processes of the command have ended'
complete -c redlock -n '__redlock_is guard' -s c -l shell -x -d 'Run a shell script instead of a command'

complete -c redlock -n '__redlock_is acquire' -l format -x -a 'env json token github' -d 'What to print'
complete -c redlock -n '__redlock_is acquire' -l while-pid -x -a '(__fish_complete_pids)' -d 'Keep the lock while this process lives'
complete -c redlock -n '__redlock_is acquire' -l with-children -d 'Keep the lock until all processes started by it have ended'

complete -c redlock -n '__redlock_is extend release' -l token-file -r -F -d 'File with the token'
complete -c redlock -n '__redlock_is extend' -l for -x -d 'Make the lock last at least this long from now'
complete -c redlock -n '__redlock_is release' -l force -d 'Free the lock regardless of its holder'
complete -c redlock -n '__redlock_is release stop' -l id -x -d 'Only the one with this id'
complete -c redlock -n '__redlock_is release stop' -l all -d 'All holders, if there are several'
complete -c redlock -n '__redlock_is release' -s y -l yes -d "With --force: don't ask for confirmation"
complete -c redlock -n '__redlock_is release stop' -s m -l reason -x -d 'Reason, shown to the run that loses the lock'
complete -c redlock -n '__redlock_is stop' -s n -l no-wait -d "Don't wait until the lock is handed over"

complete -c redlock -n '__redlock_is status' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_is status' -l watch -d 'Show it again and again'
complete -c redlock -n '__redlock_is status' -l older-than -x -d 'Only locks held, or waited for, for longer'
complete -c redlock -n '__redlock_is status' -l no-success-for -x -d 'Print the names without a success for this long'
complete -c redlock -n '__redlock_is status' -l prometheus -r -F -d 'Write metrics for Prometheus to a file'

complete -c redlock -n '__redlock_is history' -s n -l last -x -d 'Show only the last N, or all'
complete -c redlock -n '__redlock_is history' -l since -x -d 'Show only the holds within this time'
complete -c redlock -n '__redlock_is history' -l skipped -d 'Also show the runs that ended without the lock'
complete -c redlock -n '__redlock_is history' -l json -d 'Print JSON'
complete -c redlock -n '__redlock_is history' -l svg -r -F -d 'Draw a chart to an SVG file'

complete -c redlock -n '__redlock_is doctor' -l ttl -x -d 'TTL your jobs use'
complete -c redlock -n '__redlock_is doctor' -l json -d 'Print JSON'


complete -c redlock -n '__redlock_is help; and __redlock_has 0' -a 'redlock recipes protocol'
complete -c redlock -n '__redlock_is help; and __redlock_has 0' -a '$__redlock_commands'
complete -c redlock -n '__redlock_is completions; and __redlock_has 0' -a 'bash zsh fish'

complete -c redlock -n '__redlock_is freeze' -s m -l reason -x -d 'Reason, shown to every run that wants the lock'
complete -c redlock -n '__redlock_is freeze' -l for -x -d 'Duration of the freeze'
complete -c redlock -n '__redlock_is freeze' -l drain -d 'Return once the holder is done'
complete -c redlock -n '__redlock_is freeze status' -l new -d 'Accept a name that was never used'


complete -c redlock -n '__redlock_is $__redlock_many_names' -a '(__redlock_names)' -d lock
complete -c redlock -n '__redlock_is history' -a '(__redlock_names history)' -d lock
complete -c redlock -n '__redlock_is $__redlock_one_name; and __redlock_has 0' -a '(__redlock_names)' -d lock
complete -c redlock -n '__redlock_is fence; and __redlock_has 0' -F
