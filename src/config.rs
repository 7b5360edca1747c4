//! Settings: option before environment before the user's file before the system's file.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cli::{Common, duration};
use crate::lock::{Access, Client, Locks, TlsFiles, UrlOrigin};
use crate::reason::reason;
use crate::report::Verbosity;

/// What every command needs to know.
#[derive(Debug)]
pub struct Settings {
    pub locks: Locks,
    pub verbosity: Verbosity,
}

/// A setting that can't be used; status 78.
#[derive(Debug)]
pub struct BadConfig(pub String);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadConfig {}

const URL: &str = "redis://127.0.0.1:6379";
const PREFIX: &str = "redlock:";
const HISTORY: u32 = 200;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const SYSTEM_FILE: &str = "/etc/redlock.env";

/// The names a file may set.
const NAMES: [&str; 10] = [
    "REDLOCK_URL",
    "REDLOCK_PREFIX",
    "REDLOCK_PASSWORD_FILE",
    "REDLOCK_TLS_CA",
    "REDLOCK_TLS_CERT",
    "REDLOCK_TLS_KEY",
    "REDLOCK_CONNECT_TIMEOUT",
    "REDLOCK_HISTORY",
    "REDLOCK_QUIET",
    "REDLOCK_VERBOSE",
];

impl Settings {
    /// Puts options, environment and files together.
    ///
    /// # Errors
    /// [`BadConfig`] for a file, variable or URL that can't be used.
    pub fn read(options: &Common) -> Result<Self> {
        let sources = Sources::read()?;
        let path = |option: &Option<PathBuf>, name| {
            option
                .clone()
                .or_else(|| sources.get(name).map(PathBuf::from))
        };
        let timeout = match (
            options.connect_timeout,
            sources.get("REDLOCK_CONNECT_TIMEOUT"),
        ) {
            (Some(timeout), _) => timeout,
            (None, Some(text)) => duration(text)
                .map_err(|why| BadConfig(format!("REDLOCK_CONNECT_TIMEOUT: {why}")))?,
            (None, None) => CONNECT_TIMEOUT,
        };
        if timeout.is_zero() {
            return Err(BadConfig("the connect timeout must be greater than 0".into()).into());
        }
        let tls = TlsFiles {
            ca: path(&options.tls_ca, "REDLOCK_TLS_CA"),
            cert: path(&options.tls_cert, "REDLOCK_TLS_CERT"),
            key: path(&options.tls_key, "REDLOCK_TLS_KEY"),
        };
        let (url, origin) = match &options.url {
            Some(url) => (url.as_str(), UrlOrigin::Option),
            None => sources.url(),
        };
        let password_file = path(&options.password_file, "REDLOCK_PASSWORD_FILE");
        let access = Access {
            url,
            origin,
            password: password_file.map(|file| password(&file)).transpose()?,
            tls,
            timeout,
        };
        let history = match (options.history_size, sources.get("REDLOCK_HISTORY")) {
            (Some(size), _) => size,
            (None, Some(text)) => text
                .parse()
                .ok()
                .filter(|size| *size <= 10_000)
                .ok_or_else(|| BadConfig("REDLOCK_HISTORY must be between 0 and 10000".into()))?,
            (None, None) => HISTORY,
        };
        let prefix = options.prefix.as_deref();
        let prefix = prefix.or(sources.get("REDLOCK_PREFIX")).unwrap_or(PREFIX);
        let quiet = sources.switch("REDLOCK_QUIET")?;
        let verbose = sources.switch("REDLOCK_VERBOSE")?;
        Ok(Self {
            locks: Locks::new(access, prefix, history)?,
            verbosity: match (options.quiet, options.verbose) {
                (true, _) => Verbosity::Quiet,
                (_, true) => Verbosity::Verbose,
                _ if quiet => Verbosity::Quiet,
                _ if verbose => Verbosity::Verbose,
                _ => Verbosity::Normal,
            },
        })
    }
}

impl Settings {
    /// Says where what was read may be old.
    pub fn warn_of_replica(&self, client: &Client) {
        if client.is_replica() {
            self.verbosity.info(format_args!(
                "Redis at {} is a replica, and may be behind its primary",
                self.locks
            ));
        }
    }
}

/// The password that a file holds: its first line.
fn password(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        BadConfig(format!(
            "can't read the password file {}: {}",
            path.display(),
            reason(&error)
        ))
    })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(BadConfig(format!("the password file {} is empty", path.display())).into()),
    }
}

/// The settings of a file, each with the number of its line.
type Settled = HashMap<String, (String, usize)>;

/// Environment and files, looked up by the names of the environment.
struct Sources {
    files: Vec<(PathBuf, Settled)>,
    environment: HashMap<&'static str, String>,
}

impl Sources {
    fn read() -> Result<Self> {
        let mut environment = HashMap::new();
        for name in NAMES {
            match std::env::var(name) {
                // An empty variable counts as unset, as in `REDLOCK_URL= redlock …`.
                Ok(value) if !value.is_empty() => drop(environment.insert(name, value)),
                Ok(_) | Err(std::env::VarError::NotPresent) => {}
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(BadConfig(format!("{name} isn't UTF-8")).into());
                }
            }
        }
        let mut files = Vec::new();
        for path in user_file().into_iter().chain([PathBuf::from(SYSTEM_FILE)]) {
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    let settings = parse(&text)
                        .map_err(BadConfig)
                        .with_context(|| format!("in {}", path.display()))?;
                    files.push((path, settings));
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    let why = reason(&error);
                    return Err(BadConfig(format!("can't read {}: {why}", path.display())).into());
                }
            }
        }
        Ok(Self { files, environment })
    }

    fn get(&self, name: &str) -> Option<&str> {
        let in_files = || self.files.iter().find_map(|(_, file)| file.get(name));
        self.environment
            .get(name)
            .or_else(|| in_files().map(|(value, _)| value))
            .map(String::as_str)
    }

    /// The URL, and where it is set.
    fn url(&self) -> (&str, UrlOrigin) {
        if let Some(url) = self.environment.get("REDLOCK_URL") {
            return (url, UrlOrigin::Environment);
        }
        for (path, file) in &self.files {
            if let Some((url, line)) = file.get("REDLOCK_URL") {
                return (url, UrlOrigin::File(path.clone(), *line));
            }
        }
        (URL, UrlOrigin::Default)
    }

    fn switch(&self, name: &str) -> Result<bool> {
        match self.get(name) {
            None | Some("0" | "false" | "no") => Ok(false),
            Some("1" | "true" | "yes") => Ok(true),
            Some(_) => Err(BadConfig(format!("{name} must be 1 or 0")).into()),
        }
    }
}

/// A file that isn't there, or that this user may not see, isn't an error: the system's file may
/// hold a password that only root and cron need.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound
            | std::io::ErrorKind::NotADirectory
            | std::io::ErrorKind::PermissionDenied
    )
}

fn user_file() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let directory = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(directory.join("redlock.env"))
}

/// Reads `NAME=value` lines as systemd's `EnvironmentFile` has them: comments, an optional
/// `export`, optional quotes.
fn parse(text: &str) -> Result<Settled, String> {
    let mut settings = HashMap::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
    {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=') else {
            return Err(format!("line {number}: expected NAME=value"));
        };
        let (name, value) = (name.trim(), value.trim());
        if !NAMES.contains(&name) {
            return Err(format!(
                "line {number}: unknown setting {name}; known are {}",
                NAMES.join(", ")
            ));
        }
        let value = ['"', '\'']
            .iter()
            .find_map(|&quote| value.strip_prefix(quote)?.strip_suffix(quote))
            .unwrap_or(value);
        if !value.is_empty() {
            settings.insert(name.to_owned(), (value.to_owned(), number));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_an_environment_file() {
        let file = parse("# ours\n\nREDLOCK_URL=redis://h:1/2\nexport REDLOCK_PREFIX='x y:'\nREDLOCK_QUIET = \"1\"\n").unwrap();
        assert_eq!(file["REDLOCK_URL"], ("redis://h:1/2".into(), 3));
        assert_eq!(file["REDLOCK_PREFIX"].0, "x y:");
        assert_eq!(file["REDLOCK_QUIET"].0, "1");
    }

    #[test]
    fn a_mistake_in_a_file_is_named_with_its_line_but_not_its_value() {
        assert!(
            parse("\nREDLOCK_URI=redis://u:hunter2@h")
                .unwrap_err()
                .starts_with("line 2: unknown setting REDLOCK_URI")
        );
        assert!(
            !parse("REDLOCK_URI=redis://u:hunter2@h")
                .unwrap_err()
                .contains("hunter2")
        );
        assert_eq!(parse("hunter2").unwrap_err(), "line 1: expected NAME=value");
    }
}
