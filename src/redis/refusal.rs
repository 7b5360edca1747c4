//! Refusals and other errors that servers answer with, as messages for users.

use redis::ServerError;

use super::error::{Cause, Error, ErrorKind, quoted};
use super::nodes::Redirect;
use super::redis_cli::RedisCli;
use super::server::{Part, Server};
use super::slot::key_starts;
use super::url::Address;

/// Returns the meaning of a server's error for a user. If it answers a script, `key` is the lock's and `script` the text of
/// the script.
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
        return for_doctor(wrong_type(key, in_script, server));
    }
    let meaning = not_permitted(code, &all, server, script)
        .or_else(|| refused(code, &all, server))
        .or_else(|| behind_proxy(said, server))
        .or_else(|| moving(code, details, server))
        .or_else(|| missing_command(&all, server, script))
        .or_else(|| wrong_server(code, details, server))
        .or_else(|| not_ready(code, &all, server));
    meaning.unwrap_or_else(|| {
        // After an unknown AUTH the server repeats the password.
        let said = said.split(", with args beginning with").next();
        let said = quoted(said.unwrap_or_default());
        let message = format!("Redis at {server} answered: {said}");
        Error::new(ErrorKind::Internal, message)
    })
}

/// Returns true for the error by which a server turns a client away, whatever that asks.
pub(super) fn is_turned_away(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "DENIED" || details.starts_with("max number of clients")
}

/// Returns an error without the part that only the authors of a script need, and whether it is from within a script. Redis
/// 7.0 adds that part behind the error, older servers in front of it.
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

/// Returns the error for a server, or a key, that can't hold locks as it is.
fn for_doctor(message: String) -> Error {
    let mut error = Error::new(ErrorKind::Config, message);
    error.doctor_knows_more = true;
    error
}

/// The rule, if a server doesn't name the command.
const NAMED_BY_DOCTOR: &str = "the one that `redlock doctor` names";

/// Returns the error for a rule of the access list that is missing.
fn not_permitted(code: &str, said: &str, server: &Server, script: Option<&str>) -> Option<Error> {
    let is_permission = code == "NOPERM"
        || said.contains("user executing the script can't")
        || said.contains("ACL failure in script");
    is_permission.then(|| {
        let (what, rule) = missing_permission(said, &server.prefix, script);
        let (user, named) = (server.user(), rule.as_deref().unwrap_or(NAMED_BY_DOCTOR));
        let message = format!(
            "Redis at {server}: {user} isn't permitted to {what}; add {named} to its ACL rules (`redlock help servers` has all of them)"
        );
        let mut error = Error::new(ErrorKind::Refused, message);
        error.doctor_knows_more = rule.is_some();
        error.because(Cause::MissingRules(named.to_owned()))
    })
}

/// Returns the error for a failed authentication.
fn refused(code: &str, said: &str, server: &Server) -> Option<Error> {
    // A server answers the second to a request with more than ten parts.
    let needs_password = code == "NOAUTH" || said.contains("unauthenticated");
    let has_none = said.contains("AUTH") && said.contains("without any password");
    let is_sentinel = server.part == Part::Sentinel;
    let message = match code {
        "WRONGPASS" => server.wrong_password(),
        _ if needs_password && server.has_only_user() => server.wrong_password(),
        _ if needs_password && is_sentinel => format!(
            "the sentinel at {server} requires a password; add ?sentinel_password_file=PATH to the URL (and &sentinel_user=NAME, if it isn't the default user)"
        ),
        _ if needs_password => {
            format!("Redis at {server} requires a password; use REDLOCK_PASSWORD_FILE or the URL")
        }
        _ if has_none && is_sentinel => format!(
            "the sentinel at {server} needs no password; leave sentinel_password out of the URL"
        ),
        _ if has_none => format!(
            "Redis at {server} has no password set, but one was given {}; leave it out",
            server.password_origin()
        ),
        "DENIED" => format!(
            "Redis at {server} is in protected mode, which admits only clients on its own host; set a password there (requirepass) and use it here (REDLOCK_PASSWORD_FILE)"
        ),
        _ => return None,
    };
    let cause = needs_password.then_some(Cause::NoPassword);
    Some(Error::new(ErrorKind::Refused, message).because(cause))
}

/// Errors of proxies that can't reach their server, or get no answer from it: Envoy's sentences, and the system's from
/// twemproxy.
const BY_PROXIES: [&str; 8] = [
    "upstream failure",
    "no upstream host",
    "Connection refused",
    "Connection timed out",
    "Connection reset",
    "No route to host",
    "Host is ",
    "Network is ",
];

/// Returns the error of a proxy. The request may have been carried out.
fn behind_proxy(said: &str, server: &Server) -> Option<Error> {
    let why = said.strip_prefix("ERR ").unwrap_or(said).trim_end();
    BY_PROXIES.iter().find(|start| why.starts_with(**start))?;
    let why = why.to_lowercase();
    let why = quoted(&why);
    let message = format!("the proxy at {server} can't reach its Redis: {why}");
    Some(Error::new(ErrorKind::Unreachable, message))
}

/// Returns the error of a cluster's node for keys that it doesn't have, or doesn't have all of.
fn moving(code: &str, details: &str, server: &Server) -> Option<Error> {
    if server.part != Part::Node {
        return None;
    }
    let code = match code {
        // From within a script. Redlock asks again, as after a lost answer.
        "ERR" if details.starts_with("Script attempted to access a non local key") => "TRYAGAIN",
        "ERR" if details.contains("while the cluster is down") => "CLUSTERDOWN",
        code => code,
    };
    let is_unserved = details.contains("not served");
    let (kind, cause) = match (code, Redirect::parse(details)) {
        ("MOVED", Some(redirect)) => (ErrorKind::Moving, Some(Cause::Moved(redirect))),
        // Waiting doesn't help: somebody must configure it.
        ("MOVED", None) => (ErrorKind::Unreachable, None),
        ("ASK" | "TRYAGAIN", redirect) => (ErrorKind::Moving, Some(Cause::Migrating(redirect))),
        ("CLUSTERDOWN", _) if is_unserved => (ErrorKind::NotNow, None),
        // It heals, by a failover or by hand.
        ("CLUSTERDOWN", _) => (ErrorKind::NoPrimary, None),
        _ => return None,
    };
    let place = quoted(details.split(' ').nth(1).unwrap_or_default());
    let message = match code {
        "MOVED" if cause.is_some() => format!(
            "{server} doesn't have these keys; another node of the cluster has them now: {place}"
        ),
        "MOVED" => format!(
            "another node of the cluster has these keys, but {server} doesn't name its host (\"{place}\"); set cluster-announce-hostname, or cluster-announce-ip, on that node"
        ),
        "CLUSTERDOWN" if is_unserved => format!(
            "no node of the cluster of {server} serves the hash slot of these keys; assign it (`{}`)",
            cluster_line(server, "fix")
        ),
        "CLUSTERDOWN" => format!(
            "the cluster of {server} is down, because a primary or most primaries are down; try again after the failover (`{}` shows its state)",
            cluster_line(server, "check")
        ),
        _ => format!(
            "Redis at {server} is moving these keys to another node of its cluster; try again later"
        ),
    };
    Some(Error::new(kind, message).because(cause))
}

/// Returns the error for a server, or a database, that can't hold locks as it is used.
fn wrong_server(code: &str, details: &str, server: &Server) -> Option<Error> {
    let is_demoted = code == "UNBLOCKED" || details.starts_with("WAIT cannot be used with replica");
    if is_demoted && matches!(server.part, Part::Primary | Part::Node) {
        // A failover, while the server waited for its replicas. The request may have been carried out.
        let message = format!(
            "a failover demoted Redis at {server} before its replicas had confirmed the lock; try again after the failover"
        );
        return Some(Error::new(ErrorKind::NoPrimary, message));
    }
    if is_demoted || code == "READONLY" {
        return Some(server.replica_error());
    }
    let hash_tag = || {
        let (scheme, place) = (server.scheme(), place(server));
        format!(
            "use {scheme}-cluster://{place}, or a prefix with a hash tag, such as REDLOCK_PREFIX='{{redlock}}:', and the URL of the node that serves it"
        )
    };
    let message = match code {
        "MASTERDOWN" => {
            let message = format!(
                "Redis at {server} is a replica without a connection to its primary; use the URL of the primary"
            );
            return Some(Error::new(ErrorKind::Replica, message));
        }
        "CROSSSLOT" => format!(
            "Redis at {server} is a Redis Cluster, where all keys of redlock must be in one hash slot; {}",
            hash_tag()
        ),
        "MOVED" => {
            let node = details.split(' ').nth(1);
            let node = node.filter(|node| !node.is_empty() && !node.starts_with([':', '?']));
            format!(
                "Redis at {server} is a Redis Cluster, and {} serves these keys; {}",
                quoted(node.unwrap_or("another node")),
                hash_tag()
            )
        }
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
    Some(for_doctor(message))
}

/// Returns the error for a command that the server doesn't have: it was renamed away, or this isn't a whole Redis.
fn missing_command(said: &str, server: &Server, script: Option<&str>) -> Option<Error> {
    let is_unknown = said.starts_with("ERR unknown command ")
        || said.contains("Unknown Redis command called from script");
    if !is_unknown {
        return None;
    }
    let names = commands(said, script).join(" or ").to_uppercase();
    let message = match names.as_str() {
        _ if server.part == Part::Sentinel => format!(
            "{server} isn't a sentinel; a sentinel's port is usually 26379, and a server's own URL begins with redis://"
        ),
        // A run that takes a sentinel for a server sends these first.
        name @ ("EVALSHA" | "TIME" | "ROLE") => format!(
            "{server} doesn't have the command {name}, which redlock needs; if it is a sentinel, use {}-sentinel://{server}/NAME, with the name of the primary",
            server.scheme()
        ),
        name => {
            let name = Some(name).filter(|name| !name.is_empty());
            let name = name.unwrap_or("of a line in redlock's scripts");
            format!(
                "{server} doesn't have the command {name}, which redlock needs; remove its rename-command line there, or use another server"
            )
        }
    };
    Some(for_doctor(message))
}

/// Returns the error for a state that may pass.
fn not_ready(code: &str, said: &str, server: &Server) -> Option<Error> {
    let kind = match code {
        "LOADING" => ErrorKind::Loading,
        "BUSY" => ErrorKind::Busy,
        _ if said.contains("max number of clients") => ErrorKind::Crowded,
        _ => ErrorKind::NotNow,
    };
    let why = match code {
        "LOADING" => "it is loading its data; try again later",
        "BUSY" => &format!(
            "it is busy with another client's script; `{}` ends that",
            RedisCli::admin_line(&[server.redis_cli()], &[&["SCRIPT", "KILL"]], None)
        ),
        "CLUSTERDOWN" => &format!(
            "it is a Redis Cluster, and the cluster is down; `{}` shows why",
            server.redis_cli().line(&["CLUSTER", "INFO"])
        ),
        "TRYAGAIN" | "ASK" => "its cluster is moving these keys to another node; try again later",
        _ if said.contains("OOM ") => {
            "it has no memory left (maxmemory), so it admits no new lock; free some memory or raise maxmemory (held locks are not affected)"
        }
        _ if said.contains("AOF file: ") => {
            let why = said.split("AOF file: ").nth(1).unwrap_or_default();
            let why = quoted(why.trim_end());
            &format!("it can't write its append-only file, so it refuses all changes: {why}")
        }
        _ if said.contains("MISCONF ") => {
            "it can't save its data to disk, so it refuses all changes (stop-writes-on-bgsave-error); its log says why"
        }
        _ if said.contains("NOREPLICAS ") => {
            "too few of its replicas are connected (min-replicas-to-write); start replicas, or lower min-replicas-to-write"
        }
        _ if kind == ErrorKind::Crowded => {
            "it has too many clients (maxclients); close some, or raise maxclients"
        }
        _ => return None,
    };
    let message = format!("Redis at {server} is not ready: {why}");
    Some(Error::new(kind, message))
}

/// Returns a command by which redis-cli looks after the cluster of a node.
fn cluster_line(server: &Server, task: &str) -> String {
    server.redis_cli().cluster_line(task, &place(server))
}

/// Returns a server's address. A socket has none for a cluster.
fn place(server: &Server) -> String {
    match &server.address {
        Address::Tcp { .. } => server.to_string(),
        Address::Unix(_) => "HOST:PORT".into(),
    }
}

/// Returns the message for a key of another type: that of the lock itself, or one `beside` it, over which a script stumbled.
fn wrong_type(key: Option<&[u8]>, beside: bool, server: &Server) -> String {
    let Some(key) = key else {
        return format!(
            "a key with redlock's prefix has another type, so it belongs to another program at {server}; choose another REDLOCK_PREFIX"
        );
    };
    let key = String::from_utf8_lossy(key);
    let key = quoted(&key);
    let what = if beside {
        format!(
            "a key that accompanies \"{key}\" (its name ends in :state, :queue or the like) has another type, so it"
        )
    } else {
        format!("key \"{key}\" isn't a string, so it is not a lock and")
    };
    format!("{what} belongs to another program at {server}; choose another name or REDLOCK_PREFIX")
}

/// Returns what a user isn't permitted, and the rule that is missing, by the words of servers of all ages.
fn missing_permission(said: &str, prefix: &str, script: Option<&str>) -> (String, Option<String>) {
    let (lock, beside) = key_starts(prefix);
    if said.contains("channel") {
        let rule = format!("&{beside}*");
        return ("use the channels of redlock".into(), Some(rule));
    }
    if said.contains(" key") && !said.contains("keys *") {
        let what = format!("use the keys of redlock (prefix \"{prefix}\")");
        return (what, Some(format!("~{lock}* ~{beside}*")));
    }
    let commands = commands(said, script);
    let names = commands.join(", ").to_uppercase();
    let rules = format!("+{}", commands.join(" +").to_lowercase());
    match commands.len() {
        0 => ("run a command that redlock's scripts use".into(), None),
        1 => (format!("run {names}"), Some(rules)),
        _ => (format!("run one of {names}"), Some(rules)),
    }
}

/// Returns the commands that an error is about. Redis before 7.2 names the line of a script instead of its command.
fn commands<'a>(said: &'a str, script: Option<&'a str>) -> Vec<&'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '|' | '-' | '_' | '.');
    let named = ["unknown command ", "the '"].iter().find_map(|start| {
        let name = said.split_once(start)?.1.trim_start_matches(['\'', '`']);
        let name = name.split(|c| !is_part(c)).next()?;
        (1..50).contains(&name.len()).then(|| vec![name])
    });
    let commands = named.or_else(|| commands_in_line(said, script?));
    commands.unwrap_or_default()
}

/// Returns the commands in the line of a script that an error is about, as in `on @user_script:12.`: only those whose errors
/// end the script, if there are any.
fn commands_in_line<'a>(said: &str, script: &'a str) -> Option<Vec<&'a str>> {
    let (_, number) = said.split_once("@user_script:")?;
    let number = number.split(|c: char| !c.is_ascii_digit()).next()?;
    let number: usize = number.parse().ok()?;
    let line = script.lines().nth(number.checked_sub(1)?)?;
    ["redis.call('", "redis.pcall('"].iter().find_map(|call| {
        let calls = line.split(call).skip(1);
        let mut names: Vec<&str> = calls.filter_map(|rest| rest.split('\'').next()).collect();
        names.dedup();
        (!names.is_empty()).then_some(names)
    })
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
    fn the_hash_and_the_line_of_a_script_are_left_out_on_either_side_of_an_error() {
        for (said, error) in [
            (
                "ERR Error running script (call to f_4ff): @user_script:12: oops",
                "oops",
            ),
            ("ERR oops script: 4ff, on @user_script:12.", "ERR oops"),
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
}
