//! Settings: option before environment before the user's file before the system's file.

#[cfg(any(test, fuzzing))]
#[path = "../tests/fuzz/config.rs"]
pub mod fuzz;
mod options;
mod trust;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::cli::{Common, SyncOptions, SyncReplicas, history_size, positive_duration};
use crate::protocol::{self, Access, Client, Locks, Quorum, Replication, TlsFiles, UrlOrigin};
use crate::reason::reason;
use crate::report::Verbosity;
use crate::sys;
use crate::typed::Typed;
use crate::variables::{OF_HOOK, VARIABLES};

pub use self::options::{FromSettings, StandIn};
pub use self::trust::Exposure;
use self::trust::Read;

/// What the settings add to a command line, and the settings. Help, versions and mistakes in the command line
/// come before a mistake in the settings, which is therefore reported later.
pub fn with_options(sources: Result<Sources>, typed: &Typed) -> (FromSettings, Result<Sources>) {
    let read = || {
        let sources = sources?;
        Ok((FromSettings::new(&sources, typed)?, sources))
    };
    match read() {
        Ok((from_settings, sources)) => (from_settings, Ok(sources)),
        Err(error) => (FromSettings::default(), Err(error)),
    }
}

/// What every command needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    pub locks: Locks,
    pub verbosity: Verbosity,
    pub show: Show,
    /// The name that we go by for others, in place of user and host.
    pub who: Option<String>,
    /// The script that is called when something happens to a run.
    pub hook: Option<String>,
    /// Configuration files that aren't used, because others may have written them.
    pub refused: Vec<Exposure>,
    /// Secrets that every user of this host can read.
    pub exposed: Vec<Exposure>,
}

/// What others are shown of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// The command line.
    Full,
    /// The program's name only.
    Name,
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
const HISTORY: u32 = 200;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const SYSTEM_FILE: &str = "/etc/redlock.env";

/// The variables of the options that every command has. All other options of [`cli::WITH_SETTINGS`] have
/// one, too, which [`options`] makes of the option's name.
const NAMES: [&str; 13] = [
    "REDLOCK_URL",
    "REDLOCK_PREFIX",
    "REDLOCK_PASSWORD_FILE",
    "REDLOCK_TLS_CA",
    "REDLOCK_TLS_CERT",
    "REDLOCK_TLS_KEY",
    "REDLOCK_CONNECT_TIMEOUT",
    "REDLOCK_HISTORY_SIZE",
    "REDLOCK_QUIET",
    "REDLOCK_VERBOSE",
    "REDLOCK_SHOW",
    "REDLOCK_WHO",
    "REDLOCK_HOOK",
];

/// What `ci/install.sh` reads, which stands in the environment of CI jobs, too.
const INSTALLATION: [&str; 3] = ["REDLOCK_RELEASES", "REDLOCK_VERSION", "REDLOCK_SHA256"];

impl Settings {
    /// Puts options, environment and files together.
    ///
    /// # Errors
    /// [`BadConfig`] for a file, variable or URL that can't be used.
    pub fn read(options: &Common, sources: &Sources) -> Result<Self> {
        let path = |option: &Option<PathBuf>, name| {
            let set = || sources.get(name).map(|setting| (&setting.value).into());
            option.clone().or_else(set)
        };
        let timeout = match (
            options.connect_timeout,
            sources.get("REDLOCK_CONNECT_TIMEOUT"),
        ) {
            (Some(timeout), _) => timeout,
            (None, Some(setting)) => {
                positive_duration(&setting.value).map_err(|why| setting.bad(&why))?
            }
            (None, None) => CONNECT_TIMEOUT,
        };
        let tls = TlsFiles {
            ca: path(&options.tls_ca, "REDLOCK_TLS_CA"),
            cert: path(&options.tls_cert, "REDLOCK_TLS_CERT"),
            key: path(&options.tls_key, "REDLOCK_TLS_KEY"),
        };
        let (url, origin) = match &options.url {
            Some(url) => (url.as_str(), UrlOrigin::Option),
            None => sources.url()?,
        };
        let (password, from) = match (&options.password_file, sources.get("REDLOCK_PASSWORD_FILE"))
        {
            (Some(file), _) => (Some(file.as_path()), UrlOrigin::Option),
            (None, Some(setting)) => (Some(Path::new(&setting.value)), setting.origin()),
            (None, None) => (None, UrlOrigin::Default),
        };
        let is_weaker = sources.rank(&origin) < sources.rank(&from);
        // What a configuration file says of its server is no other server's business.
        let goes_elsewhere = is_weaker && matches!(from, UrlOrigin::File(..));
        // Nor is any password one of the default server, if a file that was refused may have named another.
        let is_guess = !sources.refused.is_empty() && origin == UrlOrigin::Default;
        let password = password.filter(|_| !goes_elsewhere && !is_guess);
        let exposed = exposed(password, (url, &origin), tls.key.as_deref());
        let access = Access {
            url,
            origin,
            password_file: password.map(Path::to_owned),
            url_first: is_weaker,
            tls,
            timeout,
        };
        let history = match (options.history_size, sources.get("REDLOCK_HISTORY_SIZE")) {
            (Some(size), _) => size,
            (None, Some(setting)) => {
                history_size(&setting.value).map_err(|why| setting.bad(&why))?
            }
            (None, None) => HISTORY,
        };
        let prefix = sources.get("REDLOCK_PREFIX");
        let prefix = prefix.map(|setting| setting.value.as_str());
        let prefix = options.prefix.as_deref().or(prefix);
        let show = match sources.get("REDLOCK_SHOW") {
            None => Show::Full,
            Some(setting) => match setting.value.as_str() {
                "full" => Show::Full,
                "name" => Show::Name,
                _ => return Err(setting.bad("must be name or full").into()),
            },
        };
        let verbosity = sources.verbosity()?;
        Ok(Self {
            locks: Locks::new(access, prefix, history)?,
            show,
            who: sources
                .get("REDLOCK_WHO")
                .map(|setting| setting.value.clone()),
            hook: sources
                .get("REDLOCK_HOOK")
                .map(|setting| setting.value.clone()),
            verbosity: match (options.quiet, options.verbose) {
                (true, _) => Verbosity::Quiet,
                (_, true) => Verbosity::Verbose,
                _ => verbosity,
            },
            refused: sources.refused.clone(),
            exposed,
        })
    }
}

impl Settings {
    /// The same settings; what is acquired and renewed with them is replicated as these options want it.
    ///
    /// # Errors
    /// [`protocol::ErrorKind::Config`] where that isn't possible.
    pub fn replicated(&self, options: &SyncOptions) -> Result<Self, protocol::Error> {
        let quorum = match options.sync {
            None | Some(SyncReplicas::AtLeast(0)) => return Ok(self.clone()),
            Some(SyncReplicas::All) => Quorum::All,
            Some(SyncReplicas::AtLeast(number)) => Quorum::AtLeast(number),
        };
        let replication = Replication {
            quorum,
            timeout: options.sync_timeout,
        };
        Ok(Self {
            locks: self.locks.clone().replicated(replication)?,
            ..self.clone()
        })
    }

    /// Says which secrets every user of this host can read. A job leaves that to its run.
    pub fn warn_of_exposed(&self) {
        for exposure in self.exposed.iter().filter(|_| !is_in_job()) {
            self.verbosity.info(exposure);
        }
    }

    /// Says where what was read may be old.
    pub fn warn_of_replica(&self, client: &Client) {
        if client.is_replica() {
            self.verbosity.info(format_args!(
                "Redis at {} is a replica, and may be behind its primary",
                self.locks
            ));
        }
    }

    /// The same of a primary that most of the sentinels don't name.
    pub fn warn_of_lone_primary(&self, client: &Client) {
        if self.verbosity > Verbosity::Quiet && client.is_alone() {
            self.verbosity.info(format_args!(
                "most of the sentinels don't name Redis at {} as the primary; the primary may be another server, with locks that this one doesn't know",
                self.locks
            ));
        }
    }
}

/// Of the files with secrets that are used, those that every user of this host can read.
fn exposed(
    password_file: Option<&Path>,
    (url, origin): (&str, &UrlOrigin),
    key: Option<&Path>,
) -> Vec<Exposure> {
    let (in_url, beside_url) = protocol::passwords(url);
    let mut files: Vec<(&Path, &str)> = Vec::new();
    if let (true, UrlOrigin::File(path, _)) = (in_url, origin) {
        files.push((path, "a password"));
    }
    files.extend(password_file.map(|path| (path, "a password")));
    files.extend(beside_url.as_deref().map(|path| (path, "a password")));
    files.extend(key.map(|path| (path, "a private key")));
    let found = files
        .into_iter()
        .map(|(path, what)| trust::exposed(path, what));
    found.flatten().collect()
}

/// Whether this is part of a job: its run has said already what is to be said of the settings.
fn is_in_job() -> bool {
    let mut variables = VARIABLES.iter();
    variables.any(|name| std::env::var_os(name).is_some())
}

/// A setting of the environment or a file.
#[derive(Debug)]
pub struct Setting {
    /// The variable.
    name: String,
    value: String,
    /// The file and the line; `None` for the environment.
    place: Option<(PathBuf, usize)>,
}

impl Setting {
    /// Where it stands: `REDLOCK_TTL`, or in a file `/etc/redlock.env:3: REDLOCK_TTL`.
    fn location(&self) -> String {
        match &self.place {
            None => self.name.clone(),
            Some((file, line)) => format!("{}:{line}: {}", file.display(), self.name),
        }
    }

    fn origin(&self) -> UrlOrigin {
        match &self.place {
            None => UrlOrigin::Environment,
            Some((path, line)) => UrlOrigin::File(path.clone(), *line),
        }
    }

    /// What is wrong with its value. The value isn't repeated: it may be a secret in the wrong line.
    pub fn bad(&self, why: &str) -> BadConfig {
        let colon = if why.starts_with("must ") { "" } else { ":" };
        BadConfig(format!("{}{colon} {why}", self.location()))
    }

    /// Whether it is 1 or 0.
    fn is_on(&self) -> Result<bool, BadConfig> {
        match self.value.as_str() {
            "0" | "false" | "no" => Ok(false),
            "1" | "true" | "yes" => Ok(true),
            _ => Err(self.bad("must be 1 or 0")),
        }
    }
}

/// Environment and files: all that they set, what counts first in front.
#[derive(Debug, Default)]
pub struct Sources {
    settings: Vec<Setting>,
    /// A file that this user may not read.
    unreadable: Option<PathBuf>,
    /// Why files aren't used that others may have written.
    refused: Vec<Exposure>,
}

impl Sources {
    /// Reads them.
    ///
    /// # Errors
    /// [`BadConfig`] for a variable or a line of a file that can't be read.
    pub fn read() -> Result<Self> {
        let mut settings = Vec::new();
        for (name, value) in sys::variables("REDLOCK_") {
            let Ok(name) = name.into_string() else {
                continue;
            };
            // Those that redlock sets for a job or a hook are none, and a token may be of any bytes.
            let is_other = |others: &[&str]| others.contains(&name.as_str());
            if is_other(&VARIABLES)
                || is_other(&INSTALLATION)
                || is_other(&OF_HOOK)
                || is_service_link(&name)
            {
                continue;
            }
            let Ok(value) = value.into_string() else {
                return Err(BadConfig(format!("{name} isn't UTF-8")).into());
            };
            // An empty variable counts as unset, as in `REDLOCK_URL= redlock …`.
            if !value.is_empty() {
                let place = None;
                settings.push(Setting { name, value, place });
            }
        }
        let (mut unreadable, mut refused) = (None, Vec::new());
        for path in user_file().into_iter().chain([PathBuf::from(SYSTEM_FILE)]) {
            match trust::read(&path) {
                Ok(Read::Text(text)) => settings.extend(parse(&path, &text)?),
                Ok(Read::Refused(why)) => refused.push(why),
                Err(error) if is_absent(&error) => {}
                // It may hold a password that only root and cron need.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    unreadable.get_or_insert(path);
                }
                Err(error) => {
                    let why = reason(&error);
                    return Err(BadConfig(format!("can't read {}: {why}", path.display())).into());
                }
            }
        }
        Ok(Self {
            settings,
            unreadable,
            refused,
        })
    }

    /// Whether any of them may stand in for an option of one command.
    pub fn have_stand_ins(&self) -> bool {
        let mut all = self.settings.iter();
        all.any(|setting| !NAMES.contains(&setting.name.as_str()))
    }

    /// # Errors
    /// [`BadConfig`] for the first file that isn't used because others may have written it.
    pub fn expect_trusted(&self) -> Result<(), BadConfig> {
        match self.refused.first() {
            Some(why) => Err(BadConfig(why.to_string())),
            None => Ok(()),
        }
    }

    fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    /// The URL, and where it is set.
    ///
    /// # Errors
    /// It may be set where this user can't see it: on another server than the others of this host, a lock
    /// would exclude none of them.
    fn url(&self) -> Result<(&str, UrlOrigin), BadConfig> {
        match (self.get("REDLOCK_URL"), &self.unreadable) {
            (Some(setting), _) => Ok((&setting.value, setting.origin())),
            (None, None) => Ok((URL, UrlOrigin::Default)),
            (None, Some(path)) => Err(BadConfig(format!(
                "can't read {}, which may set the Redis URL: make it readable for this user, or give --url or REDLOCK_URL",
                path.display()
            ))),
        }
    }

    /// The smaller, the more it counts.
    fn rank(&self, origin: &UrlOrigin) -> usize {
        match origin {
            UrlOrigin::Option => 0,
            UrlOrigin::Environment => 1,
            UrlOrigin::File(path, _) => {
                let in_file = |setting: &Setting| {
                    let place = setting.place.as_ref();
                    place.is_some_and(|(other, _)| other == path)
                };
                2 + self.settings.iter().position(in_file).unwrap_or_default()
            }
            UrlOrigin::Default => usize::MAX,
        }
    }

    /// How much is said. What counts first says it, and of two in one place the quieter.
    fn verbosity(&self) -> Result<Verbosity, BadConfig> {
        let mut chosen = None;
        for (name, verbosity) in [
            ("REDLOCK_QUIET", Verbosity::Quiet),
            ("REDLOCK_VERBOSE", Verbosity::Verbose),
        ] {
            let Some(setting) = self.get(name) else {
                continue;
            };
            let rank = self.rank(&setting.origin());
            if setting.is_on()? && chosen.is_none_or(|(before, _)| rank < before) {
                chosen = Some((rank, verbosity));
            }
        }
        Ok(chosen.map_or(Verbosity::Normal, |(_, verbosity)| verbosity))
    }
}

/// Returns true for a variable that Kubernetes sets in each pod for a service named `redlock` or `redlock-x`, such as
/// `REDLOCK_PORT_6379_TCP_ADDR` or `REDLOCK_X_SERVICE_HOST`.
fn is_service_link(name: &str) -> bool {
    let is_port = |(at, separator): (usize, &str)| {
        let mut words = name[at + separator.len()..].split('_');
        let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
        words.next().is_some_and(is_number) && matches!(words.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    name.ends_with("_PORT")
        || name.contains("_SERVICE_")
        || name.match_indices("_PORT_").any(is_port)
}

/// A file that isn't there isn't an error.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
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
/// `export`, optional quotes. Of several lines with one name the last counts, so it comes first.
fn parse(path: &Path, text: &str) -> Result<Vec<Setting>, BadConfig> {
    let mut settings = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((name, value)) = line.split_once('=') else {
            return Err(BadConfig(format!(
                "{}:{number}: expected NAME=value",
                path.display()
            )));
        };
        let (name, value) = (name.trim(), value.trim());
        let value = ['"', '\'']
            .iter()
            .find_map(|&quote| value.strip_prefix(quote)?.strip_suffix(quote))
            .unwrap_or(value);
        // As in the environment.
        if !value.is_empty() {
            settings.push(Setting {
                name: name.to_owned(),
                value: value.to_owned(),
                place: Some((path.to_owned(), number)),
            });
        }
    }
    settings.reverse();
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_an_environment_file() {
        let text = "# ours\n\nREDLOCK_URL=redis://h:1/2\nexport REDLOCK_PREFIX='x y:'\nREDLOCK_QUIET = \"0\"\nREDLOCK_QUIET = \"1\"\n";
        let settings = parse(Path::new("f"), text).unwrap();
        let sources = Sources {
            settings,
            ..Sources::default()
        };
        let value = |name: &str| sources.get(name).unwrap().value.as_str();
        assert_eq!(value("REDLOCK_URL"), "redis://h:1/2");
        assert_eq!(value("REDLOCK_PREFIX"), "x y:");
        assert_eq!(value("REDLOCK_QUIET"), "1");
        assert_eq!(
            sources.get("REDLOCK_URL").unwrap().location(),
            "f:3: REDLOCK_URL"
        );
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_file() {
        for text in ["REDLOCK_TTL=9s", "# ours\nREDLOCK_TTL=9s"] {
            let settings = parse(Path::new("f"), &format!("\u{feff}{text}")).unwrap();
            assert_eq!(settings[0].name, "REDLOCK_TTL");
        }
    }

    #[test]
    fn a_mistake_in_a_file_is_named_with_its_line_but_not_its_value() {
        let said = parse(Path::new("/f"), "\nhunter2").unwrap_err().0;
        assert_eq!(said, "/f:2: expected NAME=value");
    }
}
