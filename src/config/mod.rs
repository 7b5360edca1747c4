//! Settings. Options take precedence over the environment, then come the user's file and the system's file.

#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/config.rs"]
pub mod fuzz;
mod sources;
mod trust;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::cli::{Common, OnUnreachable, duration, not_empty, number, positive_duration, ttl};
use crate::protocol::{
    self, Access, Client, Error, ErrorKind, Locks, Quorum, Replication, TlsFiles, UrlOrigin,
};
use crate::report::Verbosity;
use crate::variables::VARIABLES;

pub use self::sources::Sources;
pub use self::trust::Exposure;

/// All settings of this invocation. An option takes precedence over the setting of the same name.
#[derive(Clone, Debug)]
pub struct Settings {
    pub locks: Locks,
    /// Replicas that must confirm a grant, and the place of that setting.
    sync: Option<(Replication, String)>,
    pub verbosity: Verbosity,
    /// Other clients see only the program's name of a command.
    pub hides_arguments: bool,
    /// Name that others see instead of user and host.
    pub who: Option<String>,
    /// Script that redlock calls on events of a run.
    pub hook: Option<String>,
    pub ttl: Duration,
    pub kill_after: Option<Duration>,
    max_runtime: Option<Duration>,
    pub on_unreachable: OnUnreachable,
    /// The command continues if the lock is lost; the exit status is still 79.
    pub only_warn: bool,
    pub jitter: Duration,
    pub repair_ttl: bool,
    pub reason: Option<String>,
    /// Configuration files that redlock ignores, because others may have written them.
    pub refused: Vec<Exposure>,
    /// Secrets that every user of this host can read.
    pub exposed: Vec<Exposure>,
    /// Messages about settings without effect: removed ones, and unknown ones.
    pub without_effect: [Option<String>; 2],
}

/// Returns the error for a setting with an unusable value.
fn bad(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

const URL: &str = "redis://127.0.0.1:6379";
const HISTORY: u32 = 200;
const REDIS_TIMEOUT: Duration = Duration::from_secs(2);
const SYNC_TIMEOUT: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

impl Settings {
    /// Combines options, environment and files.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an unusable file, variable or URL.
    pub fn read(options: &Common, sources: &Sources) -> Result<Self> {
        let without_effect = sources.without_effect()?;
        let (url, origin, rank) = url(options, sources)?;
        let password = sources.get("PASSWORD_FILE");
        let is_weaker = password.is_some_and(|it| rank < it.rank);
        // A password from a configuration file is only for the server in that file.
        let goes_elsewhere = is_weaker && password.is_some_and(sources::Setting::is_in_file);
        // A refused file may have named another server than the default one.
        let is_guess = !sources.refused.is_empty() && origin == UrlOrigin::Unset;
        let password = password.filter(|_| !goes_elsewhere && !is_guess);
        let password = password.map(|setting| Path::new(&setting.value));
        let tls = TlsFiles {
            ca: sources.text("TLS_CA"),
            cert: sources.text("TLS_CERT"),
            key: sources.text("TLS_KEY"),
        };
        let exposed = exposed(password, (url, &origin), tls.key.as_deref());
        let timeout = sources.value("REDIS_TIMEOUT", positive_duration)?;
        let access = Access {
            url,
            origin,
            password_file: password.map(Path::to_owned),
            url_first: is_weaker,
            tls,
            timeout: timeout.unwrap_or(REDIS_TIMEOUT),
        };
        let history = sources.value("HISTORY_SIZE", number(0, 10_000))?;
        let prefix: Option<String> = sources.text("PREFIX");
        Ok(Self {
            locks: Locks::new(&access, prefix.as_deref(), history.unwrap_or(HISTORY))?,
            sync: sync(sources)?,
            verbosity: verbosity(options, sources)?,
            hides_arguments: sources.is_second("SHOW", ["full", "name"])?,
            who: sources.text("WHO"),
            hook: sources.text("HOOK"),
            ttl: sources.value("TTL", ttl)?.unwrap_or(TTL),
            kill_after: sources.value("KILL_AFTER", duration)?,
            max_runtime: sources.value("MAX_RUNTIME", duration)?,
            on_unreachable: if sources.is_second("ON_UNREACHABLE", ["fail", "run"])? {
                OnUnreachable::Run
            } else {
                OnUnreachable::Fail
            },
            only_warn: sources.is_second("ON_LOST", ["stop", "warn"])?,
            jitter: sources.value("JITTER", duration)?.unwrap_or_default(),
            repair_ttl: sources.value("REPAIR_TTL", switch)?.unwrap_or_default(),
            reason: sources.value("REASON", not_empty)?,
            refused: sources.refused.clone(),
            exposed,
            without_effect,
        })
    }

    /// Returns true if no URL is set and a refused file may contain one.
    pub fn may_lack_the_url(&self) -> bool {
        !self.refused.is_empty() && self.locks.have_no_url()
    }

    /// Returns the limit of COMMAND's run time. 0 means no limit, as for timeout(1).
    pub fn max_runtime(&self, typed: Option<Duration>) -> Option<Duration> {
        typed.or(self.max_runtime).filter(|limit| !limit.is_zero())
    }

    /// Returns the replicas that must confirm a grant, if that is set.
    pub fn quorum(&self) -> Option<Quorum> {
        let (replication, _) = self.sync.as_ref()?;
        Some(replication.quorum)
    }

    /// Requires the replicas of `REDLOCK_SYNC` to confirm each grant and renewal from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the server can't tell which replicas it has.
    pub fn replicate(&self) -> Result<(), Error> {
        let Some((replication, place)) = &self.sync else {
            return Ok(());
        };
        let replicated = self.locks.deployment.replicate(*replication);
        replicated.map_err(|error| bad(format!("{place}: {error}")))
    }

    /// Warns about settings without effect, and about secrets that every user of
    /// this host can read. In a job, its run has already given these warnings.
    pub fn warn(&self) {
        let [removed, unknown] = &self.without_effect;
        if let Some(line) = unknown {
            self.verbosity.info(line);
        }
        if let Some(line) = removed {
            self.verbosity.verbose(line);
        }
        for exposure in self.exposed.iter().filter(|_| !is_in_job()) {
            self.verbosity.info(exposure);
        }
    }

    /// Warns if the data came from a replica, because it may be outdated.
    pub fn warn_of_replica(&self, client: &Client) {
        if client.server().is_replica() {
            self.verbosity.info(format_args!(
                "Redis at {} is a replica, and may be behind its primary",
                self.locks.server()
            ));
        }
    }
}

/// Returns the URL, its origin, and the origin's rank: the smallest rank takes precedence.
///
/// # Errors
/// [`ErrorKind::Config`] if this user can't read the file that may set the URL.
/// A lock on another server wouldn't exclude this host's other runs.
fn url<'a>(
    options: &'a Common,
    sources: &'a Sources,
) -> Result<(&'a str, UrlOrigin, usize), Error> {
    match (&options.url, sources.get("URL"), &sources.unreadable) {
        (Some(url), _, _) => Ok((url, UrlOrigin::Flag, 0)),
        (_, Some(setting), _) => Ok((&setting.value, setting.origin.clone(), setting.rank)),
        (_, _, None) => Ok((URL, UrlOrigin::Unset, usize::MAX)),
        (_, _, Some(path)) => Err(bad(format!(
            "can't read {}, which may set the Redis URL: make it readable for this user, or give --url or REDLOCK_URL",
            path.display()
        ))),
    }
}

/// Returns how much redlock prints. The place with the highest precedence
/// decides; of two settings in one place, the quieter one wins.
fn verbosity(options: &Common, sources: &Sources) -> Result<Verbosity, Error> {
    let rank = |name| {
        let is_on = sources.value(name, switch)?.unwrap_or_default();
        let setting = sources.get(name).filter(|_| is_on);
        Ok(setting.map_or(usize::MAX, |it| it.rank))
    };
    let (quiet, verbose) = (rank("QUIET")?, rank("VERBOSE")?);
    Ok(match (options.quiet, options.verbose) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ if verbose < quiet => Verbosity::Verbose,
        _ if quiet < usize::MAX => Verbosity::Quiet,
        _ => Verbosity::Normal,
    })
}

/// Returns the replicas that must confirm a grant, and the place of that setting.
fn sync(sources: &Sources) -> Result<Option<(Replication, String)>, Error> {
    let quorum = |text: &str| match text.parse() {
        _ if text == "all" => Ok(Some(Quorum::All)),
        Ok(0) => Ok(None),
        Ok(number @ 1..=1000) => Ok(Some(Quorum::AtLeast(number))),
        _ => Err("must be all, or a number of replicas up to 1000".into()),
    };
    let quorum = sources.value("SYNC", quorum)?.flatten();
    let timeout = sources
        .value("SYNC_TIMEOUT", positive_duration)?
        .unwrap_or(SYNC_TIMEOUT);
    let place = sources.get("SYNC").map(sources::Setting::location);
    Ok(quorum
        .zip(place)
        .map(|(quorum, place)| (Replication { quorum, timeout }, place)))
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" | "false" | "no" => Ok(false),
        "1" | "true" | "yes" => Ok(true),
        _ => Err("must be 1 or 0".into()),
    }
}

/// Returns the files with secrets in use that every user of this host can read.
fn exposed(
    password_file: Option<&Path>,
    (url, origin): (&str, &UrlOrigin),
    key: Option<&Path>,
) -> Vec<Exposure> {
    let (in_url, beside_url) = protocol::passwords(url);
    let config = match origin {
        UrlOrigin::File(path, _) if in_url => Some(&**path),
        _ => None,
    };
    let passwords = [config, password_file, beside_url.as_deref()].map(|it| (it, "a password"));
    let files = passwords.into_iter().chain([(key, "a private key")]);
    let exposures = files.map(|(path, what)| trust::exposed(path?, what));
    exposures.flatten().collect()
}

/// Returns true if this process is part of a job, whose run has already given all warnings about the settings.
fn is_in_job() -> bool {
    let mut variables = VARIABLES.iter();
    variables.any(|name| std::env::var_os(name).is_some())
}
