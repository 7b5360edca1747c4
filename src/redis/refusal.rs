//! Refusals and other errors that servers answer with, as messages for users.

use std::borrow::Cow;

use redis::ServerError;

use super::error::{Cause, Error, ErrorKind, quoted};
use super::nodes::Redirect;
use super::server::{Part, Server};
use super::slot::key_starts;
use super::url::Address;

/// What an error that a server answers with means to a user; `key` is the lock's and `script` the text of
/// the script, if it was asked about one.
pub fn from_server(
    error: &ServerError,
    server: &Server,
    key: Option<&[u8]>,
    script: Option<&str>,
) -> Error {
    let all = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let (said, in_script) = without_script(&all);
    let (code, details) = said.split_once(' ').unwrap_or((said, ""));
    if said.contains("WRONGTYPE") {
        let message = wrong_type(key, in_script, server);
        return Error::new(ErrorKind::Config, message).for_doctor();
    }
    let found = not_permitted(code, &all, server, script)
        .or_else(|| refused(code, &all, server))
        .or_else(|| behind_proxy(said, server))
        .or_else(|| moving(code, details, server))
        .or_else(|| missing_command(&all, server, script))
        .or_else(|| wrong_server(code, details, server))
        .or_else(|| not_ready(code, &all, server));
    found.unwrap_or_else(|| {
        let said = without_hashes(without_arguments(said));
        let message = format!("Redis at {server} answered: {}", quoted(&said));
        Error::new(ErrorKind::Internal, message)
    })
}

/// Whether a server says so to a client that it doesn't let in, whatever that asks.
pub(super) fn is_turned_away(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "DENIED" || details.starts_with("max number of clients")
}

/// An error without what a script adds, which is of use to the script's authors alone; and whether it is
/// from within one. Redis 7.0 adds that behind the error, older servers in front of it.
fn without_script(said: &str) -> (&str, bool) {
    let before_7 = said
        .strip_prefix("ERR Error running script")
        .and_then(|rest| rest.rsplit_once("@user_script:"));
    if let Some((_, rest)) = before_7 {
        let is_place = |c: char| c.is_ascii_digit() || matches!(c, ' ' | ':' | '-');
        return (rest.trim_start_matches(is_place), true);
    }
    match said.split_once(" script: ") {
        Some((said, _)) => (said, true),
        None => (said, false),
    }
}

/// Whether a rule of the access list is missing.
fn is_permission(code: &str, said: &str) -> bool {
    code == "NOPERM" || is_refused_in_script(said)
}

/// Without what a server repeats of a command that it doesn't know: of AUTH that is the password.
fn without_arguments(said: &str) -> &str {
    let arguments = said.find(", with args beginning with");
    &said[..arguments.unwrap_or(said.len())]
}

/// The rule, if a server doesn't name the command.
const NAMED_BY_DOCTOR: &str = "the one that `redlock doctor` names";

/// Returns the error for a rule of the access list that is missing.
fn not_permitted(code: &str, said: &str, server: &Server, script: Option<&str>) -> Option<Error> {
    is_permission(code, said).then(|| {
        let (what, rule) = missing_permission(said, server.prefix(), script);
        let (user, named) = (server.user(), rule.as_deref().unwrap_or(NAMED_BY_DOCTOR));
        let message = format!(
            "Redis at {server}: {user} isn't permitted to {what}; add {named} to its ACL rules (\"permissions\" in redlock-protocol(7) has all of them)"
        );
        let error = Error::new(ErrorKind::Refused, message).of_missing_rules(named.to_owned());
        if rule.is_some() { error.for_doctor() } else { error }
    })
}

/// Returns the error for a failed authentication.
fn refused(code: &str, said: &str, server: &Server) -> Option<Error> {
    // A server answers the second to a request with more than ten parts.
    if code == "NOAUTH" || said.contains("unauthenticated") {
        return Some(needs_password(server));
    }
    let message = match code {
        "WRONGPASS" => server.wrong_password(),
        _ if said.contains("AUTH")
            && said.contains("without any password")
            && server.part() == Part::Sentinel =>
        {
            format!(
                "the sentinel at {server} needs no password; leave sentinel_password out of the URL"
            )
        }
        _ if said.contains("AUTH") && said.contains("without any password") => format!(
            "Redis at {server} has no password set, but one was given {}; leave it out",
            server.password_origin()
        ),
        "DENIED" => format!(
            "Redis at {server} is in protected mode, which admits only clients on its own host; set a password there (requirepass) and use it here (REDLOCK_PASSWORD_FILE)"
        ),
        _ => return None,
    };
    Some(Error::new(ErrorKind::Refused, message))
}

fn needs_password(server: &Server) -> Error {
    let message = if server.has_only_user() {
        return Error::new(ErrorKind::Refused, server.wrong_password());
    } else if server.part() == Part::Sentinel {
        format!(
            "the sentinel at {server} requires a password; add ?sentinel_password_file=PATH to the URL (and &sentinel_user=NAME, if it isn't the default user)"
        )
    } else {
        format!("Redis at {server} requires a password; use REDLOCK_PASSWORD_FILE or the URL")
    };
    Error::new(ErrorKind::Refused, message).because(Cause::NoPassword)
}

/// What proxies say when they can't reach their server, or get no answer from it: Envoy's sentences, and
/// the system's from twemproxy. What was asked may have been done.
fn behind_proxy(said: &str, server: &Server) -> Option<Error> {
    let by_envoy = ["upstream failure", "no upstream host"].contains(&said.trim_end());
    let by_twemproxy = [
        "Connection refused",
        "Connection timed out",
        "Connection reset",
        "No route to host",
        "Host is ",
        "Network is ",
    ];
    let error = said.strip_prefix("ERR ").unwrap_or_default();
    let is_known = by_envoy || by_twemproxy.iter().any(|start| error.starts_with(start));
    is_known.then(|| {
        let why = error.trim_end().to_lowercase();
        let why = if by_envoy { said.trim_end() } else { &why };
        let message = format!(
            "the proxy at {server} can't reach its Redis: {}",
            quoted(why)
        );
        Error::new(ErrorKind::Unreachable, message)
    })
}

/// What a node of a cluster says about keys that it doesn't have, or doesn't have all of.
fn moving(code: &str, details: &str, server: &Server) -> Option<Error> {
    if server.part() != Part::Node {
        return None;
    }
    let code = match code {
        // In the midst of a script. It is asked for again, as after a lost answer.
        "ERR" if details.starts_with("Script attempted to access a non local key") => "TRYAGAIN",
        "ERR" if details.contains("while the cluster is down") => "CLUSTERDOWN",
        code => code,
    };
    let redirect = Redirect::parse(details);
    let place = details.split(' ').nth(1).unwrap_or_default();
    let (kind, message) = match code {
        "MOVED" if redirect.is_some() => (
            ErrorKind::Moving,
            format!(
                "{server} doesn't have these keys; another node of the cluster has them now: {}",
                quoted(place)
            ),
        ),
        // Not until somebody configures that.
        "MOVED" => (
            ErrorKind::Unreachable,
            format!(
                "another node of the cluster has these keys, but {server} doesn't name its host (\"{}\"); set cluster-announce-hostname, or cluster-announce-ip, on that node",
                quoted(place)
            ),
        ),
        "ASK" | "TRYAGAIN" => (
            ErrorKind::Moving,
            format!(
                "Redis at {server} is moving these keys to another node of its cluster; try again later"
            ),
        ),
        "CLUSTERDOWN" if details.contains("not served") => (
            ErrorKind::NotNow,
            format!(
                "no node of the cluster of {server} serves the hash slot of these keys; assign it (`{}`)",
                cluster_line(server, "fix")
            ),
        ),
        // It heals, by a failover or by hand.
        "CLUSTERDOWN" => (
            ErrorKind::NoPrimary,
            format!(
                "the cluster of {server} is down, because a primary or most primaries are down; try again after the failover (`{}` shows its state)",
                cluster_line(server, "check")
            ),
        ),
        _ => return None,
    };
    let is_migration = matches!(code, "ASK" | "TRYAGAIN");
    Some(Error::new(kind, message).moved_to(redirect, is_migration))
}

/// A server, or a database, that can't hold our locks as it is used.
fn wrong_server(code: &str, details: &str, server: &Server) -> Option<Error> {
    let message = match code {
        "READONLY" => return Some(server.replica_error()),
        "UNBLOCKED" => return Some(demoted(server)),
        _ if details.starts_with("WAIT cannot be used with replica") => {
            return Some(demoted(server));
        }
        "MASTERDOWN" => {
            let message = format!(
                "Redis at {server} is a replica without a connection to its primary; use the URL of the primary"
            );
            return Some(Error::new(ErrorKind::Replica, message));
        }
        "CROSSSLOT" => format!(
            "Redis at {server} is a Redis Cluster, where all keys of redlock must be in one hash slot; {}",
            hash_tag(server)
        ),
        "MOVED" => moved(details, server),
        "CLUSTERDOWN" if details.contains("not served") => format!(
            "Redis at {server} is a Redis Cluster, and no node serves the hash slot of these keys; assign its hash slots (`{}`), or use a server that isn't a cluster",
            cluster_line(server, "fix")
        ),
        _ if details.contains("No such master") => format!(
            "the sentinel at {server} knows no primary with the name in the URL; `{}` lists its primaries",
            server.redis_cli().line(&["SENTINEL", "MASTERS"])
        ),
        _ if details.contains("SELECT is not allowed in cluster mode") => format!(
            "Redis at {server} is a Redis Cluster, which has only database 0; leave the database out of the URL"
        ),
        _ if details.contains("DB index") => format!(
            "Redis at {server} doesn't have the URL's database; unless configured otherwise, the databases are 0 to 15"
        ),
        _ => return None,
    };
    Some(Error::new(ErrorKind::Config, message).for_doctor())
}

/// Returns the error for a command that the server doesn't have: it was renamed away, or this isn't a whole Redis.
fn missing_command(said: &str, server: &Server, script: Option<&str>) -> Option<Error> {
    let name = if said.contains("Unknown Redis command called from script") {
        let commands = commands_in_line(script?, line_of_script(said)?);
        commands.join(" or ").to_uppercase()
    } else {
        let rest = said.strip_prefix("ERR unknown command ")?;
        let rest = rest.trim_start_matches(['\'', '`']);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        rest[..end].to_uppercase()
    };
    let name = Some(name.as_str()).filter(|name| !name.is_empty());
    let message = match name.unwrap_or("of a line in redlock's scripts") {
        _ if server.part() == Part::Sentinel => format!(
            "{server} isn't a sentinel; a sentinel's port is usually 26379, and a server's own URL begins with redis://"
        ),
        // A run that takes a sentinel for a server sends these first.
        name @ ("EVALSHA" | "TIME" | "ROLE") => format!(
            "{server} doesn't have the command {name}, which redlock needs; if it is a sentinel, use {}-sentinel://{server}/NAME, with the name of the primary",
            server.scheme()
        ),
        name => format!(
            "{server} doesn't have the command {name}, which redlock needs; remove its rename-command line there, or use another server"
        ),
    };
    Some(Error::new(ErrorKind::Config, message).for_doctor())
}

/// A primary that became a replica while it waited for its replicas, as a failover has it. What was asked
/// may have been done.
fn demoted(server: &Server) -> Error {
    match server.part() {
        Part::Only | Part::Sentinel => server.replica_error(),
        Part::Primary | Part::Node => {
            let message = format!(
                "a failover demoted Redis at {server} before its replicas had confirmed the lock; try again after the failover"
            );
            Error::new(ErrorKind::NoPrimary, message)
        }
    }
}

/// What may pass.
fn not_ready(code: &str, said: &str, server: &Server) -> Option<Error> {
    let (kind, why): (_, Cow<str>) = match code {
        "LOADING" => (
            ErrorKind::Loading,
            "it is loading its data; try again later".into(),
        ),
        "BUSY" => (
            ErrorKind::Busy,
            format!(
                "it is busy with another client's script; `{}` ends that",
                server.redis_cli().admin_line(&["SCRIPT", "KILL"])
            )
            .into(),
        ),
        "CLUSTERDOWN" => (
            ErrorKind::NotNow,
            format!(
                "it is a Redis Cluster, and the cluster is down; `{}` shows why",
                server.redis_cli().line(&["CLUSTER", "INFO"])
            )
            .into(),
        ),
        "TRYAGAIN" | "ASK" => (
            ErrorKind::NotNow,
            "its cluster is moving these keys to another node; try again later".into(),
        ),
        _ if said.contains("OOM ") => (
            ErrorKind::NotNow,
            "it has no memory left (maxmemory), so it admits no new lock; free some memory or raise maxmemory (held locks are not affected)".into(),
        ),
        _ if said.contains("AOF file: ") => {
            let why = said.split("AOF file: ").nth(1).unwrap_or_default();
            let line = format!("it can't write its append-only file, so it refuses all changes: {}", quoted(why.trim_end()));
            (ErrorKind::NotNow, line.into())
        }
        _ if said.contains("MISCONF ") => (
            ErrorKind::NotNow,
            "it can't save its data to disk, so it refuses all changes (stop-writes-on-bgsave-error); its log says why".into(),
        ),
        _ if said.contains("NOREPLICAS ") => (
            ErrorKind::NotNow,
            "too few of its replicas are connected (min-replicas-to-write); start replicas, or lower min-replicas-to-write".into(),
        ),
        _ if said.contains("max number of clients") => (
            ErrorKind::Crowded,
            "it has too many clients (maxclients); close some, or raise maxclients".into(),
        ),
        _ => return None,
    };
    let message = format!("Redis at {server} is not ready: {why}");
    Some(Error::new(kind, message))
}

/// A line that has redis-cli look after the cluster of a node. A socket has no address for it.
fn cluster_line(server: &Server, task: &str) -> String {
    let place = match server.address() {
        Address::Tcp { .. } => server.to_string(),
        Address::Unix(_) => "HOST:PORT".into(),
    };
    server.redis_cli().cluster_line(task, &place)
}

/// What to do about a cluster.
fn hash_tag(server: &Server) -> String {
    let scheme = server.scheme();
    let host = match server.address() {
        Address::Tcp { .. } => server.to_string(),
        Address::Unix(_) => "host1,host2".into(),
    };
    format!(
        "use {scheme}-cluster://{host}, or a prefix with a hash tag, such as REDLOCK_PREFIX='{{redlock}}:', and the URL of the node that serves it"
    )
}

/// A key of another type: that of the lock itself, or (a script stumbled over it) one beside it.
fn wrong_type(key: Option<&[u8]>, beside: bool, server: &Server) -> String {
    let Some(key) = key else {
        return format!(
            "a key with redlock's prefix has another type, so it belongs to another program at {server}; choose another REDLOCK_PREFIX"
        );
    };
    let key = quoted(&String::from_utf8_lossy(key)).into_owned();
    let what = if beside {
        format!(
            "a key that accompanies \"{key}\" (its name ends in :state, :queue or the like) has another type, so it"
        )
    } else {
        format!("key \"{key}\" isn't a string, so it is not a lock and")
    };
    format!("{what} belongs to another program at {server}; choose another name or REDLOCK_PREFIX")
}

/// The answer of one node of a cluster for what another one serves: `<slot> <host>:<port>`.
fn moved(details: &str, server: &Server) -> String {
    let node = details.split(' ').nth(1).unwrap_or_default();
    let is_known = !node.starts_with([':', '?']) && !node.is_empty();
    let node = if is_known { node } else { "another node" };
    format!(
        "Redis at {server} is a Redis Cluster, and {} serves these keys; {}",
        quoted(node),
        hash_tag(server)
    )
}

/// Whether the user of a script may not do what is in it.
fn is_refused_in_script(said: &str) -> bool {
    said.contains("user executing the script can't") || said.contains("ACL failure in script")
}

/// What a user isn't permitted, and the rule that is missing, by what servers of different ages say.
fn missing_permission(said: &str, prefix: &str, script: Option<&str>) -> (String, Option<String>) {
    let (lock, beside) = key_starts(prefix);
    let (keys, channels) = (format!("~{lock}* ~{beside}*"), format!("&{beside}*"));
    if said.contains("channel") {
        return ("use the channels of redlock".into(), Some(channels));
    }
    if said.contains(" key") && !said.contains("keys *") {
        let what = format!("use the keys of redlock (prefix \"{prefix}\")");
        return (what, Some(keys));
    }
    let named = said
        .split("the '")
        .nth(1)
        .and_then(|rest| rest.split('\'').next())
        .filter(|name| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '|' | '-' | '_' | '.');
            !name.is_empty() && name.len() < 50 && name.chars().all(is_part)
        });
    let named = named.map(|name| vec![name]);
    // Redis before 7.2 names the line, and not the command.
    let commands = named.or_else(|| Some(commands_in_line(script?, line_of_script(said)?)));
    let (upper, lower): (Vec<String>, Vec<String>) = commands
        .unwrap_or_default()
        .into_iter()
        .map(|name| (name.to_uppercase(), format!("+{}", name.to_lowercase())))
        .unzip();
    match upper.as_slice() {
        [] => ("run a command that redlock's scripts use".into(), None),
        [name] => (format!("run {name}"), Some(lower.join(" "))),
        several => (
            format!("run one of {}", several.join(", ")),
            Some(lower.join(" ")),
        ),
    }
}

/// The line of a script that an error is about: `on @user_script:12.`
fn line_of_script(said: &str) -> Option<usize> {
    let (_, rest) = said.split_once("@user_script:")?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

/// The commands that a line of a script calls: first of all those whose errors end it.
fn commands_in_line(script: &str, number: usize) -> Vec<&str> {
    let line = script.lines().nth(number.wrapping_sub(1)).unwrap_or("");
    let called = |by: &str| {
        let calls = line.split(by).skip(1);
        let mut names: Vec<&str> = calls.filter_map(|rest| rest.split('\'').next()).collect();
        names.dedup();
        names
    };
    let names = called("redis.call('");
    if names.is_empty() {
        called("redis.pcall('")
    } else {
        names
    }
}

/// Text without the names of scripts, which say nothing to a reader: `f_` and 40 digits, or these alone.
fn without_hashes(said: &str) -> String {
    let is_hash = |word: &str| {
        let digits = word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let digits = digits.strip_prefix("f_").unwrap_or(digits);
        digits.len() == 40 && digits.chars().all(|c| c.is_ascii_hexdigit())
    };
    let is_place = |word: &str| word.starts_with("@user_script");
    let words = said.split(' ');
    let kept: Vec<&str> = words
        .filter(|word| !is_hash(word) && !is_place(word))
        .collect();
    kept.join(" ").replace(" (call to", ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_may_not_do_is_named_with_the_rule_that_is_missing() {
        for (said, what, rule) in [
            (
                "NOPERM this user has no permissions to run the 'eval' command",
                "run EVAL",
                "+eval",
            ),
            (
                "NOPERM User jobs has no permissions to run the 'client|tracking' command",
                "run CLIENT|TRACKING",
                "+client|tracking",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                "use the keys of redlock (prefix \"p:\")",
                "~p:* ~{p:*",
            ),
            (
                "NOPERM No permissions to access a key",
                "use the keys of redlock (prefix \"p:\")",
                "~p:* ~{p:*",
            ),
            (
                "NOPERM No permissions to access a channel",
                "use the channels of redlock",
                "&{p:*",
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments script: 4ff, on @user_script:1.",
                "use the keys of redlock (prefix \"p:\")",
                "~p:* ~{p:*",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 4ff, on @user_script:1.",
                "run a command that redlock's scripts use",
                "",
            ),
            (
                "ERR ACL failure in script: User jobs has no permissions to run the 'set' command script: 4ff",
                "run SET",
                "+set",
            ),
        ] {
            let rule = Some(rule.to_owned()).filter(|rule| !rule.is_empty());
            let missing = missing_permission(said, "p:", None);
            assert_eq!(missing, (what.into(), rule), "{said}");
        }
        let tagged = missing_permission("NOPERM No permissions to access a key", "{p}:", None).1;
        assert_eq!(tagged.as_deref(), Some("~{p}:* ~{p}*"));
    }

    #[test]
    fn where_only_the_line_of_a_script_is_said_the_commands_of_that_line_are_named() {
        let script = "local a = KEYS[1]\nredis.pcall('TIME')\nif redis.call('HGET', a, 'x') then redis.call('SET', a, 1) end\nreturn redis.call('DEL', a)\n";
        let said = |line: usize| {
            let said = format!(
                "ERR The user executing the script can't run this command or subcommand script: 4ff, on @user_script:{line}."
            );
            missing_permission(&said, "p:", Some(script))
        };
        let names = |what: &str, rule: &str| (what.to_owned(), Some(rule.to_owned()));
        assert_eq!(said(4), names("run DEL", "+del"));
        let both = names("run one of HGET, SET", "+hget +set");
        assert_eq!(said(3), both);
        assert_eq!(said(2), names("run TIME", "+time"));
        for line in [0, 5] {
            assert!(said(line).0.starts_with("run a command that"), "{line}");
        }
    }

    #[test]
    fn what_a_script_adds_to_an_error_is_left_out_whichever_side_it_is_on() {
        for (said, error) in [
            (
                "READONLY You can't write against a read only replica. script: 4ff, on @user_script:20.",
                "READONLY You can't write against a read only replica.",
            ),
            (
                "ERR Error running script (call to f_4ff): @user_script:20: @user_script: 20: -READONLY You can't write against a read only replica.",
                "READONLY You can't write against a read only replica.",
            ),
            (
                "ERR Error running script (call to f_4ff): @user_script:2: WRONGTYPE Operation against a key holding the wrong kind of value",
                "WRONGTYPE Operation against a key holding the wrong kind of value",
            ),
        ] {
            assert_eq!(without_script(said), (error, true));
        }
        let plain = "NOAUTH Authentication required.";
        assert_eq!(without_script(plain), (plain, false));
    }

    #[test]
    fn a_script_in_whose_midst_the_keys_move_or_the_cluster_goes_down_is_asked_for_again() {
        let node = crate::protocol::fuzz::any_server(Part::Node);
        for (details, kind) in [
            (
                "Script attempted to access a non local key in a cluster node",
                ErrorKind::Moving,
            ),
            (
                "Script attempted to execute a command while the cluster is down",
                ErrorKind::NoPrimary,
            ),
        ] {
            let error = moving("ERR", details, &node).expect(details);
            assert_eq!(error.kind, kind, "{details}");
        }
        assert!(moving("ERR", "unknown command 'X'", &node).is_none());
    }

    #[test]
    fn a_node_that_names_no_host_for_the_keys_is_not_waited_for_as_that_does_not_pass() {
        let node = crate::protocol::fuzz::any_server(Part::Node);
        let error = moving("MOVED", "1 ?:7000", &node).unwrap();
        assert!(!error.kind.is_worth_waiting(), "{error}");
    }

    #[test]
    fn no_message_has_a_scripts_hash() {
        let hash = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(
            without_hashes(&format!(
                "ERR Error running script (call to f_{hash}): @user_script:12: oops"
            )),
            "ERR Error running script: oops"
        );
    }
}
