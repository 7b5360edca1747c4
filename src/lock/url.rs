//! Redis URLs, read part by part, so that a mistake is named by its part. Pure. No message repeats what
//! was written, as any part may turn out to be a piece of a password.

use std::path::PathBuf;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

/// What a URL says.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Url {
    pub(super) address: Address,
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

const SCHEMES: &str = "redis://, rediss:// or unix://";
const PORT: u16 = 6379;

impl Url {
    /// Reads a URL; what is wrong with it otherwise.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("it must begin with {SCHEMES}"));
        };
        if rest.contains("://") {
            return Err("it has several URLs; redlock uses one server".into());
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("it has a space or control character; a space is written %20".into());
        }
        if rest.contains('#') {
            return Err(
                "a # must be written %23 (certificate checks can't be switched off)".into(),
            );
        }
        match scheme {
            "redis" => tcp(rest, false),
            "rediss" => tcp(rest, true),
            "unix" => unix(rest),
            "redis-sentinel" | "rediss-sentinel" => Err(
                "redlock doesn't ask Sentinel for the primary; use the primary's own URL, redis://"
                    .into(),
            ),
            "redis-cluster" | "rediss-cluster" => Err(
                "redlock uses one node of a Redis Cluster; use its own URL, redis://, and a prefix with a hash tag, such as --prefix '{redlock}:'".into(),
            ),
            _ if scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
                Err(format!("unknown scheme {scheme}://; use {SCHEMES}"))
            }
            _ => Err(format!("it must begin with {SCHEMES}")),
        }
    }
}

/// `[user[:password]@]host[:port][/db]`
fn tcp(rest: &str, tls: bool) -> Result<Url, String> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if let Some(at) = rest.find('@') {
        let (what, escape) = if rest[..at].contains('?') {
            ("?", "%3F")
        } else {
            ("/", "%2F")
        };
        return Err(format!(
            "a {what} in the user name or password must be written {escape}"
        ));
    }
    let (credentials, place) = match authority.rsplit_once('@') {
        Some((credentials, _)) if credentials.contains('@') => {
            return Err("an @ in the user name or password must be written %40".into());
        }
        Some((credentials, place)) => (credentials, place),
        None => ("", authority),
    };
    let (username, password) = match credentials.split_once(':') {
        Some((username, password)) => (username, password),
        None => (credentials, ""),
    };
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    for (name, _) in pairs(options) {
        if name != "protocol" {
            return Err("it has an unknown option after the ?; the database is written /3".into());
        }
    }
    let (host, port) = host_and_port(place)?;
    Ok(Url {
        address: Address::Tcp { host, port, tls },
        database: database(path.strip_prefix('/').unwrap_or_default())?,
        username: some(decoded(username, "user name")?),
        password: some(decoded(password, "password")?),
    })
}

fn host_and_port(place: &str) -> Result<(String, u16), String> {
    if place.contains(',') {
        return Err("it has several hosts; redlock uses one server".into());
    }
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (host, port) = rest
            .split_once(']')
            .ok_or("the ] after the IPv6 address is missing")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("there is no IPv6 address in the brackets".into());
        }
        let port = match port.strip_prefix(':') {
            Some(port) => Some(port),
            None if port.is_empty() => None,
            None => return Err("after the ] only a port may follow, such as :6379".into()),
        };
        (host, port)
    } else if place.matches(':').count() > 1 {
        return Err("an IPv6 address must be in brackets, such as [::1]:6379".into());
    } else {
        match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    if host.is_empty() {
        return Err("the host is missing".into());
    }
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if !host.chars().all(is_part) {
        return Err("the host has a character that no host name has".into());
    }
    let port = match port {
        None | Some("") => PORT,
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(
            "the port must be a number from 1 to 65535 (a user name and password stand before an @)",
        )?,
    };
    Ok((host.to_owned(), port))
}

/// `/path[?db=N&user=USER&pass=PASSWORD]`
fn unix(rest: &str) -> Result<Url, String> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    let path = decoded(path, "path")?;
    if path.is_empty() {
        return Err("the path of the socket is missing".into());
    }
    if !path.starts_with('/') {
        return Err(
            "the path of the socket must begin with /, as in unix:///run/redis.sock".into(),
        );
    }
    let mut url = Url {
        address: Address::Unix(path.into()),
        database: 0,
        username: None,
        password: None,
    };
    for (name, value) in pairs(options) {
        let value = value.replace('+', "%20");
        match name {
            "db" => url.database = database(&value)?,
            "user" => url.username = some(decoded(&value, "user name")?),
            "pass" => url.password = some(decoded(&value, "password")?),
            "protocol" => {}
            _ => {
                return Err(
                    "it has an unknown option after the ?; known are db, user and pass".into(),
                );
            }
        }
    }
    Ok(url)
}

fn pairs(options: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = options.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn database(text: &str) -> Result<i64, String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    match text.parse::<u32>() {
        Ok(database) => Ok(database.into()),
        Err(_) if text.is_empty() => Ok(0),
        Err(_) if text.contains('/') => {
            Err("only the number of a database may follow the host, as in redis://host/3".into())
        }
        Err(_) => Err("the database must be a number, as in redis://host/3".into()),
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Text without its escapes; a % that begins none stands for itself.
fn decoded(text: &str, what: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after
            .get(..2)
            .filter(|_| first == b'%')
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    String::from_utf8(bytes).map_err(|_| format!("the {what} isn't UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Url {
        Url {
            address: Address::Tcp {
                host: host.into(),
                port,
                tls: false,
            },
            database: 0,
            username: None,
            password: None,
        }
    }

    fn login(username: &str, password: &str) -> Url {
        Url {
            username: some(username.into()),
            password: some(password.into()),
            ..tcp("h", 6379)
        }
    }

    #[test]
    fn the_parts_of_a_url_are_read() {
        let socket = |path: &str| Url {
            address: Address::Unix(path.into()),
            ..tcp("", 0)
        };
        for (text, url) in [
            ("redis://h", tcp("h", 6379)),
            ("redis://h/", tcp("h", 6379)),
            ("redis://h:", tcp("h", 6379)),
            ("redis://h:1/?protocol=resp3", tcp("h", 1)),
            ("redis://10.0.0.1:65535", tcp("10.0.0.1", 65535)),
            ("redis://[::1]", tcp("::1", 6379)),
            ("redis://[fe80::1]:7", tcp("fe80::1", 7)),
            ("redis://my_host-1.internal:7", tcp("my_host-1.internal", 7)),
            (
                "redis://h/12",
                Url {
                    database: 12,
                    ..tcp("h", 6379)
                },
            ),
            ("redis://me@h", login("me", "")),
            ("redis://:secret@h", login("", "secret")),
            ("redis://me:se:cret@h", login("me", "se:cret")),
            ("redis://m%40e:s%20%2F%23%40@h", login("m@e", "s /#@")),
            ("redis://me:100%@h", login("me", "100%")),
            ("redis://me:%c3%A9@h", login("me", "é")),
            ("unix:///r.sock", socket("/r.sock")),
            ("unix:///a%20b/r.sock", socket("/a b/r.sock")),
            (
                "unix:///r.sock?db=2&user=me&pass=a%2Bb",
                Url {
                    database: 2,
                    username: Some("me".into()),
                    password: Some("a+b".into()),
                    ..socket("/r.sock")
                },
            ),
        ] {
            assert_eq!(Url::parse(text), Ok(url), "{text}");
        }
        let tls = Url::parse("rediss://h").unwrap().address;
        assert!(matches!(tls, Address::Tcp { tls: true, .. }));
    }

    #[test]
    fn a_mistake_is_named_by_its_part_and_never_quoted() {
        for (text, says) in [
            ("", "must begin with"),
            ("hunter2", "must begin with"),
            ("hunter2:6379", "must begin with"),
            ("u:hunter2@h://", "must begin with"),
            ("http://hunter2", "unknown scheme http://"),
            ("redis-sentinel://hunter2", "Sentinel"),
            ("redis-cluster://hunter2", "Redis Cluster"),
            ("redis://", "the host is missing"),
            ("redis://:6379", "the host is missing"),
            ("redis:///3", "the host is missing"),
            ("redis://u:hunter2@", "the host is missing"),
            ("redis://u:hunter2@/3", "the host is missing"),
            ("redis://u:hunter2", "the port must be"),
            ("redis://u:hunter2@h:port", "the port must be"),
            ("redis://u:hunter2@h:0", "the port must be"),
            ("redis://u:hunter2@h:65536", "the port must be"),
            ("redis://u:hunter2@h:-1", "the port must be"),
            ("redis://::1", "must be in brackets"),
            ("redis://[::1", "the ] after"),
            ("redis://[hunter2]", "no IPv6 address"),
            ("redis://[::1]hunter2", "only a port"),
            ("redis://h!", "a character that no host name has"),
            ("redis://u:hunter2@h/x", "the database must be a number"),
            ("redis://u:hunter2@h/-1", "the database must be a number"),
            ("redis://u:hunter2@h/0/x", "only the number of a database"),
            ("redis://u:hunter2@h?db=1", "unknown option"),
            ("redis://u:hun ter2@h", "a space"),
            (" redis://u:hunter2@h", "a space"),
            ("redis://u:hunter2@h\t", "a space"),
            ("redis://u:hun@ter2@h", "an @ in the"),
            ("redis://u:hun#ter2@h", "a # must be written %23"),
            ("rediss://h#insecure", "a # must be written %23"),
            ("redis://u:hun/ter2@h", "a / in the"),
            ("redis://u:hun?ter2@h", "a ? in the"),
            ("redis://h1,h2:7", "several hosts"),
            ("redis://h1,redis://h2", "several URLs"),
            ("redis://h1 redis://h2", "several URLs"),
            ("unix://", "the path of the socket is missing"),
            ("unix://run/hunter2", "must begin with /"),
            ("unix:///r?db=x", "the database must be a number"),
            ("unix:///r?password=hunter2", "unknown option"),
            ("redis://%ff@h", "the user name isn't UTF-8"),
        ] {
            let why = Url::parse(text).map(drop).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
            assert!(!why.contains("hunter2"), "{text}: {why}");
        }
    }
}
