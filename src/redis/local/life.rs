//! The life of a server of this host: its keeper starts it, shows it once it is ready, and starts it again when it is killed.
//! Once a minute the keeper looks whether anyone uses it, and ends it when for an hour nobody has, and nothing is kept
//! there. It never ends a server of the group, whose members couldn't start it again. If the keeper is killed the server
//! stays, until it is stopped.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getegid, geteuid, setgid, setgroups, setuid};
use redis::{Value, cmd};

use super::home::{Home, Locked, Owner};
use super::talk::{Facts, ask, has_text};
use crate::sys::{self, poll};

/// The programs, in the order of preference.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// How long a server lives that nobody uses.
const UNUSED: Duration = Duration::from_secs(3600);

/// The same in milliseconds, for tests.
const UNUSED_VARIABLE: &str = "RL_LOCAL_UNUSED_MS";

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// How long it takes at least to start.
const STARTS_WITHIN: Duration = Duration::from_millis(1);

/// How long it lives at least, where it is started again when it is killed.
const LIVES_AT_LEAST: Duration = Duration::from_secs(1);

/// How long its answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The program of a server, where one is installed.
pub fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let directories: Vec<PathBuf> = env::split_paths(&path).collect();
    PROGRAMS.iter().find_map(|program| {
        let mut found = directories.iter().map(|directory| directory.join(program));
        found.find(|path| path.is_absolute() && path.is_file())
    })
}

/// Starts a server, which has the locks from then on, and looks after it. The pipe ends when both have ended.
pub fn begin(
    program: &Path,
    home: &Home,
    owner: Owner,
    locked: &Locked,
    pipe: &File,
) -> io::Result<()> {
    let unused = env::var(UNUSED_VARIABLE).ok();
    let unused = unused.and_then(|text| Some(Duration::from_millis(text.parse().ok()?)));
    let life = Life {
        words: words(program, home, owner)?,
        home: home.clone(),
        unused: owner.group.is_none().then(|| unused.unwrap_or(UNUSED)),
    };
    let [beside_socket, beside_data] = &locked.0;
    let kept = [beside_socket.as_fd(), beside_data.as_fd(), pipe.as_fd()];
    sys::leave_behind(sys::SERVER_KEEPER, &kept, || {
        // Whoever started it hears of its end by the pipe, and reads the log.
        let _ = life.run(owner, locked);
    })
}

/// The command line of a server.
fn words(program: &Path, home: &Home, owner: Owner) -> io::Result<Vec<CString>> {
    let mode = if owner.group.is_some() { "660" } else { "600" };
    let socket = home.hidden_socket().into_os_string().into_vec();
    let options: [(&str, Vec<u8>); 14] = [
        ("--port", b"0".into()),
        ("--unixsocket", socket),
        ("--unixsocketperm", mode.into()),
        ("--dir", home.data.as_os_str().as_bytes().into()),
        ("--save", b"".into()),
        ("--appendonly", b"yes".into()),
        // Else it puts off a write while the disk is slow, and one that is killed then has forgotten what it answered. A
        // crash of the host ends all holders as well.
        ("--appendfsync", b"no".into()),
        ("--auto-aof-rewrite-min-size", b"4mb".into()),
        ("--maxmemory-policy", b"noeviction".into()),
        ("--daemonize", b"no".into()),
        ("--supervised", b"no".into()),
        ("--pidfile", b"".into()),
        ("--logfile", b"".into()),
        ("--loglevel", b"notice".into()),
    ];
    let mut words = vec![program.as_os_str().as_bytes().to_vec()];
    for (name, value) in options {
        words.extend([name.into(), value]);
    }
    let words = words.into_iter().map(CString::new);
    words
        .collect::<Result<_, _>>()
        .map_err(|_| io::ErrorKind::InvalidInput.into())
}

struct Life {
    words: Vec<CString>,
    home: Home,
    /// How long an unused server lives; `None`: until it is stopped.
    unused: Option<Duration>,
}

/// How a server has ended.
#[derive(PartialEq, Eq)]
enum End {
    /// It was asked to, or can't start.
    Meant,
    Killed,
}

/// Who has used a server.
#[derive(PartialEq, Eq)]
struct Uses {
    /// How many connections there were.
    connections: u64,
    /// Others than ours are there, or something is kept.
    is_used: bool,
}

impl Life {
    fn run(&self, owner: Owner, locked: &Locked) -> io::Result<()> {
        umask(Mode::from_bits_truncate(0o077));
        // While we may.
        sys::lift_limits();
        if owner.user != geteuid() {
            let group = owner.group.unwrap_or_else(getegid);
            setgroups(&[])?;
            setgid(group)?;
            setuid(owner.user)?;
        } else if let Some(group) = owner.group {
            setgid(group)?;
        }
        sys::raise_file_limit();
        let [beside_socket, beside_data] = &locked.0;
        let kept = [beside_socket.as_fd(), beside_data.as_fd()];
        // Its end is to be seen, whatever was ignored.
        sys::set_default(libc::SIGCHLD);
        loop {
            let Some(server) = sys::fork_daemon(sys::SERVER_KEEPER, "rl-local", &kept)? else {
                return self.become_server(&kept);
            };
            if self.look_after(server) == End::Meant {
                break;
            }
        }
        // However it has ended: nobody else starts one while we have the locks.
        for socket in [self.home.socket(), self.home.hidden_socket()] {
            let _ = fs::remove_file(socket);
        }
        Ok(())
    }

    fn become_server(&self, kept: &[BorrowedFd]) -> io::Result<()> {
        // That of the last start only: it never grows without end.
        // A pipe in its place would be waited for.
        let log = self.home.log();
        let _ = fs::remove_file(&log);
        let log = File::create_new(log)?;
        let path = OsString::from("PATH=/usr/local/bin:/usr/bin:/bin");
        let variables = [CString::new(path.into_vec())?];
        let program = &self.words[0];
        let error = sys::become_program(program, &self.words, &variables, &log, kept);
        let line = format!("{}: {error}\n", program.to_string_lossy());
        (&log).write_all(line.as_bytes())
    }

    /// Until it has ended. One that is killed when it has been ready is started again, as members of the group couldn't
    /// do that; but not again and again.
    fn look_after(&self, server: Pid) -> End {
        let process = sys::pidfd(server.as_raw()).ok().flatten();
        let ends_within = |within: Duration| {
            match &process {
                Some(process) => drop(poll::wait_for(poll::readable(process.as_fd()), within)),
                None => std::thread::sleep(within.min(Duration::from_secs(1))),
            }
            match waitpid(server, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => None,
                Ok(WaitStatus::Signaled(..)) => Some(End::Killed),
                _ => Some(End::Meant),
            }
        };
        let mut stream = None;
        while !self.shows(&mut stream) {
            if ends_within(STARTS_WITHIN).is_some() {
                return End::Meant;
            }
        }
        let ready_at = Instant::now();
        let every = self.unused.map_or(LOOK_EVERY, |unused| {
            (unused / 4).clamp(Duration::from_millis(1), LOOK_EVERY)
        });
        let (mut used_at, mut before) = (Instant::now(), None);
        loop {
            match ends_within(every) {
                None => {}
                Some(End::Killed) if ready_at.elapsed() >= LIVES_AT_LEAST => return End::Killed,
                Some(_) => return End::Meant,
            }
            let Some(unused) = self.unused else { continue };
            let uses = self.uses(&mut stream);
            if uses
                .as_ref()
                .is_none_or(|uses| uses.is_used || Some(uses) != before.as_ref())
            {
                used_at = Instant::now();
            }
            before = uses;
            if used_at.elapsed() >= unused && self.is_left(&mut stream, before.as_ref()) {
                let _ = sys::kill(server.as_raw(), sys::SIGTERM);
                let _ = waitpid(server, None);
                return End::Meant;
            }
        }
    }

    /// Shows the socket to all once the server has loaded its data; whether it does.
    fn shows(&self, stream: &mut Option<UnixStream>) -> bool {
        let hidden = self.home.hidden_socket();
        let until = Instant::now() + ANSWER_WITHIN;
        if stream.is_none() {
            *stream = UnixStream::connect(&hidden).ok();
        }
        let answer = stream.as_ref().map(|open| ask(open, &cmd("PING"), until));
        match answer {
            Some(Ok(Value::ServerError(_))) | None => false,
            Some(Ok(_)) => {
                let noted = self.home.note_socket();
                noted
                    .and_then(|()| fs::rename(hidden, self.home.socket()))
                    .is_ok()
            }
            Some(Err(_)) => {
                *stream = None;
                false
            }
        }
    }

    /// Who has used it; `None` where that isn't known. The connection stays open, so that it isn't taken for a use.
    fn uses(&self, stream: &mut Option<UnixStream>) -> Option<Uses> {
        let until = Instant::now() + ANSWER_WITHIN;
        if stream.is_none() {
            *stream = UnixStream::connect(self.home.socket()).ok();
        }
        let open = stream.as_ref()?;
        let asked = Facts::ask(open, until).and_then(|facts| Ok((facts, has_text(open, until)?)));
        let Ok((facts, keeps)) = asked else {
            *stream = None;
            return None;
        };
        Some(Uses {
            connections: facts.number("total_connections_received")?,
            is_used: keeps || facts.number("connected_clients")? > 1,
        })
    }

    /// Whether nobody has come since, and nobody can come any more.
    fn is_left(&self, stream: &mut Option<UnixStream>, before: Option<&Uses>) -> bool {
        let (socket, hidden) = (self.home.socket(), self.home.hidden_socket());
        if fs::rename(&socket, &hidden).is_err() {
            return false;
        }
        // Whoever came before that has been let in when this is answered.
        let until = Instant::now() + ANSWER_WITHIN;
        let answer = stream.as_ref().map(|open| ask(open, &cmd("PING"), until));
        let is_left = answer.is_some_and(|answer| answer.is_ok())
            && before.is_some()
            && self.uses(stream).as_ref() == before;
        if !is_left {
            let _ = fs::rename(hidden, socket);
        }
        is_left
    }
}
