//! Redis URLs, parsed part by part, so that an error can name the wrong part. Pure. No message repeats a part of the URL
//! except its scheme, because any part may be a piece of a password.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl Address {
    /// Returns the host as the URL names it, or an empty text for a socket.
    pub fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Unix(_) => "",
        }
    }

    /// Returns true if connections are encrypted.
    pub fn has_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }

    pub fn is_socket(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Returns true if this address is reachable only from this host.
    pub fn is_within_host(&self) -> bool {
        let host = self.host();
        let ip = host.parse::<IpAddr>();
        self.is_socket() || host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => f.write_str(&with_port(host, port)),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Origin of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UrlOrigin {
    #[default]
    Flag,
    Environment,
    /// A line of a file.
    File(PathBuf, usize),
    /// No URL is set.
    Unset,
}

impl fmt::Display for UrlOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--url"),
            Self::Environment => f.write_str("$REDLOCK_URL"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Unset => f.write_str("the default"),
        }
    }
}

/// A user name and a password, if they are given.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub struct Login {
    pub username: Option<String>,
    pub password: Option<String>,
}

/// Location of the locks.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub enum Place {
    /// A server.
    Server(Address),
    /// A server of this host, which redlock starts.
    Local,
    /// The primary that these sentinels know by this name.
    Sentinels {
        nodes: Vec<Address>,
        primary: String,
        login: Login,
        /// File with the password for the sentinels.
        password_file: Option<PathBuf>,
    },
    /// The Redis Cluster of these nodes.
    Cluster {
        nodes: Vec<Address>,
        /// Hash tag with which all keys begin.
        tag: Option<String>,
    },
}

/// Contents of a URL.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub struct Url {
    pub place: Place,
    pub database: i64,
    pub login: Login,
}

const SCHEMES: &str = "redis://, rediss://, unix://, redis-sentinel://, redis-cluster:// or local:";
const PORT: &str = "6379";
const SENTINEL_PORT: &str = "26379";

impl Url {
    /// Parses a URL, or returns the mistake in it. Ignores white space around it, such as the newline at the end of a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with(['"', '\'']) {
            return Err("it begins with a quote; remove the quotes around it".into());
        }
        if text == "local:" {
            return Ok(Self {
                place: Place::Local,
                database: 0,
                login: Login::default(),
            });
        }
        if text.starts_with("local:") {
            return Err("write `local:`, with nothing after it".into());
        }
        let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        let split = text.split_once("://").filter(|(scheme, _)| is_word(scheme));
        let Some((scheme, rest)) = split else {
            return Err(format!("it must begin with {SCHEMES}"));
        };
        if rest.contains("://") {
            return Err("it has several URLs, and independent servers can't share a lock; use one server, Sentinel (redis-sentinel://host1,host2,host3/NAME) or Redis Cluster (redis-cluster://host1,host2)".into());
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("it has a space or control character; a space is written %20".into());
        }
        if rest.contains('#') {
            return Err(
                "a # in a password must be written %23; otherwise remove the # and what follows it"
                    .into(),
            );
        }
        let tls = scheme.starts_with("rediss");
        let read = match scheme {
            "unix" => return unix(rest),
            "redis" | "rediss" => tcp,
            "redis-sentinel" | "rediss-sentinel" => sentinels,
            "redis-cluster" | "rediss-cluster" => cluster,
            _ => return Err(format!("unknown scheme {scheme}://; use {SCHEMES}")),
        };
        let parts = parts(rest)?;
        let (place, number) = read(&parts, tls)?;
        Ok(Self {
            place,
            database: database(number)?,
            login: parts.login,
        })
    }
}

/// Returns whether a URL contains a password, and the password file that it names.
pub fn passwords(url: &str) -> (bool, Option<PathBuf>) {
    let Ok(Url { place, login, .. }) = Url::parse(url) else {
        return (false, None);
    };
    let (theirs, file) = match place {
        Place::Sentinels {
            login,
            password_file,
            ..
        } => (login.password, password_file),
        _ => (None, None),
    };
    (login.password.or(theirs).is_some(), file)
}

/// The parts of `[user[:password]@]hosts[/path][?options]`, with decoded credentials.
struct Parts<'a> {
    login: Login,
    hosts: &'a str,
    /// The path without its leading `/`.
    path: &'a str,
    options: &'a str,
}

fn parts(text: &str) -> Result<Parts<'_>, String> {
    let end = text.find(['/', '?']).unwrap_or(text.len());
    let (authority, rest) = text.split_at(end);
    if let Some(at) = rest.find('@') {
        let sign = if rest[..at].contains('?') { '?' } else { '/' };
        return Err(format!(
            "a {sign} in the user name or password must be written %{:X}",
            u32::from(sign)
        ));
    }
    if authority.matches('@').count() > 1 {
        return Err("an @ in the user name or password must be written %40".into());
    }
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (username, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    Ok(Parts {
        login: Login {
            username: some(decoded(username, "user name")?),
            password: some(decoded(password, "password")?),
        },
        hosts,
        path: path.strip_prefix('/').unwrap_or_default(),
        options,
    })
}

/// Parses `[user[:password]@]host[:port][/db]`.
fn tcp<'a>(parts: &Parts<'a>, tls: bool) -> Result<(Place, &'a str), String> {
    let [] = options(parts.options, [])?;
    if parts.hosts.contains(',') {
        return Err("it has several hosts; with Sentinel use redis-sentinel://host1,host2,host3/NAME, with Redis Cluster redis-cluster://host1,host2".into());
    }
    if parts.hosts.is_empty() && parts.path.contains('/') {
        return Err("the host is missing; a socket is written unix:///PATH".into());
    }
    let address = tcp_address(parts.hosts, PORT, tls)?;
    Ok((Place::Server(address), parts.path))
}

/// Returns the values of the options with these names. Ignores `protocol`, which other clients know.
fn options<const N: usize>(text: &str, names: [&str; N]) -> Result<[Option<String>; N], String> {
    let mut values = std::array::from_fn(|_| None);
    for option in text.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match names.iter().position(|known| *known == name) {
            Some(at) => values[at] = some(decoded(value, name)?),
            None if name == "protocol" => {}
            None if N == 0 => {
                return Err(
                    "it has an unknown option after the ?; redlock knows none for such a URL, and the database of a server is written /3".into(),
                );
            }
            None => {
                let names = names.join(", ");
                return Err(format!(
                    "it has an unknown option after the ?; the options are {names}"
                ));
            }
        }
    }
    Ok(values)
}

/// Parses `[user[:password]@]host[:port],…/NAME[/db][?sentinel_user=…&sentinel_password=…]`.
fn sentinels<'a>(parts: &Parts<'a>, tls: bool) -> Result<(Place, &'a str), String> {
    let names = [
        "sentinel_user",
        "sentinel_password",
        "sentinel_password_file",
    ];
    let [username, password, password_file] = options(parts.options, names)?;
    let nodes = nodes(parts.hosts, SENTINEL_PORT, tls)?;
    let (primary, number) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let primary = decoded(primary, "name of the primary")?;
    if primary.is_empty() {
        return Err("the primary's name, as the sentinels know it, is missing after the hosts; write redis-sentinel://host1,host2,host3/mymaster".into());
    }
    let place = Place::Sentinels {
        nodes,
        primary,
        login: Login { username, password },
        password_file: password_file.map(PathBuf::from),
    };
    Ok((place, number))
}

/// Parses `[user[:password]@]host[:port],…[/tag]`.
fn cluster<'a>(parts: &Parts<'a>, tls: bool) -> Result<(Place, &'a str), String> {
    let [] = options(parts.options, [])?;
    let tag = parts.path.strip_suffix('/').unwrap_or(parts.path);
    let tag = decoded(tag, "hash tag")?;
    if tag.contains(['{', '}', '/']) {
        return Err("the part after the hosts is the hash tag of all keys, without braces, as in redis-cluster://host1,host2/jobs".into());
    }
    let nodes = nodes(parts.hosts, PORT, tls)?;
    // For other clients the number is a database. As a tag it would name other locks than the URL without it.
    if !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = if tag == "0" { "/0" } else { "the number" };
        return Err(format!("a cluster has only database 0; leave {number} out"));
    }
    let tag = some(tag);
    Ok((Place::Cluster { nodes, tag }, ""))
}

/// Parses `host[:port],…`. Drops duplicates.
fn nodes(hosts: &str, port: &str, tls: bool) -> Result<Vec<Address>, String> {
    let mut nodes = Vec::new();
    for host in hosts.split(',') {
        let node = tcp_address(host, port, tls)?;
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

/// Parses a host and its port. Uses the default port if none is given.
fn tcp_address(place: &str, default: &str, tls: bool) -> Result<Address, String> {
    let is_address = |host: &str| host.parse::<Ipv6Addr>().is_ok();
    let (host, port) = match place.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, ""))) if is_address(host) => (host, ""),
        Some(Some((host, port))) if is_address(host) && port.starts_with(':') => (host, &port[1..]),
        None if place.matches(':').count() < 2 => place.split_once(':').unwrap_or((place, "")),
        _ => return Err("an IPv6 address must be in brackets, such as [::1]:6379".into()),
    };
    if host.is_empty() {
        return Err("the host is missing".into());
    }
    if !is_host(host) {
        return Err("the host has a character that no host name has".into());
    }
    let port = if port.is_empty() { default } else { port };
    let port = port.parse().map(NonZeroU16::get).map_err(|_| {
        "the port must be a number from 1 to 65535 (a user name and password stand before an @)"
    })?;
    let host = host.to_owned();
    Ok(Address::Tcp { host, port, tls })
}

/// Returns true if a text can be a host, or is empty. Rejects `?`, which a cluster node writes for an unknown host.
pub(super) fn is_host(host: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    host.chars().all(is_part)
}

/// Parses `/path[?db=N&user=USER&pass=PASSWORD]`.
fn unix(rest: &str) -> Result<Url, String> {
    let (path, text) = rest.split_once('?').unwrap_or((rest, ""));
    let path = decoded(path, "path")?;
    if path.is_empty() {
        return Err("the path of the socket is missing".into());
    }
    if !path.starts_with('/') {
        return Err(
            "the path of the socket must begin with /, as in unix:///run/redis.sock".into(),
        );
    }
    let (text, names) = (text.replace('+', "%20"), ["db", "user", "pass"]);
    let [number, username, password] = options(&text, names)?;
    Ok(Url {
        place: Place::Server(Address::Unix(path.into())),
        database: database(&number.unwrap_or_default())?,
        login: Login { username, password },
    })
}

fn database(text: &str) -> Result<i64, String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    match text.parse::<u32>() {
        Ok(database) => Ok(database.into()),
        Err(_) if text.is_empty() => Ok(0),
        Err(_) => Err("the database must be a number, as in redis://host/3".into()),
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Returns a text with its %-escapes decoded. A % without two hexadecimal digits stands for itself.
fn decoded(text: &str, what: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| format!("the {what} isn't UTF-8"))?;
    Ok(decoded.into_owned())
}

/// Returns an address in the format `host:port`, with brackets around an IPv6 address.
pub(super) fn with_port(host: &str, port: impl fmt::Display) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes a URL: its servers, with the name of the primary or the hash tag, the database, and the login.
    fn shown(url: &Url) -> String {
        let login = |login: &Login| {
            let parts = [&login.username, &login.password];
            parts.map(|part| part.as_deref().unwrap_or("-")).join(" ")
        };
        let hosts = |nodes: &[Address]| {
            let tls = |node: &Address| if node.has_tls() { "tls " } else { "" };
            let each = nodes.iter().map(|node| format!("{}{node}", tls(node)));
            each.collect::<Vec<_>>().join(",")
        };
        let place = match &url.place {
            Place::Server(address) => hosts(std::slice::from_ref(address)),
            Place::Local => "local".into(),
            Place::Sentinels {
                nodes,
                primary,
                login: of,
                password_file,
            } => {
                assert_eq!(*password_file, None);
                format!("{primary} of {} {}", hosts(nodes), login(of))
            }
            Place::Cluster { nodes, tag } => {
                format!("{} with {}", hosts(nodes), tag.as_deref().unwrap_or("-"))
            }
        };
        format!("{place} {} {}", url.database, login(&url.login))
    }

    #[test]
    fn the_parts_of_a_url_are_read() {
        let rows = "redis://h → h:6379 0 - -
            redis://h/ → h:6379 0 - -
            redis://h: → h:6379 0 - -
            redis://h:1/?protocol=resp3 → h:1 0 - -
            redis://10.0.0.1:65535 → 10.0.0.1:65535 0 - -
            redis://[::1] → [::1]:6379 0 - -
            redis://[fe80::1]:7 → [fe80::1]:7 0 - -
            redis://my_host-1.internal:7 → my_host-1.internal:7 0 - -
            redis://h/12 → h:6379 12 - -
            redis://me@h → h:6379 0 me -
            redis://:secret@h → h:6379 0 - secret
            redis://me:se:cret@h → h:6379 0 me se:cret
            redis://m%40e:s%20%2F%23%40@h → h:6379 0 m@e s /#@
            redis://me:100%@h → h:6379 0 me 100%
            redis://me:%c3%A9@h → h:6379 0 me é
            rediss://h → tls h:6379 0 - -
            unix:///r.sock → /r.sock 0 - -
            unix:///a%20b/r.sock → /a b/r.sock 0 - -
            unix:///r.sock?db=2&user=me&pass=a%2Bb → /r.sock 2 me a+b
            redis-sentinel://a,b:7,[::1]/mymaster → mymaster of a:26379,b:7,[::1]:26379 - - 0 - -
            redis-sentinel://u:p@a,a/my%20one/3?sentinel_user=s&sentinel_password=p%40 → my one of a:26379 s p@ 3 u p
            rediss-sentinel://a/m → m of tls a:26379 - - 0 - -
            redis-cluster://a,b:7 → a:6379,b:7 with - 0 - -
            redis-cluster://a/jobs → a:6379 with jobs 0 - -
            redis-cluster://a/job0 → a:6379 with job0 0 - -";
        for row in rows.lines() {
            let (text, parts) = row.trim().split_once(" → ").unwrap();
            assert_eq!(
                Url::parse(text).map(|url| shown(&url)).as_deref(),
                Ok(parts)
            );
        }
        // White space around a URL isn't part of it.
        for text in [" redis://:p@h", "redis://:p@h\r\n", "\tredis://:p@h \n"] {
            assert_eq!(Url::parse(text), Url::parse("redis://:p@h"));
        }
    }

    #[test]
    fn a_mistake_is_named_by_its_part_and_never_quoted() {
        let rows = "→ must begin with
            hunter2 → must begin with
            \"redis://u:hunter2@h\" → remove the quotes
            'redis://u:hunter2@h' → remove the quotes
            hunter2:6379 → must begin with
            u:hunter2@h:// → must begin with
            http://hunter2 → unknown scheme http://
            redis-sentinel://hunter2 → is missing after the hosts
            redis-sentinel://u:hunter2@a,,b/m → the host is missing
            redis-sentinel://u:hunter2@a/m/x → the database must be a number
            redis-sentinel://u:hunter2@a/m?db=1 → unknown option
            redis-cluster://u:hunter2@a/{x} → without braces
            redis-cluster://u:hunter2@a?db=1 → unknown option
            redis-cluster://u:hunter2@a/0 → leave /0 out
            redis-cluster://u:hunter2@a/0/ → leave /0 out
            redis-cluster://u:hunter2@a/%30 → leave /0 out
            rediss-cluster://u:hunter2@a/15 → leave the number out
            redis:// → the host is missing
            redis://:6379 → the host is missing
            redis:///3 → the host is missing
            redis:///run/redis.sock → a socket is written unix:///PATH
            redis://u:hunter2@ → the host is missing
            redis://u:hunter2@/3 → the host is missing
            redis://u:hunter2 → the port must be
            redis://u:hunter2@h:port → the port must be
            redis://u:hunter2@h:0 → the port must be
            redis://u:hunter2@h:65536 → the port must be
            redis://u:hunter2@h:-1 → the port must be
            redis://::1 → must be in brackets
            redis://[::1 → must be in brackets
            redis://[hunter2] → must be in brackets
            redis://[::1]hunter2 → must be in brackets
            redis://h! → a character that no host name has
            redis://u:hunter2@h/x → the database must be a number
            redis://u:hunter2@h/-1 → the database must be a number
            redis://u:hunter2@h/0/x → the database must be a number
            redis://u:hunter2@h?db=1 → unknown option
            redis://u:hun ter2@h → a space
            redis://u:hunter2@h\th → a space
            redis://u:hun@ter2@h → an @ in the
            redis://u:hun#ter2@h → a # in a password must be written %23
            rediss://h#insecure → a # in a password must be written %23
            redis://u:hun/ter2@h → a / in the
            redis://u:hun?ter2@h → a ? in the
            redis://h1,h2:7 → several hosts
            redis://h1,redis://h2 → several URLs
            redis://h1 redis://h2 → several URLs
            unix:// → the path of the socket is missing
            unix://run/hunter2 → must begin with /
            unix:///r?db=x → the database must be a number
            unix:///r?password=hunter2 → unknown option
            redis://%ff@h → the user name isn't UTF-8
            local:hunter2 → with nothing after it
            local:// → with nothing after it";
        for row in rows.lines() {
            let (text, says) = row.split_once("→ ").unwrap();
            let text = text.trim_matches(' ');
            let why = Url::parse(text).map(drop).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
            assert!(!why.contains("hunter2"), "{text}: {why}");
        }
    }
}
