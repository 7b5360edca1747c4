//! Words that people type out of habit, and that redlock doesn't have or has no longer. Pure.

/// Commands and options that other programs or earlier versions have, each with what to type or do instead. `REDLOCK_` is the
/// setting of the option's name.
const OLD_WORDS: &str = "\
list show who info|redlock status
why|redlock status NAME
man manual|redlock help
top watch|redlock status --watch
expect|redlock status --no-success-for 26h NAME
force-unlock break free|redlock release --force NAME
lock|redlock run or redlock acquire
exec|redlock run
log logs|redlock history
check renew refresh|redlock extend
kill cancel abort|redlock stop
pass|redlock guard --held -
wait|redlock run -s NAME -- true
local|redlock -u local: doctor
pause cordon block|redlock freeze
resume unfreeze unpause uncordon unblock|redlock thaw
-o --close|leave it out, as COMMAND inherits no lock
-F --no-fork|leave it out, as redlock has to stay to renew the lock
--unlock|use redlock release NAME
--command|put -c SCRIPT
--fcntl|leave it out, as redlock locks no file
--pass|give a guard --held -, a run in a freeze --ignore-freeze, and a password REDLOCK_PASSWORD_FILE
--password|set REDLOCK_PASSWORD_FILE=FILE, as anyone on this host can read a command line
--password-command|have a timer write the password to a file, and set REDLOCK_PASSWORD_FILE=FILE
--host --port|put -u redis://HOST:PORT
--priority --lifo|leave it out; waiters are served in order, so use --slots N or two locks
--name --lock|put the lock's name without an option
-x -e --exclusive|leave it out, as a lock has one holder at a time unless -s or --slots says otherwise
--label|put --reason TEXT, or set REDLOCK_SHOW=name so that others see only the program's name
--clock-skew|leave it out, as redlock expects 500ms wherever a replica may be promoted
--restart-grace|set appendfsync always in Redis, so that a restart forgets no lock
--join|put --once KEY, with the commit or the version as KEY
--unless|test it under the lock: -c 'test -e done || make'
--late|use redlock status --older-than, or stop COMMAND with -t
--timeout|put -t TIME (--max-runtime) to limit COMMAND, or -w TIME to limit the wait of a run
--max-waiting|put --max-queue N
--wait-tree|put --with-children
--order|put --seq N
--cancel-running|put --cancel-in-progress
--timeline|use redlock history --svg FILE
--summary --by-host|use redlock history --json, and count with jq
--follow|use watch -n1 redlock history
--utc|put TZ=UTC before redlock
--repair-ttl|put REDLOCK_REPAIR_TTL=1 in the environment or redlock.env
--connect-timeout|REDLOCK_REDIS_TIMEOUT
--prefix --password-file --tls-ca --tls-cert --tls-key --sync --sync-timeout|REDLOCK_
--history-size --on-lost --jitter --redis-timeout --who --show --hook|REDLOCK_";

/// Returns what replaces an old word.
pub(super) fn new_words(old: &str) -> Option<&'static str> {
    let mut rows = OLD_WORDS.lines().filter_map(|row| row.split_once('|'));
    let (_, new) = rows.find(|(all, _)| all.split(' ').any(|word| word == old))?;
    Some(new)
}
