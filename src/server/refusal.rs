//! Errors of servers as messages for users: tables of sentences, and code for the cases that no table covers.
//!
//! Each row of a table has signs of an error, which are separated by `|`, and the sentence for the user. A sign is a part of
//! the error's text. A sign that is an error code ends with a space.

use redis::ServerError;

use super::call::Call;
use super::endpoint::{Part, Server};
use super::error::{Cause, Error, ErrorKind, quoted};
use super::nodes::Redirect;
use super::slot::key_starts;

/// Refusals of sentinels.
const BY_SENTINELS: [&str; 2] = [
    "NOAUTH |unauthenticated → the sentinel at {server} requires a password; add ?sentinel_password_file=PATH to the URL (and &sentinel_user=NAME, if it isn't the default user)",
    "without any password → the sentinel at {server} needs no password; leave sentinel_password out of the URL",
];

/// Refusals of servers. "unauthenticated" answers a request with more than ten parts.
const REFUSALS: [&str; 3] = [
    "NOAUTH |unauthenticated → Redis at {server} requires a password; use REDLOCK_PASSWORD_FILE or the URL",
    "without any password → Redis at {server} has no password set, but one was given {origin}; leave it out",
    "DENIED  → Redis at {server} is in protected mode, which admits only clients on its own host; set a password there (requirepass) and use it here (REDLOCK_PASSWORD_FILE)",
];

/// Answers of a cluster node that lacks some or all of the keys. Within a script, keys that have already moved are "not local".
const MOVING: [&str; 2] = [
    "MOVED  → {server} doesn't have these keys; another node of the cluster has them now: {node}",
    "ASK |TRYAGAIN |non local key → Redis at {server} is moving these keys to another node of its cluster; try again later",
];

/// Answer of a cluster node that knows no address of the node with the keys.
const NAMELESS: [&str; 1] = [
    "MOVED  → another node of the cluster has these keys, but {server} doesn't name its host (\"{node}\"); set cluster-announce-hostname, or cluster-announce-ip, on that node",
];

/// Errors of servers or databases that can't hold locks as they are configured.
const UNSUITABLE: [&str; 7] = [
    "CROSSSLOT  → Redis at {server} is a Redis Cluster, where all keys of redlock must be in one hash slot; use {scheme}-cluster://{server}, or a prefix with a hash tag, such as REDLOCK_PREFIX='{redlock}:', and the URL of the node that serves it",
    "MOVED  → Redis at {server} is a Redis Cluster, and {node} serves these keys; use {scheme}-cluster://{server}, or a prefix with a hash tag, such as REDLOCK_PREFIX='{redlock}:', and the URL of the node that serves it",
    "not served → Redis at {server} is a Redis Cluster, and no node serves the hash slot of these keys; assign it (`{cli} --cluster fix {server}`)",
    "SELECT is not allowed → Redis at {server} is a Redis Cluster, which has only database 0; leave the database out of the URL",
    "DB index → Redis at {server} doesn't have the URL's database; unless configured otherwise, the databases are 0 to 15",
    "No such master → the sentinel at {server} knows no primary with the name in the URL; `{cli} SENTINEL MASTERS` lists its primaries",
    "ERR unknown command |Unknown Redis command → {server} doesn't have the command {command}, which redlock needs; remove its rename-command line there, or use another server; for a sentinel, and for no other server, use {scheme}-sentinel://{server}/NAME",
];

/// States that may be temporary.
const NOT_READY: [&str; 9] = [
    "LOADING  → it is loading its data; try again later",
    "BUSY  → it is busy with another client's script; `{cli} SCRIPT KILL` ends that",
    "max number of clients → it has too many clients (maxclients); close some, or raise maxclients",
    "cluster is down → a primary of its cluster is down, or most are; try again after the failover (`{cli} --cluster check {server}` shows its state)",
    "ASK |TRYAGAIN  → its cluster is moving these keys to another node; try again later",
    "OOM  → it has no memory left (maxmemory), so it admits no new lock; free some memory or raise maxmemory (held locks are not affected)",
    "AOF file:  → it can't write its append-only file, so it refuses all changes: {why}",
    "MISCONF  → it can't save its data to disk, so it refuses all changes (stop-writes-on-bgsave-error); its log says why",
    "NOREPLICAS  → too few of its replicas are connected (min-replicas-to-write); start replicas, or lower min-replicas-to-write",
];

/// Errors of proxies that can't reach their server, or get no answer from it: Envoy's sentences, and the operating system's
/// from twemproxy. The server may have carried out the request.
const BY_PROXIES: [&str; 1] = [
    "upstream failure|no upstream host|Connection refused|Connection timed out|Connection reset|No route to host|Host is |Network is  → the proxy at {server} can't reach its Redis: {why}",
];

/// A server's error.
struct ServerRefusal<'a> {
    /// The error without the part that only the authors of a script need.
    text: &'a str,
    all: &'a str,
    server: &'a Server,
    /// Text of the script, if the request was a call of a script.
    script: Option<&'a str>,
}

/// Returns a server's error as a message for a user. `call` is the failed call, if a script was called.
pub fn from_server(error: &ServerError, server: &Server, call: Option<&Call>) -> Error {
    let all = format!("{} {}", error.code(), error.details().unwrap_or_default());
    // After an unknown AUTH the server repeats the password.
    let all = all.split(", with args beginning with").next();
    let all = all.unwrap_or_default();
    let text = without_script(all);
    if text.contains("WRONGTYPE") {
        let key = call.and_then(|call| call.keys.first());
        return for_doctor(wrong_type(key.map(Vec::as_slice), server));
    }
    let refusal = ServerRefusal {
        text,
        all,
        server,
        script: call.map(|call| call.script.source),
    };
    refusal.meaning().unwrap_or_else(|| {
        let message = format!("Redis at {server} answered: {}", quoted(text));
        Error::new(ErrorKind::Internal, message)
    })
}

impl ServerRefusal<'_> {
    /// Returns the error for a user, if this is a known error.
    fn meaning(&self) -> Option<Error> {
        self.not_permitted()
            .or_else(|| self.refused())
            .or_else(|| self.moving())
            .or_else(|| self.unsuitable())
            .or_else(|| self.not_ready())
    }

    fn has(&self, signs: &str) -> bool {
        signs.split('|').any(|sign| self.text.contains(sign))
    }

    /// Returns the sentence of the first row of a table that has a sign of the error.
    fn sentence(&self, rows: &[&str]) -> Option<String> {
        let mut rows = rows.iter().filter_map(|row| row.split_once(" → "));
        let (_, sentence) = rows.find(|(signs, _)| self.has(signs))?;
        let (server, text) = (self.server, self.text);
        // The operating system's reason comes last.
        let why = text.trim_end().rsplit(": ").next().unwrap_or_default();
        let why = why.strip_prefix("ERR ").unwrap_or(why);
        let node = text.split(' ').nth(2);
        let node = node.filter(|node| !node.is_empty() && !node.starts_with(':'));
        let command = match &*commands(self.all, self.script).join(" or ").to_uppercase() {
            "" => "of a line in redlock's scripts".to_owned(),
            command => command.to_owned(),
        };
        let values = [
            ("{server}", server.to_string()),
            ("{scheme}", server.scheme().into()),
            ("{cli}", server.redis_cli().line(&[])),
            ("{origin}", server.password_origin()),
            ("{command}", command),
            ("{node}", quoted(node.unwrap_or("another node")).into()),
            ("{why}", quoted(why).into()),
        ];
        let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
        Some(values.iter().fold(sentence.to_owned(), fill))
    }

    /// Returns the error for a missing ACL rule.
    fn not_permitted(&self) -> Option<Error> {
        let server = self.server;
        let signs = "NOPERM |user executing the script can't|ACL failure in script";
        self.has(signs).then(|| {
            let (what, rule) = missing_permission(self.all, &server.prefix, self.script);
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
    fn refused(&self) -> Option<Error> {
        let needs_password = self.has("NOAUTH |unauthenticated");
        let is_wrong = needs_password && self.server.has_only_user() || self.has("WRONGPASS ");
        let message = match self.server.part {
            _ if is_wrong => Some(self.server.wrong_password()),
            Part::Sentinel => self.sentence(&BY_SENTINELS),
            _ => None,
        };
        let message = message.or_else(|| self.sentence(&REFUSALS))?;
        Some(Error::new(ErrorKind::Refused, message))
    }

    /// Returns the error for a cluster node that lacks some or all of the keys.
    fn moving(&self) -> Option<Error> {
        let message = self.sentence(&MOVING)?;
        let redirect = self.text.split_once(' ');
        let redirect = redirect.and_then(|(_, details)| Redirect::parse(details));
        let cause = match (self.has("MOVED "), redirect) {
            _ if self.server.part != Part::Node => return None,
            (true, None) => {
                let message = self.sentence(&NAMELESS)?;
                return Some(Error::new(ErrorKind::Unreachable, message));
            }
            (true, Some(redirect)) => Cause::Moved(redirect),
            // redlock asks again, as after a lost answer.
            (false, redirect) => Cause::Migrating(redirect),
        };
        Some(Error::new(ErrorKind::Moving, message).because(cause))
    }

    /// Returns the error for a server or a database that can't hold locks as it is configured.
    fn unsuitable(&self) -> Option<Error> {
        let is_demoted = self.has("UNBLOCKED |WAIT cannot be used with replica");
        let kind = match self.server.part {
            // A failover happened while the server waited for its replicas. The server may have carried out the request.
            Part::Primary | Part::Node if is_demoted => Some(ErrorKind::NoPrimary),
            Part::Node if self.has("not served") => Some(ErrorKind::NotNow),
            _ => None,
        };
        let mut error = if is_demoted || self.has("READONLY |MASTERDOWN ") {
            self.server.replica_error()
        } else {
            for_doctor(self.sentence(&UNSUITABLE)?)
        };
        error.kind = kind.unwrap_or(error.kind);
        Some(error)
    }

    /// Returns the error for a state that may be temporary.
    fn not_ready(&self) -> Option<Error> {
        let server = self.server;
        let kind = match server.part {
            _ if self.has("LOADING ") => ErrorKind::Loading,
            _ if self.has("BUSY ") => ErrorKind::Busy,
            _ if self.has("max number of clients") => ErrorKind::Crowded,
            // A failover, or a person, heals the cluster.
            Part::Node if self.has("cluster is down") => ErrorKind::NoPrimary,
            _ => ErrorKind::NotNow,
        };
        if let Some(why) = self.sentence(&NOT_READY) {
            let message = format!("Redis at {server} is not ready: {why}");
            return Some(Error::new(kind, message));
        }
        let message = self.sentence(&BY_PROXIES)?;
        Some(Error::new(ErrorKind::Unreachable, message))
    }
}

/// Returns true for the errors with which a server turns a client away, whatever the request.
pub(super) fn is_turned_away(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "DENIED" || details.starts_with("max number of clients")
}

/// Returns an error without the part that only the authors of a script need. Redis 7.0 appends that part to the error, older
/// servers put it in front.
fn without_script(text: &str) -> &str {
    let before_7 = text
        .strip_prefix("ERR Error running script")
        .and_then(|rest| rest.rsplit_once("@user_script:"));
    if let Some((_, rest)) = before_7 {
        let is_place = |c: char| c.is_ascii_digit() || matches!(c, ' ' | ':' | '-');
        return rest.trim_start_matches(is_place);
    }
    text.split_once(" script: ").map_or(text, |(text, _)| text)
}

/// Returns the error for a server or a key that can't hold locks as it is.
fn for_doctor(message: String) -> Error {
    let mut error = Error::new(ErrorKind::Config, message);
    error.doctor_knows_more = true;
    error
}

/// Placeholder for the rule, if the server doesn't name the command.
const NAMED_BY_DOCTOR: &str = "the one that `redlock doctor` names";

/// Returns the message for a key of another type: the lock's own `key`, or a key that accompanies it.
fn wrong_type(key: Option<&[u8]>, server: &Server) -> String {
    let key = String::from_utf8_lossy(key.unwrap_or(server.prefix.as_bytes()));
    let key = quoted(&key);
    format!(
        "key \"{key}\", or a key that accompanies it (its name ends in :state, :queue or the like), has another type, so it belongs to another program at {server}; choose another name or REDLOCK_PREFIX"
    )
}

/// Returns the forbidden action and the missing rule, from the wording of old and new servers.
fn missing_permission(text: &str, prefix: &str, script: Option<&str>) -> (String, Option<String>) {
    let (lock, beside) = key_starts(prefix);
    if text.contains("channel") {
        let rule = format!("&{beside}*");
        return ("use the channels of redlock".into(), Some(rule));
    }
    if text.contains(" key") && !text.contains("keys *") {
        let what = format!("use the keys of redlock (prefix \"{prefix}\")");
        return (what, Some(format!("~{lock}* ~{beside}*")));
    }
    let commands = commands(text, script);
    let names = commands.join(", ").to_uppercase();
    let rules = format!("+{}", commands.join(" +").to_lowercase());
    match commands.len() {
        0 => ("run a command that redlock's scripts use".into(), None),
        1 => (format!("run {names}"), Some(rules)),
        _ => (format!("run one of {names}"), Some(rules)),
    }
}

/// Returns the commands that an error is about. Redis before 7.2 names the line of a script instead of its command.
fn commands<'a>(text: &'a str, script: Option<&'a str>) -> Vec<&'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '|' | '-' | '_' | '.');
    let named = ["unknown command ", "the '"].iter().find_map(|start| {
        let name = text.split_once(start)?.1.trim_start_matches(['\'', '`']);
        let name = name.split(|c| !is_part(c)).next()?;
        (1..50).contains(&name.len()).then(|| vec![name])
    });
    let commands = named.or_else(|| commands_in_line(text, script?));
    commands.unwrap_or_default()
}

/// Returns the commands in the line of a script that an error names, as in `on @user_script:12.`. Prefers those whose errors
/// end the script (`redis.call`).
fn commands_in_line<'a>(text: &str, script: &'a str) -> Option<Vec<&'a str>> {
    let (_, number) = text.split_once("@user_script:")?;
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
    use redis::Value;

    use super::*;

    /// Returns a server's error as the user sees it.
    fn answer_of(server: &Server, error: &str) -> Error {
        let reply = format!("-{error}\r\n");
        match redis::parse_redis_value(reply.as_bytes()) {
            Ok(Value::ServerError(error)) => from_server(&error, server, None),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_user_may_not_do_is_named_with_the_rule_that_is_missing() {
        let keys = "use the keys of redlock (prefix \"p:\")";
        let rows = "NOPERM this user has no permissions to run the 'eval' command; run EVAL; +eval
            NOPERM User jobs has no permissions to run the 'client|tracking' command; run CLIENT|TRACKING; +client|tracking
            NOPERM this user has no permissions to access one of the keys used as arguments; KEYS; ~p:* ~{p:*
            NOPERM No permissions to access a key; KEYS; ~p:* ~{p:*
            NOPERM No permissions to access a channel; use the channels of redlock; &{p:*
            ERR The user executing the script can't access at least one of the keys mentioned SCRIPT; KEYS; ~p:* ~{p:*
            ERR The user executing the script can't run this command or subcommand SCRIPT; run a command that redlock's scripts use; -
            ERR ACL failure in script: User jobs has no permissions to run the 'set' command script: 4ff; run SET; +set";
        for row in rows.lines() {
            let (text, row) = row.trim_start().split_once("; ").unwrap();
            let (what, rule) = row.split_once("; ").unwrap();
            let text = text.replace("SCRIPT", "script: 4ff, on @user_script:1.");
            let rule = Some(rule.to_owned()).filter(|rule| rule != "-");
            let missing = missing_permission(&text, "p:", None);
            assert_eq!(missing, (what.replace("KEYS", keys), rule), "{text}");
        }
        let tagged = missing_permission("NOPERM No permissions to access a key", "{p}:", None).1;
        assert_eq!(tagged.as_deref(), Some("~{p}:* ~{p}*"));
    }

    #[test]
    fn where_only_the_line_of_a_script_is_said_the_commands_of_that_line_are_named() {
        let script = "local a = KEYS[1]\nredis.pcall('TIME')\nif redis.call('HGET', a, 'x') then redis.call('SET', a, 1) end\nreturn redis.call('DEL', a)\n";
        let missing = |line: usize| {
            let text = format!(
                "ERR The user executing the script can't run this command or subcommand script: 4ff, on @user_script:{line}."
            );
            missing_permission(&text, "p:", Some(script))
        };
        let names = |what: &str, rule: &str| (what.to_owned(), Some(rule.to_owned()));
        assert_eq!(missing(4), names("run DEL", "+del"));
        let both = names("run one of HGET, SET", "+hget +set");
        assert_eq!(missing(3), both);
        assert_eq!(missing(2), names("run TIME", "+time"));
        for line in [0, 5] {
            assert!(missing(line).0.starts_with("run a command that"), "{line}");
        }
    }

    #[test]
    fn the_hash_and_the_line_of_a_script_are_left_out_on_either_side_of_an_error() {
        for (text, error) in [
            ("CALL @user_script:12: oops", "oops"),
            ("ERR oops script: 4ff, on @user_script:12.", "ERR oops"),
            (
                "READONLY You can't write script: 4ff, on @user_script:20.",
                "READONLY You can't write",
            ),
            (
                "CALL @user_script:20: @user_script: 20: -READONLY You can't write",
                "READONLY You can't write",
            ),
            ("CALL @user_script:2: WRONGTYPE X", "WRONGTYPE X"),
        ] {
            let text = text.replace("CALL", "ERR Error running script (call to f_4ff):");
            assert_eq!(without_script(&text), error);
        }
        let plain = "NOAUTH Authentication required.";
        assert_eq!(without_script(plain), plain);
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
            let error = answer_of(&node, &format!("ERR {details}"));
            assert_eq!(error.kind, kind, "{details}");
        }
        let unknown = answer_of(&node, "ERR unknown command 'X'");
        assert_eq!(unknown.kind, ErrorKind::Config);
    }

    #[test]
    fn a_node_that_names_no_host_for_the_keys_is_not_waited_for_as_that_does_not_pass() {
        let node = crate::protocol::fuzz::any_server(Part::Node);
        let error = answer_of(&node, "MOVED 1 ?:7000");
        assert!(!error.kind.is_worth_waiting(), "{error}");
    }
}
