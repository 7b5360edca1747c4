//! Command lines of redis-cli that reach a server with the URL and certificates of the settings. Pure. No line contains a
//! password: redis-cli asks for it.

use super::tls::TlsFiles;
use super::url::Address;
use crate::shell::command_line;

/// Options by which redis-cli reaches a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisCli {
    /// `-h HOST -p PORT`, or `-s SOCKET`.
    place: Vec<String>,
    /// `--tls`, and the files of certificates.
    tls: Vec<String>,
    /// The user of the settings; `None` for the default user.
    user: Option<String>,
    /// redis-cli must ask for a password, even to log in as the default user.
    has_password: bool,
    /// The user of the settings is an administrator.
    is_admin: bool,
}

impl RedisCli {
    /// Assumes that only the default user is an administrator.
    pub(super) fn new(
        address: &Address,
        files: &TlsFiles,
        user: Option<String>,
        has_password: bool,
    ) -> Self {
        let place = match address {
            Address::Unix(path) => vec!["-s".into(), path.display().to_string()],
            Address::Tcp { host, port, .. } => host_and_port(host, *port),
        };
        let tls = address.has_tls().then(|| tls_options(files));
        let tls = tls.unwrap_or_default();
        Self {
            place,
            tls,
            is_admin: user.is_none(),
            user,
            has_password,
        }
    }

    /// Sets whether the user of the settings is an administrator.
    pub fn of_admin(self, is_admin: bool) -> Self {
        Self { is_admin, ..self }
    }

    /// Returns the lines for the server at `host:port`, with the user of this one.
    pub fn at(&self, address: &str) -> Self {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host.trim_matches(['[', ']']);
        Self {
            place: host_and_port(host, port.parse().unwrap_or(6379)),
            ..self.clone()
        }
    }

    /// Returns a command line with the user of the settings.
    pub fn line(&self, words: &[&str]) -> String {
        self.command(&self.place, true, words)
    }

    /// Returns a command line with which an administrator runs these commands on some servers. The user is the one of the
    /// settings, if that is an administrator, otherwise the default user. Notes follow a `#`.
    pub fn admin_line(at: &[Self], commands: &[&[&str]], note: Option<&str>) -> String {
        let run = |at: &Self, words: &&[&str]| at.command(&at.place, at.is_admin, words);
        let lines = at
            .iter()
            .flat_map(|at| commands.iter().map(move |it| run(at, it)));
        let lines = lines.collect::<Vec<_>>().join(" && ");
        let is_other = at.iter().any(|at| !at.is_admin);
        let other = is_other.then_some("as an administrator");
        match other.into_iter().chain(note).collect::<Vec<_>>()[..] {
            [] => lines,
            ref notes => format!("{lines}  # {}", notes.join(", ")),
        }
    }

    fn command(&self, place: &[String], as_user: bool, words: &[&str]) -> String {
        let options = place.iter().chain(&self.tls).map(String::as_str);
        let user = self.user.iter().filter(|_| as_user);
        let user = user.flat_map(|user| ["--user", user]);
        let asks = self.has_password.then_some("--askpass");
        let command = std::iter::once("redis-cli").chain(options).chain(user);
        let command: Vec<&str> = command.chain(asks).chain(words.iter().copied()).collect();
        command_line(&command)
    }
}

fn host_and_port(host: &str, port: u16) -> Vec<String> {
    let is_own = matches!(host, "localhost" | "127.0.0.1");
    let host = (!is_own).then(|| ["-h".to_owned(), host.to_owned()]);
    let port = (port != 6379).then(|| ["-p".to_owned(), port.to_string()]);
    host.into_iter().chain(port).flatten().collect()
}

fn tls_options(files: &TlsFiles) -> Vec<String> {
    let (ca, cert, key) = (&files.ca, &files.cert, &files.key);
    let mut options = vec!["--tls".to_owned()];
    for (option, path) in [("--cacert", ca), ("--cert", cert), ("--key", key)] {
        let given = path.iter().map(|path| path.display().to_string());
        options.extend(given.flat_map(|path| [option.to_owned(), path]));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, tls: bool) -> Address {
        let host = host.into();
        Address::Tcp { host, port, tls }
    }

    fn of(address: &Address, user: Option<&str>, has_password: bool) -> RedisCli {
        let files = TlsFiles {
            ca: Some("/etc/ssl/our ca.pem".into()),
            cert: Some("c.pem".into()),
            key: Some("k.pem".into()),
        };
        RedisCli::new(address, &files, user.map(str::to_owned), has_password)
    }

    #[test]
    fn a_line_reaches_the_server_as_the_settings_do_and_asks_for_the_password() {
        for (cli, line) in [
            (
                of(&tcp("localhost", 6379, false), None, false),
                "redis-cli PING",
            ),
            (
                of(&tcp("::1", 7, false), None, true),
                "redis-cli -h ::1 -p 7 --askpass PING",
            ),
            (
                of(&Address::Unix("/run/a b.sock".into()), Some("me"), true),
                "redis-cli -s '/run/a b.sock' --user me --askpass PING",
            ),
            (
                of(&tcp("h", 6379, true), Some("jobs"), true),
                "redis-cli -h h --tls --cacert '/etc/ssl/our ca.pem' --cert c.pem --key k.pem --user jobs --askpass PING",
            ),
        ] {
            assert_eq!(cli.line(&["PING"]), line);
        }
    }

    #[test]
    fn a_line_for_an_administrator_is_no_one_elses() {
        let host = tcp("h", 6379, false);
        let line = |cli: &RedisCli| {
            let cli = std::slice::from_ref(cli);
            RedisCli::admin_line(cli, &[&["ACL", "LIST"]], None)
        };
        let plain = of(&host, None, false);
        assert_eq!(line(&plain), "redis-cli -h h ACL LIST");
        let jobs = of(&host, Some("jobs"), true);
        let by_default = "redis-cli -h h --askpass ACL LIST  # as an administrator";
        assert_eq!(line(&jobs), by_default);
        let by_user = "redis-cli -h h --user jobs --askpass ACL LIST";
        assert_eq!(line(&jobs.clone().of_admin(true)), by_user);
        let both = [plain.at("[::1]:7"), plain];
        let lines = RedisCli::admin_line(&both, &[&["A"], &["B"]], Some("twice"));
        let each = "redis-cli -h ::1 -p 7 A && redis-cli -h ::1 -p 7 B && redis-cli -h h A && redis-cli -h h B";
        assert_eq!(lines, format!("{each}  # twice"));
    }
}
