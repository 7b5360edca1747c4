//! Where the server of this host is, who may use it, and the directories that it needs.
//!
//! The socket is in the runtime directory, which is gone after a boot; what is to be remembered is elsewhere. Each
//! directory is ours alone, or root's: another user could put a server of their own in its place.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind as IoErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, getgroups, gethostname};

use super::container::{is_container, is_mounted};
use crate::reason::reason;
use crate::redis::error::{Error, ErrorKind};
use crate::redis::url::Scope;
use crate::shell::quote;
use crate::sys;

/// The runtime directory of the host's server.
const HOST_RUN: &str = "/run/redlock";

/// Where the host's server keeps what outlasts a boot.
const HOST_DATA: &str = "/var/lib/redlock";

/// The group whose members use the host's server.
const GROUP: &str = "redlock";

/// The user of that server where there is such a group. Whoever reaches a server can have it write files: root's and
/// those of another service are out of reach.
const SERVER_USER: &str = "redlock";

/// How much is read of a file.
const READ_AT_MOST: u64 = 1 << 20;

/// Where the server of a user or the host is.
#[derive(Clone, Debug)]
pub struct Home {
    pub scope: Scope,
    /// The directory of its socket.
    run: PathBuf,
    /// Its data, its log, and where its socket is.
    pub data: PathBuf,
}

/// Whom a server belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: Uid,
    /// The group that may use it, too.
    pub group: Option<Gid>,
}

/// The files whose locks a server holds as long as it lives.
#[derive(Debug)]
pub struct Locked(pub [File; 2]);

impl Home {
    /// That of the host, or of this user by the environment.
    pub fn of(scope: Scope) -> Self {
        let (run, data) = match scope {
            Scope::Host => (HOST_RUN.into(), HOST_DATA.into()),
            Scope::User => (user_run(), user_data()),
        };
        Self { scope, run, data }
    }

    /// The same for whoever looks closer. In a container what belongs together is mounted together.
    pub fn settled(scope: Scope) -> Self {
        let home = Self::of(scope);
        let data = if is_container() && !is_mounted(&home.data) {
            home.run.join("data")
        } else {
            home.data
        };
        Self { data, ..home }
    }

    pub fn socket(&self) -> PathBuf {
        self.run.join("server.sock")
    }

    /// Where it listens until it has loaded its data, and after it has ended for want of users: nobody looks there.
    pub fn hidden_socket(&self) -> PathBuf {
        self.run.join("server.new")
    }

    pub fn log(&self) -> PathBuf {
        self.data.join("server.log")
    }

    /// Where it stands at which socket the server of this data listens: in another environment it may be another.
    fn note(&self) -> PathBuf {
        self.data.join("socket")
    }

    /// Forgets at which socket the last server listened.
    pub fn forget_socket(&self) -> io::Result<()> {
        match fs::remove_file(self.note()) {
            Err(error) if error.kind() != IoErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the server has been ready since it was started.
    pub fn was_ready(&self) -> bool {
        self.note().exists()
    }

    /// Notes at which socket the server listens that is ready now.
    pub fn note_socket(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.custom_flags(libc::O_NOFOLLOW).open(self.note())?;
        file.write_all(self.socket().as_os_str().as_bytes())
    }

    /// At which other socket the server of this data listens, by what was noted.
    pub fn other_socket(&self) -> Option<PathBuf> {
        let noted = PathBuf::from(read_plain(&self.note()).ok()?);
        (noted != self.socket()).then_some(noted)
    }

    /// What a command for this server begins with, for people to type.
    pub fn command(&self) -> String {
        match self.scope {
            Scope::Host => "sudo redlock".into(),
            Scope::User => "redlock -u local:user".into(),
        }
    }

    /// Refuses whoever may not use it, or would use another one than others of this host do.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]
    pub fn expect_usable(&self) -> Result<(), Error> {
        let runtime = self.run.parent().filter(|_| self.run.ends_with("redlock"));
        let is_shared = || {
            let is_users = self.scope == Scope::User;
            is_mounted(&self.run) || (is_users && runtime.is_some_and(is_mounted))
        };
        if is_container() && !is_shared() {
            let run = self.run.display();
            return Err(bad(format!(
                "`{}` is one server for a whole host, and this is a container: mount the host's {run} at {run}, or use the URL of a Redis",
                self.scope
            )));
        }
        if self.scope == Scope::Host && !geteuid().is_root() && !is_member() {
            let user = User::from_uid(geteuid()).ok().flatten();
            let user = user.map_or_else(|| "USER".to_owned(), |user| user.name);
            let first = match group() {
                Some(_) => "",
                None => "sudo useradd -rU redlock && ",
            };
            return Err(bad(format!(
                "`local:` is only for root and the group redlock: use `-u local:user`, a server for this user alone, or run `{first}sudo usermod -aG redlock {}` and log in again",
                quote(&user)
            )));
        }
        Ok(())
    }

    /// Refuses whoever may use it but not start it: the first user of the group would own it.
    pub fn expect_startable(&self) -> Result<(), Error> {
        if self.scope == Scope::User || geteuid().is_root() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unreachable,
            format!(
                "no server runs at {}, and only root can start it: `sudo redlock -u local: status`",
                self.socket().display()
            ),
        ))
    }

    /// The error for somebody who may use the server and may not reach its socket.
    pub fn closed(&self) -> Error {
        if self.scope == Scope::User {
            return bad(format!(
                "can't open {}: its directory is another user's; set XDG_RUNTIME_DIR to a directory of this user",
                self.socket().display()
            ));
        }
        bad(format!(
            "can't open {}: the server there doesn't admit the group redlock, as it was started before that group was set up; run `sudo redlock local stop`, and then any command with `-u local:` as root",
            self.socket().display()
        ))
    }

    /// The owner that the server is to have.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] where the group has no user for it.
    pub fn owner(&self) -> Result<Owner, Error> {
        let host_group = match self.scope {
            Scope::User => None,
            Scope::Host => group(),
        };
        let user = match host_group {
            None => geteuid(),
            Some(_) => match User::from_name(SERVER_USER).ok().flatten() {
                Some(user) => user.uid,
                None => {
                    return Err(bad(format!(
                        "the server for `local:` runs as user {SERVER_USER}, and this host has only the group of that name: run `sudo useradd -r -g {GROUP} {SERVER_USER}`"
                    )));
                }
            },
        };
        Ok(Owner {
            user,
            group: host_group,
        })
    }

    /// Makes the directories for a server of this owner, where they aren't there.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] where others could write there.
    pub fn prepare(&self, owner: Owner) -> Result<(), Error> {
        self.make(
            &self.run,
            owner,
            if owner.group.is_some() { 0o750 } else { 0o700 },
        )?;
        self.make(
            &self.data,
            Owner {
                group: None,
                ..owner
            },
            0o700,
        )
    }

    fn make(&self, path: &Path, owner: Owner, mode: u32) -> Result<(), Error> {
        let failed = |error: io::Error| {
            let why = format!("can't make {}: {}", path.display(), reason(&error));
            Error::new(ErrorKind::Unreachable, why)
        };
        if let Some(parent) = path.parent() {
            let mut builder = DirBuilder::new();
            let mode = if self.scope == Scope::Host {
                0o755
            } else {
                0o700
            };
            builder
                .recursive(true)
                .mode(mode)
                .create(parent)
                .map_err(failed)?;
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != IoErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let found = fs::symlink_metadata(path).map_err(failed)?;
        let ours = [0, owner.user.as_raw()];
        let is_ours = found.is_dir() && ours.contains(&found.uid());
        if !is_ours || found.mode() & 0o022 != 0 {
            if found.is_dir() && self.scope == Scope::Host && !owner.user.is_root() && !is_ours {
                return Err(bad(belongs_to_other(path, found.uid(), owner.user)));
            }
            return Err(bad(format!(
                "{} isn't used, as other users can write there: it must be a directory of this user that nobody else can write",
                path.display()
            )));
        }
        if self.scope == Scope::User {
            return Ok(());
        }
        let group = owner.group.unwrap_or(Gid::from_raw(0));
        if found.uid() != owner.user.as_raw() {
            // While it was root's alone nobody else has put anything there.
            hand_over(path, owner.user).map_err(failed)?;
        }
        let found = (found.gid(), found.mode() & 0o7777);
        if found != (group.as_raw(), mode) {
            std::os::unix::fs::chown(path, None, Some(group.as_raw())).map_err(failed)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        Ok(())
    }

    /// Takes the locks of a server that is to start; `None` while one has them that starts, lives, or ends.
    pub fn try_lock(&self) -> io::Result<Option<Locked>> {
        let mut files = Vec::with_capacity(2);
        for path in self.locks() {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
            if !sys::try_lock(&file)? {
                return Ok(None);
            }
            files.push(file);
        }
        Ok(files.try_into().ok().map(Locked))
    }

    /// Whether a server has the locks, or is about to, as far as we may look: a member of the group may not.
    pub fn is_locked(&self) -> io::Result<bool> {
        for path in self.locks() {
            match File::open(path) {
                Ok(file) if !sys::try_lock(&file)? => return Ok(true),
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        IoErrorKind::NotFound | IoErrorKind::PermissionDenied
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The files that are locked: beside the socket, as two servers there would take it from each other, and beside the
    /// data.
    pub fn locks(&self) -> [PathBuf; 2] {
        [&self.run, &self.data].map(|directory| directory.join("server.lock"))
    }
}

/// Gives a directory of root's, and what is in it, to a user.
fn hand_over(path: &Path, user: Uid) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            hand_over(&entry?.path(), user)?;
        }
    }
    std::os::unix::fs::lchown(path, Some(user.as_raw()), None)
}

/// Why a directory isn't used that was made when the server ran as another user.
fn belongs_to_other(path: &Path, found: u32, owner: Uid) -> String {
    let name = |user: Uid| {
        let found = User::from_uid(user).ok().flatten();
        found.map_or_else(|| user.to_string(), |user| user.name)
    };
    let (found, owner) = (name(Uid::from_raw(found)), name(owner));
    format!(
        "{} belongs to the user {found}, but the server has to run as {owner}: `sudo chown -R {owner} {HOST_RUN} {HOST_DATA}` gives it the directories",
        path.display()
    )
}

/// Reads a small file from a directory of the server's user, who may have put anything in its place.
pub fn read_plain(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(IoErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(READ_AT_MOST).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::Config, why)
}

fn group() -> Option<Gid> {
    let group = Group::from_name(GROUP).ok().flatten();
    group.map(|group| group.gid)
}

/// Whether we are in the group.
fn is_member() -> bool {
    group().is_some_and(|group| {
        getegid() == group || getgroups().is_ok_and(|groups| groups.contains(&group))
    })
}

/// Whether `-u local:` is for us, and not `-u local:user`.
pub fn is_for_host() -> bool {
    geteuid().is_root() || is_member()
}

fn directory(name: &str) -> Option<PathBuf> {
    // What isn't absolute isn't one, by the specification of XDG.
    env::var_os(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// Whether this is a directory of this user's. After `su` or `sudo -E` a variable may name another user's: who could
/// replace there whatever we have checked.
fn is_own(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
}

/// Whether the directory, or the one that it is to be made in, is this user's or root's.
fn is_nobody_elses(path: &Path) -> bool {
    let found = path.ancestors().find_map(|path| fs::metadata(path).ok());
    found.is_some_and(|found| [0, geteuid().as_raw()].contains(&found.uid()))
}

/// The runtime directory of this user's server. That of the login is gone after a logout, and a cron job has none.
fn user_run() -> PathBuf {
    let user = geteuid();
    let usual = Some(PathBuf::from(format!("/run/user/{user}")));
    let mut found = [directory("XDG_RUNTIME_DIR"), usual].into_iter().flatten();
    match found.find(|path| is_own(path)) {
        Some(path) => path.join("redlock"),
        None => format!("/tmp/redlock-{user}").into(),
    }
}

/// Where this user's server keeps what it remembers. A home may be that of several hosts, and is never made.
fn user_data() -> PathBuf {
    let home = || {
        let is_there = |home: &PathBuf| home.is_dir();
        let listed = || Some(User::from_uid(geteuid()).ok()??.dir).filter(is_there);
        let named = directory("HOME").filter(|home| is_own(home));
        Some(named.or_else(listed)?.join(".local/state"))
    };
    let host = gethostname().unwrap_or_default();
    let named = directory("XDG_STATE_HOME").filter(|path| is_nobody_elses(path));
    match named.or_else(home) {
        Some(state) => state.join("redlock").join(host),
        None => user_run().join("data"),
    }
}
