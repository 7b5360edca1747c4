//! Sources of settings: the environment, the user's file, and the system's file.

use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::trust::{self, Exposure};
use super::{bad, is_in_job};
use crate::pattern::nearest;
use crate::protocol::{Error, UrlOrigin};
use crate::reason::reason;
use crate::shell::quote;
use crate::sys;
use crate::variables::{OF_HOOK, VARIABLES};

const SYSTEM_FILE: &str = "/etc/redlock.env";

/// Prefix of each variable's name.
const OURS: &str = "REDLOCK_";

/// Names of all settings, without [`OURS`].
const SETTINGS: &str = "HISTORY_SIZE HOOK JITTER KILL_AFTER MAX_RUNTIME ON_LOST ON_UNREACHABLE \
    PASSWORD_FILE PREFIX QUIET REASON REDIS_TIMEOUT REPAIR_TTL SHOW SYNC SYNC_TIMEOUT TLS_CA \
    TLS_CERT TLS_KEY TTL URL VERBOSE WHO";

/// Settings of earlier versions, and names that options about a single job would have as variables.
const REMOVED: &str = "CANCEL_IN_PROGRESS CANCEL_RUNNING CLOCK_SKEW CONFLICT_EXIT_CODE \
    CONNECT_TIMEOUT EXCLUSIVE FORMAT HOLD_AT_LEAST IGNORE_FREEZE JOIN LABEL LATE LIFO MAX_QUEUE \
    MAX_WAITING NO_WAIT ONCE ONCE_PER ORDER PASS PASSWORD_COMMAND PRIORITY RESTART_GRACE SEQ \
    SHARED SLOTS SUPERSEDE TIMEOUT UNLESS WAIT WAIT_TREE WITH_CHILDREN";

/// Variables that `install.sh` reads, and that may also be set in a CI job.
const INSTALLATION: [&str; 3] = ["REDLOCK_RELEASES", "REDLOCK_VERSION", "REDLOCK_SHA256"];

/// A setting in the environment or a file.
#[derive(Debug)]
pub struct Setting {
    /// Name of the variable.
    name: String,
    pub value: String,
    pub origin: UrlOrigin,
    /// Rank of the origin: 1 for the environment, and more for a file. The smallest takes precedence.
    pub rank: usize,
}

impl Setting {
    /// Returns the place of the setting: `REDLOCK_TTL`, or `/etc/redlock.env:3: REDLOCK_TTL` in a file.
    pub fn location(&self) -> String {
        match &self.origin {
            UrlOrigin::File(path, line) => format!("{}:{line}: {}", path.display(), self.name),
            _ => self.name.clone(),
        }
    }

    pub fn is_in_file(&self) -> bool {
        matches!(self.origin, UrlOrigin::File(..))
    }

    /// Returns the error for a wrong value. The message doesn't
    /// repeat the value, because a secret may be on the wrong line.
    pub fn bad(&self, why: &str) -> Error {
        let colon = if why.starts_with("must ") { "" } else { ":" };
        bad(format!("{}{colon} {why}", self.location()))
    }
}

/// Settings of the environment and the files, in the order of precedence.
#[derive(Debug, Default)]
pub struct Sources {
    pub(super) settings: Vec<Setting>,
    /// The first file that this user may not read.
    pub unreadable: Option<PathBuf>,
    /// Files that redlock ignores, because others may have written them.
    pub refused: Vec<Exposure>,
}

impl Sources {
    /// Reads the environment and the files.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a variable that isn't UTF-8, or for a malformed line of a file.
    pub fn read() -> Result<Self, Error> {
        let mut all = Self::default();
        for (name, value) in sys::variables(OURS) {
            let Ok(name) = name.into_string() else {
                continue;
            };
            // redlock itself sets some variables for a job or a hook. A token among them may contain any bytes.
            let mut others = VARIABLES.iter().chain(&INSTALLATION).chain(&OF_HOOK);
            if others.any(|other| *other == name) || is_service_link(&name) {
                continue;
            }
            let Ok(value) = value.into_string() else {
                return Err(bad(format!("{name} isn't UTF-8")));
            };
            all.add(name, &value, UrlOrigin::Environment, 1);
        }
        let files = user_file().into_iter().chain([PathBuf::from(SYSTEM_FILE)]);
        for (at, path) in files.enumerate() {
            match trust::read(&path) {
                Ok(Ok(text)) => all.add_file(&path, &text, at + 2)?,
                Ok(Err(why)) => all.refused.push(why),
                // A broken link is an error, as it may lead to a secret that isn't mounted. A missing file is none.
                Err(error)
                    if matches!(error.kind(), NotFound | NotADirectory) && !path.is_symlink() => {}
                // The file may contain a password that only root and cron need.
                Err(error) if error.kind() == PermissionDenied => {
                    all.unreadable.get_or_insert(path);
                }
                Err(error) => {
                    let why = reason(&error);
                    return Err(bad(format!("can't read {}: {why}", path.display())));
                }
            }
        }
        Ok(all)
    }

    /// Adds a setting, unless it is empty: empty means unset, as in `REDLOCK_URL= redlock …`.
    fn add(&mut self, name: String, value: &str, origin: UrlOrigin, rank: usize) {
        if !value.is_empty() {
            self.settings.push(Setting {
                name,
                value: value.to_owned(),
                origin,
                rank,
            });
        }
    }

    /// Adds the `NAME=value` lines of a file in the format of systemd's `EnvironmentFile`: comments, optional
    /// quotes, and an optional `export`. If a name occurs several times, the last line takes precedence.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a malformed line.
    pub fn add_file(&mut self, path: &Path, text: &str, rank: usize) -> Result<(), Error> {
        let before = self.settings.len();
        for (index, line) in text.trim_start_matches('\u{feff}').split('\n').enumerate() {
            let origin = UrlOrigin::File(path.to_owned(), index + 1);
            let wrong = |why: &str| bad(format!("{origin}: {why}"));
            if line.ends_with('\r') {
                let path = quote(path);
                return Err(wrong(&format!(
                    "DOS line endings; run: sed -i 's/\\r$//' {path}"
                )));
            }
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let line = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| wrong("expected NAME=value"))?;
            let value = value.trim();
            let unquoted = ['"', '\'']
                .iter()
                .find_map(|&quote| value.strip_prefix(quote)?.strip_suffix(quote));
            self.add(
                name.trim().to_owned(),
                unquoted.unwrap_or(value),
                origin,
                rank,
            );
        }
        self.settings[before..].reverse();
        Ok(())
    }

    /// Refuses to continue if redlock ignores a file because others may have written it.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for the first such file.
    pub fn expect_trusted(&self) -> Result<(), Error> {
        let refused = self.refused.first();
        refused.map_or(Ok(()), |why| Err(bad(why.to_string())))
    }

    /// Returns the effective setting of this name, which lacks [`OURS`].
    pub fn get(&self, name: &str) -> Option<&Setting> {
        let is_named = |setting: &&Setting| setting.name.strip_prefix(OURS) == Some(name);
        self.settings.iter().find(is_named)
    }

    /// Returns the value of a setting.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] with the place of a value that `read` refuses.
    pub fn value<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        debug_assert!(is_listed(SETTINGS, name), "{name}");
        let setting = self.get(name);
        let value = setting.map(|it| read(&it.value).map_err(|why| it.bad(&why)));
        value.transpose()
    }

    /// Returns true if a setting is the second of two words, and false if it is the first or isn't set.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for any other word.
    pub fn is_second(&self, name: &str, [first, second]: [&str; 2]) -> Result<bool, Error> {
        let read = |text: &str| match text {
            _ if text == first => Ok(false),
            _ if text == second => Ok(true),
            _ => Err(format!("must be {first} or {second}")),
        };
        Ok(self.value(name, read)?.unwrap_or_default())
    }

    /// Returns a setting whose value may be any text.
    pub fn text<T: FromStr>(&self, name: &str) -> Option<T> {
        debug_assert!(is_listed(SETTINGS, name), "{name}");
        self.get(name)?.value.parse().ok()
    }

    /// Returns messages about settings without effect: removed ones, and unknown ones in the environment.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an unknown setting in a file.
    pub fn without_effect(&self) -> Result<[Option<String>; 2], Error> {
        let is_in = |list, setting: &Setting| {
            let name = setting.name.strip_prefix(OURS);
            name.is_some_and(|name| is_listed(list, name))
        };
        let others = self.settings.iter().filter(|it| !is_in(SETTINGS, it));
        let (removed, unknown): (Vec<_>, Vec<_>) = others.partition(|it| is_in(REMOVED, it));
        let with_hint = |setting: &Setting| {
            let names: Vec<String> = SETTINGS.split(' ').map(|it| OURS.to_owned() + it).collect();
            match nearest(&setting.name, names.iter().map(String::as_str)) {
                Some(near) => format!("{}; did you mean {near}?", setting.name),
                None => setting.name.clone(),
            }
        };
        if let Some(setting) = unknown.iter().find(|it| it.is_in_file()) {
            let (origin, name) = (&setting.origin, with_hint(setting));
            return Err(bad(format!("{origin}: unknown setting {name}")));
        }
        let list = |settings: &[&Setting]| {
            let places: Vec<String> = settings.iter().map(|it| it.location()).collect();
            places.join(", ")
        };
        let removed = (!removed.is_empty()).then(|| {
            let list = list(&removed);
            format!(
                "ignored, as no setting any more: {list}; `redlock help redlock` lists all settings"
            )
        });
        let unknown = match unknown.as_slice() {
            [] => None,
            [one] => Some(format!("unknown variable {}", with_hint(one))),
            several => Some(format!("unknown variables {}", list(several))),
        };
        // In a job, its run has already reported these.
        Ok([removed, unknown].map(|line| line.filter(|_| !is_in_job())))
    }
}

fn is_listed(list: &str, name: &str) -> bool {
    list.split(' ').any(|listed| listed == name)
}

/// Returns true for a variable that Kubernetes sets in each pod for a service named `redlock`
/// or `redlock-x`, such as `REDLOCK_PORT_6379_TCP_ADDR` or `REDLOCK_X_SERVICE_HOST`.
fn is_service_link(name: &str) -> bool {
    let name = format!("{name}_");
    name.contains("_PORT_") || name.contains("_SERVICE_")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Sources {
        let mut sources = Sources::default();
        sources.add_file(Path::new("f"), text, 2).unwrap();
        sources
    }

    #[test]
    fn a_file_is_read_as_an_environment_file() {
        let sources = sources(
            "\u{feff}# ours\n\nREDLOCK_URL=redis://h:1/2\nexport REDLOCK_PREFIX='x y:'\nREDLOCK_QUIET = \"0\"\nREDLOCK_QUIET = \"1\"",
        );
        let value = |name: &str| sources.get(name).unwrap().value.as_str();
        assert_eq!(value("URL"), "redis://h:1/2");
        assert_eq!(value("PREFIX"), "x y:");
        assert_eq!(value("QUIET"), "1");
        let location = sources.get("URL").unwrap().location();
        assert_eq!(location, "f:3: REDLOCK_URL");
    }

    #[test]
    fn the_variables_of_a_job_are_no_settings() {
        for name in VARIABLES.iter().chain(&OF_HOOK) {
            let name = name.strip_prefix(OURS).unwrap();
            assert!(!is_listed(SETTINGS, name), "{name}");
        }
    }
}
